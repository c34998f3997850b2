"""Signs that a policy is about to break, read from the figures of a stage's steps: docs/stability.md has the table.

Each alarm takes the values of steps in their order, the newest last, and speaks at the step that crosses its threshold,
not at every one beyond it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean, median

from deedrl.tracking.jsonl import read_metrics

Series = Sequence[float]

EARLY_STEPS = 3
"""First steps whose mean is what later ones are compared with."""
ENTROPY_FALL, ENTROPY_RISE = 0.25, 3.0
"""Shares of its early value between which entropy may move."""
RATIO_SHARE = 0.02
"""Share of action tokens whose importance ratio may lie outside the bounds of `deedrl.training.losses`."""
SPIKE = 5.0
"""Times the usual gradient norm."""
USUAL_STEPS = 20
"""Latest steps whose median gradient norm is the usual one; at least `FEWEST_USUAL`."""
FEWEST_USUAL = 5
COLLAPSE = 0.5
"""Share of its early value below which the dependence of reasoning on input has collapsed; both are means of
`EARLY_STEPS` values."""
LEAST_DEPENDENCE = 0.1
"""Nats, or retrieval above chance: with less in the beginning there is nothing to lose."""
REWARD_HELD = 0.9
"""Share of its early value from which on the reward has not fallen."""


def stability_alarms(folder: Path, stage: str, step: int) -> list[str]:
    """What the metrics of the run in `folder` say of `stage` at its newest step (from 1)."""
    logged = read_metrics(folder)

    def series(name: str) -> list[float]:
        values = sorted(logged.get(f"{stage}/{name}", {}).items())
        return [value for at, value in values if at <= step and value is not None]

    alarms: dict[str, Callable[[Series], str | None]] = {
        "entropy": entropy_alarm,
        "ratio_outside": ratio_alarm,
        "grad_norm": gradient_alarm,
        "skipped_update": skipped_alarm,
    }
    for name in ("reasoning_information", "reasoning_retrieval"):
        alarms[name] = partial(collapse_alarm, reward=series("reward"))
    newest = [name for name in alarms if logged.get(f"{stage}/{name}", {}).get(step) is not None]
    return [said for name in newest if (said := alarms[name](series(name))) is not None]


def entropy_alarm(entropy: Series) -> str | None:
    """Speaks when entropy (nats a token) has left what it was in the first steps far below or far above."""

    def moved(values: Series) -> float:
        """The newest as a multiple of the early ones; 1 while there are too few."""
        early = fmean(values[:EARLY_STEPS]) if len(values) > EARLY_STEPS else 0.0
        return values[-1] / early if early > 0 else 1.0

    fell = _newly(entropy, lambda values: moved(values) < ENTROPY_FALL)
    if not fell and not _newly(entropy, lambda values: moved(values) > ENTROPY_RISE):
        return None
    change = f"the policy's entropy went from {fmean(entropy[:EARLY_STEPS]):.3g} nats a token to {entropy[-1]:.3g}"
    if fell:
        return (
            f"{change}: siblings become alike and little is left to learn from; lower learning_rate, or raise "
            "clip_high, kl_coefficient or the temperature"
        )
    return f"{change}: it draws ever more at random; lower learning_rate or raise kl_coefficient"


def ratio_alarm(outside: Series) -> str | None:
    """Speaks when more than a few tokens of a step were far more or far less likely than when they were sampled."""
    if not _newly(outside, lambda values: bool(values) and values[-1] > RATIO_SHARE):
        return None
    return (
        f"{outside[-1]:.1%} of action tokens had become less than half or more than twice as likely as when they were "
        "sampled, which clipping can no longer undo; take fewer updates_per_batch or mini_batches, or a lower "
        "learning_rate"
    )


def gradient_alarm(norms: Series) -> str | None:
    """Speaks when the gradient norm before clipping is many times the usual one."""
    earlier = norms[-1 - USUAL_STEPS : -1]
    usual = median(earlier) if len(earlier) >= FEWEST_USUAL else 0.0
    if usual <= 0 or norms[-1] <= SPIKE * usual:
        return None
    return (
        f"the gradient norm is {norms[-1]:.3g}, {norms[-1] / usual:.0f} times its median of the {len(earlier)} steps "
        "before; if it comes again, lower learning_rate or max_grad_norm, and look at the step's episodes"
    )


def skipped_alarm(skipped: Series) -> str | None:
    """Speaks when updates were left out because their gradient was not finite."""
    if not skipped[-1]:
        return None
    return (
        f"{skipped[-1]:.0f} updates of this step were left out, for their gradient was not finite; lower "
        "learning_rate, or set model.dtype to fp32"
    )


def collapse_alarm(dependence: Series, reward: Series) -> str | None:
    """Speaks when reasoning depends far less on its input than at first, and the reward does not show it yet."""
    early = fmean(dependence[:EARLY_STEPS])

    def collapsed(values: Series) -> bool:
        return len(values) >= 2 * EARLY_STEPS and fmean(values[-EARLY_STEPS:]) < COLLAPSE * early

    if early < LEAST_DEPENDENCE or not _newly(dependence, collapsed):
        return None
    if reward and fmean(reward[-EARLY_STEPS:]) < REWARD_HELD * fmean(reward[:EARLY_STEPS]):
        return None
    now = fmean(dependence[-EARLY_STEPS:])
    return (
        f"reasoning depends on its input less than half as much as in the first steps ({early:.2g} then, {now:.2g} "
        "now) while the reward holds: it becomes the same whatever the job; read some episodes, go back to an earlier "
        "checkpoint, lower learning_rate, and leave out groups that teach little (zero_variance_threshold)"
    )


def _newly(series: Series, holds: Callable[[Series], bool]) -> bool:
    """Whether `holds` is true of the series, and was not of the series without its newest value."""
    return holds(series) and not holds(series[:-1])
