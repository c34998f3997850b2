"""Counting failures and dropping broken groups."""

import pytest

from deedrl.errors import ConfigError
from deedrl.rollouts.failures import DroppedGroups, FailureLedger, FailurePolicy, RolloutsStopped, drop_broken_groups
from deedrl.types import Failure, Trajectory

CRASH = Failure(kind="OSError", phase="reset", message="no sandbox")


def episode(name: str, task: str = "t", role: str = "agent", failure: Failure | None = None) -> Trajectory:
    return Trajectory(episode_id=name, task_id=task, role=role, failure=failure)


def test_D04_one_failure_drops_its_whole_group_and_no_other():
    kept, dropped = drop_broken_groups(
        [episode("a"), episode("b", failure=CRASH), episode("c", task="u"), episode("d", role="critic"), episode("e")]
    )
    assert [trajectory.episode_id for trajectory in kept] == ["c", "d"]
    assert dropped == DroppedGroups(groups=1, episodes=3, reasons={"reset: OSError": 1})


def test_D04_reasons_are_counted_over_all_groups():
    other = Failure(kind="TimeoutError", phase="policy", message="late")
    trajectories = [episode("a", failure=CRASH), episode("b", task="u", failure=other), episode("c", failure=CRASH)]
    kept, dropped = drop_broken_groups(trajectories)
    assert kept == []
    assert dropped.reasons == {"reset: OSError": 2, "policy: TimeoutError": 1}


def test_nothing_is_dropped_without_failures():
    trajectories = [episode("a"), episode("b")]
    assert drop_broken_groups(trajectories) == (trajectories, DroppedGroups())


def play(ledger: FailureLedger, outcomes: str) -> None:
    """Starts and finishes one episode per letter; ``x`` fails."""
    for index, outcome in enumerate(outcomes):
        ledger.start()
        ledger.finish(episode(str(index), failure=CRASH if outcome == "x" else None))


def test_D02_share_is_judged_over_started_episodes():
    ledger = FailureLedger(FailurePolicy(min_episodes=2))
    for _ in range(8):
        ledger.start()
    play(ledger, "xxxxxxxx")  # 8 of 16 is not more than a half: failures tend to finish first
    with pytest.raises(RolloutsStopped, match=r"9 of 17 .* 9 x reset: OSError: no sandbox"):
        play(ledger, "x")


def test_D02_few_failures_are_judged_at_the_end_only():
    ledger = FailureLedger(FailurePolicy(min_episodes=8))
    play(ledger, "xxx")
    with pytest.raises(RolloutsStopped, match="3 of 3"):
        ledger.check()


def test_check_passes_when_nothing_was_started():
    FailureLedger(FailurePolicy()).check()


@pytest.mark.parametrize("wrong", [{"retries": -1}, {"max_failure_share": 1.5}, {"min_episodes": 0}])
def test_senseless_policies_are_refused(wrong):
    with pytest.raises(ConfigError):
        FailurePolicy(**wrong)
