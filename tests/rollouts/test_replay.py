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
    assert (report.outcome, report.compared_steps) == ("equal so far", 1)
    assert report.stopped == "a call was stopped at its time limit"
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


def test_a_tool_declared_not_replayable_stops_the_comparison(kit):
    class Online(kit.CounterDesk):
        @kit.tool(replayable=False)
        def read_value(self, label: str = "", unit: str = "") -> str:
            """Reads the counter elsewhere."""
            return f"the value is {self.value}"

    recorded = kit.play_one([kit.call("set_value", value=1), kit.call("read_value"), *kit.SOLUTION], environment=Online)
    report = replay_actions(recorded, kit.make_task(), Online)
    assert (report.outcome, report.compared_steps) == ("equal so far", 1)
    assert report.stopped == "calls 'read_value', which is declared not replayable"


def test_a_tool_named_unreplayable_stops_the_comparison(kit):
    report = replay_actions(kit.play_one(), kit.make_task(), kit.CounterDesk, unreplayable=["set_value"])
    assert (report.outcome, report.compared_steps) == ("not comparable", 0)
    assert "allowed not to replay" in report.stopped


def test_a_call_interrupted_inside_its_process_is_recorded_as_such(kit, tmp_path):
    from deedrl.environments.isolation import ProcessEnvironment

    (tmp_path / "sleepy.py").write_text(SLEEPY)
    ref = f"{tmp_path / 'sleepy.py'}:Sleepy"
    script = [kit.call("nap"), kit.call("finish")]
    recorded = kit.play_one(script, environment=lambda: ProcessEnvironment(ref))
    assert [step.tool_output.interrupted for step in recorded.steps] == [True, False]
    report = replay_actions(recorded, kit.make_task(), lambda: ProcessEnvironment(ref))
    assert (report.outcome, report.stopped) == ("not comparable", "a call was stopped at its time limit")


SLEEPY = '''
import time
from deedrl import Environment, tool


class Sleepy(Environment):
    def verify(self, task):
        return False

    @tool(timeout_s=0.05)
    def nap(self) -> str:
        """Sleeps too long."""
        time.sleep(5)
        return "rested"

    @tool(ends_episode=True)
    def finish(self) -> str:
        """Ends the job."""
        return "finished"
'''


def test_E16_an_environment_that_raises_has_left_the_recording(kit):
    class Broken(kit.CounterDesk):
        @kit.tool(version="2")
        def set_value(self, value: int) -> str:
            """Sets the counter."""
            raise RuntimeError("no such table")

    report = replay_actions(kit.play_one(), kit.make_task(), Broken)
    assert (report.difference.what, report.difference.step, report.difference.tool) == ("exception", 0, "set_value")
    assert "no such table" in report.describe()
    assert "set_value 1 -> 2" in report.describe()


def test_E06_a_text_that_the_store_changed_is_no_difference(kit):
    class Odd(kit.CounterDesk):
        @kit.tool
        def read_value(self, label: str = "", unit: str = "") -> str:
            """Reads the counter."""
            return "sk-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGH"

    from deedrl.store import codec

    stored = codec.decode(codec.encode(kit.play_one([kit.call("read_value"), *kit.SOLUTION], environment=Odd)))
    assert stored.steps[0].tool_output.text == "[redacted]"
    assert replay_actions(stored, kit.make_task(), Odd).outcome == "equal"


def test_E06_a_call_that_the_store_changed_is_not_compared(kit):
    key = "sk-abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGH"

    class Echo(kit.CounterDesk):
        @kit.tool
        def read_value(self, label: str = "", unit: str = "") -> str:
            """Reads the counter."""
            return f"{len(label)} characters"

    from deedrl.store import codec

    stored = codec.decode(codec.encode(kit.play_one([kit.call("read_value", label=key)], environment=Echo)))
    report = replay_actions(stored, kit.make_task(), Echo)
    assert report.difference is None
    assert "changed when it was stored" in report.stopped


def test_long_texts_are_shown_from_where_they_part(kit):
    from deedrl.rollouts.replay_report import shown_apart

    one, other = shown_apart("a" * 500 + "b" * 500, "a" * 500 + "c" * 500)
    assert one == f"…'{'a' * 25}{'b' * 75}'…"
    assert other == f"…'{'a' * 25}{'c' * 75}'…"


def test_lines_of_earlier_versions_are_read_and_replayed(kit):
    import json

    from deedrl.store import codec

    plain = json.loads(codec.encode(kit.play_one()))
    for step in plain["steps"]:
        del step["tool_output"]["interrupted"]
    earlier = codec.decode(json.dumps(plain).encode())
    assert replay_actions(earlier, kit.make_task(), kit.CounterDesk).outcome == "equal"
