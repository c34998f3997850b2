from __future__ import annotations

import pytest

from deedrl.tasks.statistics import TaskStatistics, count_outcomes, merge_statistics
from deedrl.types import Failure, TerminationReason, Trajectory, Verdict


def test_success_rate_leaves_unscored_episodes_out() -> None:
    assert TaskStatistics(attempts=5, solved=2, unscored=1).success_rate == 0.5


def test_never_tried_is_none_and_never_solved_is_zero() -> None:
    assert TaskStatistics().success_rate is None
    assert TaskStatistics(attempts=2, unscored=2).success_rate is None
    assert TaskStatistics(attempts=2).success_rate == 0.0


@pytest.mark.parametrize("counts", [(1, 2, 0), (2, 1, 2), (-1, 0, 0), (1, -1, 0)])
def test_counts_that_cannot_be_are_refused(counts: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="expected solved"):
        TaskStatistics(attempts=counts[0], solved=counts[1], unscored=counts[2])


def test_merging_sums_and_changes_neither() -> None:
    first = {"a": TaskStatistics(attempts=1, solved=1)}
    second = {"a": TaskStatistics(attempts=2, unscored=1), "b": TaskStatistics(attempts=1)}
    assert merge_statistics(first, second) == {
        "a": TaskStatistics(attempts=3, solved=1, unscored=1),
        "b": TaskStatistics(attempts=1),
    }
    assert first == {"a": TaskStatistics(attempts=1, solved=1)}
    assert merge_statistics() == {}


def test_outcomes_of_trajectories() -> None:
    failure = Failure(kind="OSError", phase="step", message="disk")
    counted = count_outcomes(
        [
            Trajectory(episode_id="1", task_id="a", verdict=Verdict(solved=True, progress=1.0)),
            Trajectory(episode_id="2", task_id="a", verdict=Verdict(solved=False)),
            Trajectory(episode_id="3", task_id="a", failure=failure),
            Trajectory(episode_id="4", task_id="b"),
        ]
    )
    assert counted == {
        "a": TaskStatistics(attempts=3, solved=1, unscored=1),
        "b": TaskStatistics(attempts=1, unscored=1),
    }


def test_F24_parse_failures_count_as_tried_and_not_solved() -> None:
    ended = Trajectory(episode_id="1", task_id="a", termination=TerminationReason.PARSE_FAILURES)
    assert count_outcomes([ended]) == {"a": TaskStatistics(attempts=1)}
