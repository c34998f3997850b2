"""Compares two sets of episodes over the same tasks, and training with held-out scores."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import fmean

from deedrl.evaluation.figures import Figure, share
from deedrl.evaluation.intervals import mcnemar_exact, paired_difference
from deedrl.tasks.outcomes import completed
from deedrl.types import Record, Trajectory


class Comparison(Record, frozen=True):
    """Completion before and after, over pairs of episodes of the same task."""

    pairs: int
    unpaired: int
    """Judged or not, episodes without a judged partner in the other set; they enter nothing here."""
    before: Figure
    after: Figure
    gained: int
    """Pairs solved only after."""
    lost: int
    """Pairs solved only before."""
    difference: float | None
    """Rate after minus rate before; None without pairs."""
    low: float | None
    """Lower end of the 95 % interval of the difference (Newcombe's for paired proportions)."""
    high: float | None
    p_value: float | None
    """Exact McNemar test of "nothing changed"."""


def compare_completion(before: Sequence[Trajectory], after: Sequence[Trajectory]) -> Comparison:
    """Pairs the n-th episode of each task in `before` with the n-th in `after` and compares completion.

    Repeats of a task count as pairs of their own, which takes them as independent; compare single runs per task where
    that matters.
    """
    first, second = _by_task(before), _by_task(after)
    pairs = [
        (old, new)
        for task_id in first
        for old, new in zip(first[task_id], second.get(task_id, ()), strict=False)
        if old is not None and new is not None
    ]
    cells = Counter(pairs)
    gained, lost = cells[False, True], cells[True, False]
    low, high = paired_difference(cells[True, True], gained, lost, cells[False, False]) if pairs else (None, None)
    return Comparison(
        pairs=len(pairs),
        unpaired=len(before) + len(after) - 2 * len(pairs),
        before=share(old for old, _ in pairs),
        after=share(new for _, new in pairs),
        gained=gained,
        lost=lost,
        difference=(gained - lost) / len(pairs) if pairs else None,
        low=low,
        high=high,
        p_value=mcnemar_exact(lost, gained) if pairs else None,
    )


def _by_task(trajectories: Sequence[Trajectory]) -> dict[str, list[bool | None]]:
    outcomes: dict[str, list[bool | None]] = defaultdict(list)
    for trajectory in trajectories:
        outcomes[trajectory.task_id].append(completed(trajectory))
    return outcomes


class GapAlarm(Record, frozen=True):
    """Training improved while held-out tasks got worse (case F20)."""

    best_heldout: float
    heldout_now: float
    train_then: float
    """Training score at the time of the best held-out score."""
    train_now: float

    def __str__(self) -> str:
        return (
            f"held-out score fell from {self.best_heldout:.3f} to {self.heldout_now:.3f} while the training score rose "
            f"from {self.train_then:.3f} to {self.train_now:.3f}: the policy may be learning the reward rather than "
            f"the job; keep the checkpoint of the best held-out score and look at what the reward pays for"
        )


def gap_alarm(
    train_series: Sequence[float],
    heldout_series: Sequence[float],
    *,
    least_fall: float = 0.05,
    least_rise: float = 0.02,
    window: int = 3,
) -> GapAlarm | None:
    """An alarm when held-out scores fell from their best while training scores rose since; else None.

    Both series are in order of time and span the same stretch of training; they may differ in length (validation is
    rarer). Each is smoothed over the last `window` points, so one bad validation raises no alarm; the fall must reach
    `least_fall` and the rise `least_rise`, in the unit of the series. Fewer than `window` + 1 held-out points or
    `window` training points say nothing.
    """
    if len(heldout_series) <= window or len(train_series) < window:
        return None
    heldout, train = _smoothed(heldout_series, window), _smoothed(train_series, window)
    best = max(range(len(heldout)), key=lambda index: heldout[index])
    then = train[round(best / (len(heldout) - 1) * (len(train) - 1))]
    if heldout[best] - heldout[-1] < least_fall or train[-1] - then < least_rise:
        return None
    return GapAlarm(best_heldout=heldout[best], heldout_now=heldout[-1], train_then=then, train_now=train[-1])


def _smoothed(series: Sequence[float], window: int) -> list[float]:
    """Means over `window` consecutive points; needs at least `window` points."""
    return [fmean(series[end - window : end]) for end in range(window, len(series) + 1)]
