"""Frozen replay: recorded tool outputs instead of the tools; what was never recorded is refused."""

from __future__ import annotations

import msgspec
import pytest

from deedrl.errors import StoreError
from deedrl.policies.recorded import RecordedPolicy
from deedrl.rewards.rubric import default_rubric
from deedrl.rollouts.frozen import FrozenEnvironment
from deedrl.rollouts.limits import Limits
from deedrl.rollouts.recordings import ByCall, InOrder, call_key
from deedrl.rollouts.reproduce import compared, replay_completions, replay_frozen
from deedrl.types import Action, Completion, TerminationReason


def without_tools(kit):
    """The environment of the recording, whose tools, setup and verifier must not be called."""

    class Broken(kit.CounterDesk):
        def setup(self, task):
            raise AssertionError("setup was called")

        def verify(self, task):
            raise AssertionError("verify was called")

        @kit.tool
        def set_value(self, value: int) -> str:
            """Sets the counter."""
            raise AssertionError("a tool was called")

        @kit.tool(ends_episode=True)
        def finish(self) -> str:
            """Ends the job."""
            raise AssertionError("a tool was called")

    return Broken


def in_order(kit, *trajectories):
    return lambda: FrozenEnvironment(InOrder(trajectories), without_tools(kit))


def by_call(kit, *trajectories):
    recordings = ByCall(trajectories, lambda name: name == "read_value")
    return lambda: FrozenEnvironment(recordings, without_tools(kit))


def script(kit):
    return ["{oops", kit.call("read_value"), kit.call("set_value", value=-1), *kit.SOLUTION]


def test_E16_a_trajectory_is_reproduced_without_its_tools(kit):
    recorded = kit.play_one(script(kit))
    [again] = kit.play_many(kit.make_specs(1), RecordedPolicy([recorded]), in_order(kit, recorded))

    def plain(trajectory):
        steps = [
            msgspec.structs.replace(
                s, tool_output=s.tool_output and msgspec.structs.replace(s.tool_output, duration_s=0)
            )
            for s in trajectory.steps
        ]
        origin = msgspec.structs.replace(trajectory.provenance, policy_version="")
        return msgspec.structs.replace(trajectory, steps=tuple(steps), provenance=origin, duration_s=0.0)

    assert plain(again) == plain(recorded)
    assert again.reward == recorded.reward is not None


def test_E16_frozen_replay_of_many_compares_all_of_it(kit):
    recorded = kit.play_many(kit.make_specs(3), script(kit))
    task = kit.make_task()
    reports = replay_frozen(recorded, {task.id: task}, without_tools(kit), limits=Limits(), rubric=default_rubric())
    assert [(report.outcome, report.compared_steps) for report in reports] == [("equal", 5)] * 3


def test_E16_a_call_that_was_never_recorded_is_refused_and_earns_nothing(kit):
    recorded = kit.play_one(script(kit))
    other = ["{oops", kit.call("read_value"), kit.call("set_value", value=7)]
    [again] = kit.play_many(kit.make_specs(1), other, in_order(kit, recorded), failures=kit.lenient)
    assert again.failure.kind == "NotRecorded"
    assert "call 2: expected the recorded set_value(value=-1), got set_value(value=7)" in again.failure.message
    assert (again.verdict, again.reward) == (None, None)


def test_a_call_beyond_the_recording_is_refused(kit):
    recorded = kit.play_one([kit.call("read_value")], limits=Limits(max_steps=1))
    twice = [kit.call("read_value")] * 2
    [again] = kit.play_many(kit.make_specs(1), twice, in_order(kit, recorded), failures=kit.lenient)
    assert "has 1 recorded calls, but another one was made: read_value()" in again.failure.message


def test_the_order_of_parameters_does_not_matter():
    one = Action(tool_name="read", parameters={"a": 1, "b": [{"d": 2, "c": 3}]})
    other = Action(tool_name="read", parameters={"b": [{"c": 3, "d": 2}], "a": 1})
    assert call_key(one) == call_key(other)
    assert call_key(one) != call_key(msgspec.structs.replace(one, parameters={"a": 2}))


def test_a_call_is_found_again_after_its_text_was_stored(kit):
    assert call_key(kit.call("read_value", label="\ud800")) == call_key(kit.call("read_value", label="�"))


def test_an_episode_of_an_unknown_task_or_seed_is_refused(kit):
    recorded = kit.play_one(script(kit))
    [unknown] = kit.play_many(
        kit.make_specs(1, task=kit.make_task("another")), script(kit), in_order(kit, recorded), failures=kit.lenient
    )
    assert "expected a recorded episode of task" in unknown.failure.message
    assert unknown.failure.phase == "reset"


def test_two_recordings_that_cannot_be_told_apart_are_refused(kit):
    recorded = kit.play_one(script(kit))
    twin = msgspec.structs.replace(recorded, episode_id="twin")
    with pytest.raises(StoreError, match="'e0' and 'twin' have the same task and seed"):
        InOrder([recorded, twin])


def test_an_invalid_completion_uses_no_recorded_output(kit):
    recorded = kit.play_one(script(kit))
    others = ["{other", kit.call("read_value"), "{oops", *script(kit)[2:]]
    [again] = kit.play_many(kit.make_specs(1), others, in_order(kit, recorded))
    assert again.solved
    assert [s.tool_output.text for s in again.steps if s.tool_output] == [
        s.tool_output.text for s in recorded.steps if s.tool_output
    ]


# ---------------------------------------------------------------- by call, for a changed policy


def test_a_changed_policy_plays_what_any_recording_of_the_task_has_seen(kit):
    reads = kit.play_one([kit.call("read_value"), kit.call("set_value", value=5), kit.call("finish")])
    solves = kit.play_one([*kit.SOLUTION])
    changed = [kit.call("set_value", value=3), kit.call("finish")]
    slower = [kit.call("read_value"), *changed]
    [again] = kit.play_many(kit.make_specs(1), slower, by_call(kit, reads, solves))
    assert [step.tool_output.text for step in again.steps] == ["the value is 0", "value set to 3", "finished"]
    assert again.solved
    assert again.termination is TerminationReason.GOAL


def test_a_read_after_a_change_is_not_answered_with_what_was_read_before(kit):
    recorded = kit.play_one([kit.call("read_value"), *kit.SOLUTION])
    late = [kit.call("set_value", value=3), kit.call("read_value"), kit.call("finish")]
    [again] = kit.play_many(kit.make_specs(1), late, by_call(kit, recorded), failures=kit.lenient)
    assert "no output for read_value() after the calls made so far: it was never recorded" in again.failure.message


def test_recordings_that_disagree_are_refused(kit):
    class Loaded(kit.CounterDesk):
        def setup(self, task):
            super().setup(task)
            self.value = 9

    one = kit.play_one([kit.call("read_value"), *kit.SOLUTION])
    other = kit.play_one([kit.call("read_value"), *kit.SOLUTION], environment=Loaded)
    [again] = kit.play_many(kit.make_specs(1), [kit.call("read_value")], by_call(kit, one, other), failures=kit.lenient)
    assert "recordings disagree about it" in again.failure.message


def test_an_ending_that_was_never_recorded_has_no_verdict(kit):
    recorded = kit.play_one([*kit.SOLUTION])
    [again] = kit.play_many(
        kit.make_specs(1), [kit.call("set_value", value=3), "", ""], by_call(kit, recorded), failures=kit.lenient
    )
    assert again.failure.phase == "verify"
    assert "no recorded episode ended like this" in again.failure.message


# ---------------------------------------------------------------- policy replay compares


def replayed(kit, recorded, environment, **options):
    task = kit.make_task()
    [report] = replay_completions(
        [recorded], {task.id: task}, environment, limits=Limits(), rubric=default_rubric(), **options
    )
    return report


def test_E16_policy_replay_names_the_changed_tool(kit):
    class Newer(kit.CounterDesk):
        @kit.tool(version="2")
        def set_value(self, value: int) -> str:
            """Sets the counter."""
            self.value = value
            return f"value is now {value}"

    report = replayed(kit, kit.play_one([kit.call("read_value"), *kit.SOLUTION]), Newer)
    assert (report.outcome, report.difference.step, report.difference.tool) == ("different", 1, "set_value")
    assert "set_value 1 -> 2" in report.describe()


def test_policy_replay_of_an_environment_that_goes_on_longer_says_so(kit):
    class NeverEnding(kit.CounterDesk):
        @kit.tool
        def finish(self) -> str:
            """Does not end."""
            return "finished"

    report = replayed(kit, kit.play_one([kit.call("read_value"), kit.call("finish")]), NeverEnding)
    assert report.difference.what == "exception"
    assert "recorded completions, but turn 2 was asked for" in report.difference.replayed


def test_an_episode_that_ran_out_of_tokens_replays(kit):
    completion = Completion(text='{"tool_name": "read_value", "parameters": {}}', token_ids=(1,) * 8)
    tight = Limits(max_context_tokens=4)
    recorded = kit.play_one([completion] * 3, limits=tight)
    task = kit.make_task()
    [report] = replay_completions([recorded], {task.id: task}, kit.CounterDesk, limits=tight, rubric=default_rubric())
    assert recorded.termination is TerminationReason.TOKEN_LIMIT
    assert report.outcome == "equal"


def test_a_recorded_failure_is_not_compared_to_its_end(kit):
    crashed = kit.play_one(task=kit.make_task(crash=True), failures=kit.lenient)
    report = compared(crashed, crashed, {})
    assert (report.outcome, report.compared_steps) == ("not comparable", 0)
    assert "the disk is on fire" in report.stopped
