"""How much figures move when the same tasks are run again."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import fmean, stdev, variance

from deedrl.tasks.outcomes import completed
from deedrl.types import Record, Trajectory


class Spread(Record, frozen=True):
    """Spread over `repeats` runs of the same `tasks`."""

    tasks: int
    """Tasks with a judged episode in every repeat; only these enter."""
    repeats: int
    task_variance: float
    """Mean over tasks of the unbiased variance of success between repeats; 0 when each task always ends alike,
    at most 0.5 for two repeats and nearing 0.25 for many."""
    completion_rates: tuple[float, ...]
    """Completion rate of each repeat."""
    completion_sd: float
    """Sample standard deviation of `completion_rates`."""


def spread_over_repeats(trajectories: Sequence[Trajectory]) -> Spread | None:
    """Spread between repeats, or None when no two judged episodes share a task.

    The n-th episode of a task in the order given belongs to repeat n, errored ones included, so that a lost episode
    does not shift the others. The number of repeats is the commonest number of episodes per task.
    """
    runs: dict[str, list[bool | None]] = defaultdict(list)
    for trajectory in trajectories:
        runs[trajectory.task_id].append(completed(trajectory))
    sizes = Counter(len(outcomes) for outcomes in runs.values())
    repeats = max(sizes, key=lambda size: (sizes[size], size), default=0)
    rows: list[list[float]] = []
    for outcomes in runs.values():
        judged = [float(outcome) for outcome in outcomes[:repeats] if outcome is not None]
        if len(judged) == repeats:
            rows.append(judged)
    if repeats < 2 or not rows:
        return None
    rates = tuple(fmean(row[index] for row in rows) for index in range(repeats))
    return Spread(
        tasks=len(rows),
        repeats=repeats,
        task_variance=fmean(variance(row) for row in rows),
        completion_rates=rates,
        completion_sd=stdev(rates),
    )
