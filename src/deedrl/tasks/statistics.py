"""How often each task was tried and solved; records that are merged, never changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from deedrl.types import Record, Trajectory


class TaskStatistics(Record, frozen=True, kw_only=True):
    """Episodes of one task."""

    attempts: int = 0
    """All episodes, the unscored ones included."""
    solved: int = 0
    unscored: int = 0
    """Episodes without a verdict (infrastructure trouble)."""

    def __post_init__(self) -> None:
        if min(self.attempts, self.solved, self.unscored) < 0 or self.solved + self.unscored > self.attempts:
            raise ValueError(
                f"expected solved + unscored to be at most attempts and none below 0, got solved={self.solved}, "
                f"unscored={self.unscored}, attempts={self.attempts}"
            )

    @property
    def scored(self) -> int:
        return self.attempts - self.unscored

    @property
    def success_rate(self) -> float | None:
        """Solved over scored episodes; None if no episode was scored, which is not 0."""
        return self.solved / self.scored if self.scored else None

    def merged(self, other: TaskStatistics) -> TaskStatistics:
        """The sum of both."""
        return TaskStatistics(
            attempts=self.attempts + other.attempts,
            solved=self.solved + other.solved,
            unscored=self.unscored + other.unscored,
        )


def merge_statistics(*parts: Mapping[str, TaskStatistics]) -> dict[str, TaskStatistics]:
    """Sums per task id over all `parts`; none of them is changed."""
    total: dict[str, TaskStatistics] = {}
    for part in parts:
        for task_id, statistics in part.items():
            total[task_id] = total[task_id].merged(statistics) if task_id in total else statistics
    return total


def count_outcomes(trajectories: Iterable[Trajectory]) -> dict[str, TaskStatistics]:
    """Statistics per task id; a trajectory without a verdict counts as unscored, not as failed."""
    return merge_statistics(*({trajectory.task_id: _of_one(trajectory)} for trajectory in trajectories))


def _of_one(trajectory: Trajectory) -> TaskStatistics:
    unscored = trajectory.errored or trajectory.solved is None
    return TaskStatistics(attempts=1, solved=int(not unscored and bool(trajectory.solved)), unscored=int(unscored))
