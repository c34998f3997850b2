"""E16: a recording played again is bit-equal, or the first difference is named."""

import msgspec
import pytest

from deedrl.errors import StoreError
from deedrl.policies.recorded import RecordedPolicy
from deedrl.rollouts.replay import replay_actions
from deedrl.types import Verdict


def test_E16_actions_replay_bit_equal_twice(kit):
    script = ["{oops", kit.call("set_value", value=-1), kit.call("read_value"), *kit.SOLUTION]
    trajectory = kit.play_one(script)
    for _ in range(2):
        report = replay_actions(trajectory, kit.make_task(), kit.CounterDesk)
        assert report.equal
        assert report.compared_steps == 4
        assert "no difference" in report.describe()


def test_E16_changed_tool_is_named_with_its_version(kit):
    class Newer(kit.CounterDesk):
        @kit.tool(version="2")
        def set_value(self, value: int) -> str:
            """Sets the counter."""
            self.value = value
            return f"value is now {value}"

    report = replay_actions(kit.play_one([kit.call("read_value"), *kit.SOLUTION]), kit.make_task(), Newer)
    assert report.difference.step == 1
    assert report.difference.what == "observation"
    assert "'value set to 3'" in report.describe()
    assert "set_value 1 -> 2" in report.describe()


def test_E16_change_without_a_new_version_is_said_to_be_one(kit):
    class Silent(kit.CounterDesk):
        def setup(self, task):
            super().setup(task)
            self.value = 1

    report = replay_actions(kit.play_one(), kit.make_task(), Silent)
    assert (report.difference.step, report.difference.what) == (0, "state_hash")
    assert "all tool versions are the same" in report.describe()


def test_E16_reward_and_status_and_verdict_are_compared(kit):
    trajectory = kit.play_one()
    last = trajectory.steps[-1]

    def with_last(**changes):
        steps = (*trajectory.steps[:-1], msgspec.structs.replace(last, **changes))
        return msgspec.structs.replace(trajectory, steps=steps)

    def what(changed):
        return replay_actions(changed, kit.make_task(), kit.CounterDesk).difference.what

    assert what(with_last(reward=0.5)) == "reward"
    assert what(with_last(tool_output=msgspec.structs.replace(last.tool_output, ok=False))) == "status"
    assert what(msgspec.structs.replace(trajectory, verdict=Verdict(solved=False))) == "verdict"


def test_steps_without_a_result_end_the_comparison(kit):
    timed_out = kit.play_one([kit.call("read_value"), kit.call("spin")], environment=kit.HangingDesk)
    report = replay_actions(timed_out, kit.make_task(), kit.HangingDesk)
    assert (report.equal, report.compared_steps) == (True, 1)
    crashed = kit.play_one(task=kit.make_task(crash=True), failures=kit.lenient)
    report = replay_actions(crashed, kit.make_task(crash=True), kit.CounterDesk)
    assert (report.equal, report.compared_steps) == (True, 0)


def test_replay_needs_the_task_of_the_recording(kit):
    with pytest.raises(StoreError, match="was recorded on task"):
        replay_actions(kit.play_one(), kit.make_task("another"), kit.CounterDesk)


def test_E16_completions_replay_through_the_same_loop(kit):
    recorded = kit.play_many(kit.make_specs(3), ["{oops", *kit.SOLUTION])
    again = kit.play_many(kit.make_specs(3), RecordedPolicy(recorded))

    def seen(trajectory):
        return [(step.observation, step.completion, step.action, step.reward) for step in trajectory.steps]

    assert [seen(t) for t in again] == [seen(t) for t in recorded]
    assert [t.reward for t in again] == [t.reward for t in recorded]


def test_replaying_an_unknown_or_longer_episode_says_so(kit):
    recorded = kit.play_many(kit.make_specs(1), [kit.call("finish")])

    class NeverEnding(kit.CounterDesk):
        @kit.tool
        def finish(self) -> str:
            """Does not end."""
            return "finished"

    [longer] = kit.play_many(kit.make_specs(1), RecordedPolicy(recorded), NeverEnding, failures=kit.lenient)
    assert "1 recorded completions, but turn 1" in longer.failure.message
    [unknown] = kit.play_many(kit.make_specs(1), RecordedPolicy([]), failures=kit.lenient)
    assert "expected a recorded episode, got id 'e0'" in unknown.failure.message
