"""Signs that a policy is about to break, read from the figures of a stage's steps.

docs/stability.md has the table, and the runs that the thresholds were calibrated on. Each alarm takes the values of
steps in their order, the newest last, and speaks at the step that crosses its threshold, not at every one beyond it.
It looks at the first values and the latest ones only, so that its cost does not grow with the run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean, median, median_low

from deedrl.pipeline.stage_figures import StageFigures

Series = Sequence[float]

EARLY_STEPS = 3
"""First steps whose mean is what later ones are compared with."""
ENTROPY_FALL, ENTROPY_RISE = 0.25, 3.0
"""Shares of its early value between which entropy may move."""
RATIO_SHARE = 0.02
"""Share of action tokens whose importance ratio may lie outside the bounds of `deedrl.training.losses`."""
MOST_KL = 0.1
"""Nats an action token from the policy that the stage started with, by the median of the latest `KL_STEPS`: the usual
estimate has a heavy tail, and one token that the start finds absurd can carry a step."""
KL_STEPS = 3
REWARD_FALL = 1.5
"""Standard errors, at their largest for rewards in [0, 1], by which a step's mean reward may lie below early ones."""
SPIKE = 8.0
"""Times the usual gradient norm."""
USUAL_STEPS = 20
"""Latest steps whose median gradient norm is the usual one; at least `FEWEST_USUAL`."""
FEWEST_USUAL = 5
COLLAPSE = 0.2
"""Share of its early value below which the dependence of reasoning on input has collapsed; both are means of
`EARLY_STEPS` values."""
LEAST_DEPENDENCE = 0.1
"""Nats, or retrieval above chance: with less in the beginning there is nothing to lose."""
REWARD_HELD = 0.9
"""Share of its early value from which on the reward has not fallen."""


def stability_alarms(seen: StageFigures, newest: Mapping[str, float | None], tasks: int) -> list[str]:
    """What a step of a stage says: `newest` are its figures, which `seen` holds too; `tasks` is how many it has."""
    alarms: dict[str, Callable[[Series], str | None]] = {
        "reward": partial(reward_alarm, held_out=seen["validation_completion"], tasks=tasks),
        "entropy": entropy_alarm,
        "kl": divergence_alarm,
        "ratio_outside": ratio_alarm,
        "grad_norm": gradient_alarm,
        "skipped_update": skipped_alarm,
    }
    for name in ("reasoning_information", "reasoning_retrieval"):
        alarms[name] = partial(collapse_alarm, reward=seen["reward"])
    told = [name for name in alarms if (value := newest.get(name)) is not None and math.isfinite(value)]
    return [said for name in told if (said := alarms[name](seen[name])) is not None]


def reward_alarm(reward: Series, held_out: Series, tasks: int) -> str | None:
    """Speaks when a step earns less than the first ones by more than its tasks explain, and validations do not
    contradict.

    Rewards in [0, 1] have a variance of at most mean × (1 − mean), and so has the mean of a group of siblings.
    """

    def early(count: int) -> Series:
        return reward[: min(count - 1, EARLY_STEPS)]

    def fell(count: int) -> bool:
        first = early(count)
        if not first:
            return False
        now = reward[count - 1]
        mean = (sum(first) + now) / (len(first) + 1)
        error = math.sqrt(max(mean * (1 - mean), 0.0) * (1 / len(first) + 1) / tasks)
        return fmean(first) - now > REWARD_FALL * error

    improved = len(held_out) > 1 and held_out[-1] >= held_out[0]
    if improved or not _newly(len(reward), fell):
        return None
    validated = f"validations went from {held_out[0]:.1%} to {held_out[-1]:.1%}, " if len(held_out) > 1 else ""
    return (
        f"the mean reward of a step fell to {reward[-1]:.2f}, {fmean(early(len(reward))):.2f} in the first ones: more "
        f"than {tasks} other tasks explain; {validated}so that updates may be undoing what the policy knew. End the "
        "run if the next steps say the same (the best validated policy is kept), and lower learning_rate or take more "
        "tasks_per_step"
    )


def entropy_alarm(entropy: Series) -> str | None:
    """Speaks when entropy (nats a token) has left what it was in the first steps far below or far above."""

    def moved(count: int) -> float:
        """The newest of `count` values as a multiple of the early ones; 1 while there are too few."""
        early = fmean(entropy[:EARLY_STEPS]) if count > EARLY_STEPS else 0.0
        return entropy[count - 1] / early if early > 0 else 1.0

    fell = _newly(len(entropy), lambda count: moved(count) < ENTROPY_FALL)
    if not fell and not _newly(len(entropy), lambda count: moved(count) > ENTROPY_RISE):
        return None
    change = (
        f"the policy's entropy went from {fmean(entropy[:EARLY_STEPS]):.3g} nats a token to {entropy[-1]:.3g}, "
        f"expected {ENTROPY_FALL:g} to {ENTROPY_RISE:g} times as much"
    )
    if fell:
        return (
            f"{change}: siblings become alike and little is left to learn from; lower learning_rate, or raise "
            "clip_high, kl_coefficient or the temperature"
        )
    return f"{change}: it draws ever more at random; lower learning_rate or raise kl_coefficient"


def divergence_alarm(kl: Series) -> str | None:
    """Speaks when the policy has gone far from the one that the stage started with."""

    def latest(count: int) -> float:
        return median_low(kl[max(count - KL_STEPS, 0) : count]) if count else 0.0

    if not _newly(len(kl), lambda count: latest(count) > MOST_KL):
        return None
    return (
        f"the policy is {latest(len(kl)):.2g} nats a token from the one it started from, expected at most {MOST_KL:g}: "
        "look at validations, and read some episodes; if they are worse, raise kl_coefficient (or set kl_target) or "
        "lower learning_rate"
    )


def ratio_alarm(outside: Series) -> str | None:
    """Speaks when more than a few tokens of a step were far more or far less likely than when they were sampled."""
    if not _newly(len(outside), lambda count: count > 0 and outside[count - 1] > RATIO_SHARE):
        return None
    return (
        f"{outside[-1]:.1%} of action tokens had become less than half or more than twice as likely as when they were "
        f"sampled, expected at most {RATIO_SHARE:.1%}: clipping can no longer undo it; take fewer updates_per_batch or "
        "mini_batches, or a lower learning_rate"
    )


def gradient_alarm(norms: Series) -> str | None:
    """Speaks when the gradient norm before clipping is many times the usual one."""
    earlier = norms[-1 - USUAL_STEPS : -1]
    usual = median(earlier) if len(earlier) >= FEWEST_USUAL else 0.0
    if usual <= 0 or norms[-1] <= SPIKE * usual:
        return None
    return (
        f"the gradient norm is {norms[-1]:.3g}, {norms[-1] / usual:.0f} times its median of the {len(earlier)} steps "
        f"before, expected at most {SPIKE:g} times: look at the rewards of the step's episodes; if it comes again, "
        "lower learning_rate or max_grad_norm"
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

    def collapsed(count: int) -> bool:
        return count >= 2 * EARLY_STEPS and fmean(dependence[count - EARLY_STEPS : count]) < COLLAPSE * early

    if early < LEAST_DEPENDENCE or not _newly(len(dependence), collapsed):
        return None
    if reward and fmean(reward[-EARLY_STEPS:]) < REWARD_HELD * fmean(reward[:EARLY_STEPS]):
        return None
    now = fmean(dependence[-EARLY_STEPS:])
    return (
        f"reasoning depends on its input less than {COLLAPSE:g} times as much as in the first steps ({early:.2g} then, "
        f"{now:.2g} now) while the reward holds: it becomes the same whatever the job; read some episodes, go back to "
        "an earlier checkpoint, lower learning_rate, and leave out groups that teach little (zero_variance_threshold)"
    )


def _newly(count: int, holds: Callable[[int], bool]) -> bool:
    """Whether `holds` is true of the first `count` values of a series, and was not of one fewer."""
    return holds(count) and not holds(count - 1)
