"""What a stage says out loud when its figures show that something is wrong; None where nothing is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from deedrl.evaluation.compare import gap_alarm
from deedrl.evaluation.metrics import GroupMetrics, low_tool_use
from deedrl.pipeline.recipe import Recipe
from deedrl.pipeline.stage_figures import StageFigures
from deedrl.training.credit import Company
from deedrl.training.episodes import EpisodeCounts
from deedrl.training.selection import SelectionCounts
from deedrl.types import TerminationReason, Trajectory

LOGPROB_GAP, EXACT_LOGPROB_GAP = 0.05, 1e-3
"""Nats per action token between sampler and trainer, in bf16 and in float32; rounding gave up to 0.008 and 3e-7."""
CUT_SHARE = 0.9
"""Share of completions cut by the limit from which on that is named as the reason for a step without signal."""
BOOTSTRAPPED_SHARE = 0.5
"""Share of episodes that a limit cut from which on PPO says so."""
ANCHORED_SHARE = 0.05
"""Share of turns after the first in whose state a sibling was too, below which credit by anchors says so."""
FEWEST_TURNS = 8
"""Of fewer turns after the first such a share says nothing."""
TIMEOUT_SHARE = 0.02
"""Share of episodes that ran out of time from which on that is said: they count as not solved."""

DISPLACEMENT = -0.1
"""Nats per action token that chosen episodes lose against the start, on average, from which on DPO says so: an episode
of 80 tokens is then a three-thousandth as likely as it was."""


def mute_alarm(episodes: Sequence[Trajectory], recipe: Recipe) -> str | None:
    """Speaks when episodes ended before their first turn for want of context."""
    mute = sum(not t.steps and t.termination is TerminationReason.TOKEN_LIMIT for t in episodes)
    if not mute:
        return None
    return (
        f"{mute} of {len(episodes)} episodes ended before their first turn: their prompt and "
        f"sampling.max_tokens ({recipe.sampling.max_tokens}) do not fit the model's context"
    )


def timeout_alarm(episodes: Sequence[Trajectory], recipe: Recipe) -> str | None:
    """Speaks when a time limit, and not the policy's doing, decided about many episodes."""
    late = [t for t in episodes if t.termination is TerminationReason.TIMEOUT]
    if not late or len(late) < TIMEOUT_SHARE * len(episodes):
        return None
    limits = recipe.limits
    waited = sum(t.duration_s >= limits.episode_timeout_s for t in late)
    return (
        f"{len(late)} of {len(episodes)} episodes ran out of time and count by the state they left: {waited} at "
        f"limits.episode_timeout_s ({limits.episode_timeout_s:g} s), which a slow or busy machine needs higher, or "
        f"concurrency ({recipe.concurrency}) lower; {len(late) - waited} at the limit of one tool call"
    )


def signal_alarm(figures: Mapping[str, float], counts: SelectionCounts, max_tokens: int) -> str | None:
    """The likely reason when no group of a step carried a signal, or when every completion was cut (case C24)."""
    silent = counts.groups > 0 and counts.zero_variance + counts.too_small >= counts.groups
    if not silent:
        return cut_alarm(figures, max_tokens)
    cut = figures["cut_share"]
    if cut > CUT_SHARE:
        reason = _cut_words(cut, max_tokens)
    elif figures["completion"] == 0:
        reason = "no episode succeeds; give easier tasks or a stronger cold start"
    else:
        reason = "siblings earn the same; give harder tasks or a higher temperature"
    return f"no group of this step has a signal: {reason}"


def cut_alarm(figures: Mapping[str, float], max_tokens: int) -> str | None:
    """Speaks when the limit of a turn cut every completion (case C24)."""
    cut = figures["cut_share"]
    return _cut_words(cut, max_tokens) if cut >= 1.0 else None


def _cut_words(share: float, max_tokens: int) -> str:
    return f"{share:.0%} of completions hit sampling.max_tokens ({max_tokens}); raise it"


def bootstrap_alarm(counts: EpisodeCounts) -> str | None:
    """Speaks when the critic's own word stands for most outcomes, or when nothing is left to learn from."""
    if not counts.episodes:
        return "no episode of this step can be learnt from: none was scored, sampled freely and within the limits"
    if counts.cut <= BOOTSTRAPPED_SHARE * counts.episodes:
        return None
    return (
        f"a limit cut {counts.cut} of {counts.episodes} episodes, and the critic's value of their last state takes the "
        "place of their reward, so that little grounds it; raise the limits, or set bootstrap_at to [] if failing "
        "within them is failing the job"
    )


def step_reward_alarm(unused: int, episodes: int) -> str | None:
    """Speaks when the environment pays for single steps and the stage does not use it."""
    if not unused:
        return None
    return (
        f"the environment pays for single steps in {unused} of {episodes} episodes, and this stage learns from the "
        "whole episode's reward alone; set step_reward_weight above 0 (in grpo with credit returns or anchors, or it "
        "will not be told which turn earned it), or make it a term of the rubric"
    )


def anchor_alarm(company: Company) -> str | None:
    """Speaks when credit by anchors finds hardly any turn to compare with another."""
    if company.turns < FEWEST_TURNS or company.share >= ANCHORED_SHARE:
        return None
    return (
        f"a sibling was in the state of {company.share:.0%} of the turns after the first, so credit by anchors adds "
        "little to credit by outcome; let state_hash leave out what does not matter and tools answer alike in equal "
        "states, or set credit to outcome or returns"
    )


def displacement_alarm(figures: Mapping[str, float]) -> str | None:
    """Speaks when chosen episodes become less likely while the margin grows (Razin et al. 2024, arXiv 2410.08847)."""
    change = figures["chosen_change"]
    if change > DISPLACEMENT or figures["reward_margin"] <= 0:
        return None
    return (
        f"chosen episodes lost {-change:.2g} nats a token since the stage began while their margin over rejected ones "
        f"({-figures['rejected_change']:.2g} nats lost) grew to {figures['reward_margin']:.3g}: the policy moves away "
        "from both, to what no pair speaks of; set sft_coefficient (1.0, say), lower learning_rate or raise beta"
    )


def agreement_alarm(accuracies: Sequence[float], max_fall: float) -> str | None:
    """Speaks when the latest accuracy lies more than `max_fall` below the best one before it."""
    if len(accuracies) < 2 or max(accuracies[:-1]) - accuracies[-1] <= max_fall:
        return None
    return (
        f"pairwise accuracy on the calibration set fell to {accuracies[-1]:.0%} from {max(accuracies[:-1]):.0%}: what "
        "is learnt now is not what the labels say; take fewer steps or a lower learning_rate, or look at new labels"
    )


def keeps_falling(accuracies: Sequence[float], max_fall: float, patience: int) -> bool:
    """Whether each of the last `patience` accuracies was an alarm; never with a patience of 0."""
    ends = range(len(accuracies) - patience + 1, len(accuracies) + 1)
    return patience > 0 and all(agreement_alarm(accuracies[: max(end, 0)], max_fall) for end in ends)


def drift_alarm(steps: Sequence[tuple[float, float]], pairs: int, max_fall: float) -> str | None:
    """Speaks when a reward model agrees less with the verifier on fresh episodes than it did when the stage began.

    `steps` holds of each step the pairs of a solved and a failed sibling, and how many of them the model ranks right.
    The first steps and the latest ones are compared, as many of each as it takes for `pairs` of them.
    """
    first, latest = _as_many(steps, pairs), _as_many(steps[::-1], pairs)
    if first is None or latest is None or first - latest <= max_fall:
        return None
    return (
        f"the reward model ranks {latest:.0%} of the latest solved and failed siblings right, and {first:.0%} when the "
        "stage began: the policy has left what the model was trained on; label new episodes (deedrl label) and refresh "
        "it (deedrl reward-model refresh), or lower its weight in the rubric"
    )


def _as_many(steps: Sequence[tuple[float, float]], pairs: int) -> float | None:
    """Share ranked right in the first steps that have `pairs` pairs together; None if all steps have fewer."""
    compared = agreeing = 0.0
    for count, right in steps:
        compared, agreeing = compared + count, agreeing + right
        if compared >= pairs:
            return agreeing / compared
    return None


def logprob_gap_alarm(figures: Mapping[str, float], dtype: torch.dtype) -> str | None:
    """Speaks when sampler and trainer disagree on what was sampled (case B17); `dtype` is that of the weights."""
    gap = figures.get("logprob_gap", 0.0)
    most = EXACT_LOGPROB_GAP if dtype is torch.float32 else LOGPROB_GAP
    if gap <= most:
        return None
    return (
        f"log-probabilities as sampled and as recomputed differ by {gap:.3g} nats a token on average, expected at most "
        f"{most:g}: the episodes are not quite this policy's; if model.dtype is bf16 set it to fp32, and report it if "
        "that does not help"
    )


def held_out_alarm(seen: StageFigures) -> str | None:
    """Speaks when the stage's reward rose while its validations fell (case F20)."""
    alarm = gap_alarm(seen["reward"], seen["validation_completion"])
    return str(alarm) if alarm else None


def guessing_alarm(by_family: Mapping[str, GroupMetrics]) -> str | None:
    """Names the families in which fewer than half of the episodes looked before they acted (case F10)."""
    found = low_tool_use(by_family)
    return f"the policy may be guessing: {'; '.join(found)}" if found else None
