"""The stage `grpo`: sample groups of siblings, compare them, update, validate; the best validated policy stays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import msgspec
from torch import Tensor

from deedrl.pipeline.alarms import anchor_alarm, logprob_gap_alarm, signal_alarm, step_reward_alarm
from deedrl.pipeline.curriculum import Observer
from deedrl.pipeline.dependence import dependence_figures
from deedrl.pipeline.grpo_settings import Grpo
from deedrl.pipeline.online import (
    UNOBSERVED,
    Reference,
    TaskSource,
    staleness,
    train_online,
    update_settings,
    warn,
)
from deedrl.pipeline.rates import step_rate
from deedrl.pipeline.session import Session
from deedrl.pipeline.stage_curriculum import task_source
from deedrl.pipeline.step_episodes import episode_figures, play_groups
from deedrl.rollouts.failures import drop_broken_groups
from deedrl.training import advantages
from deedrl.training.credit import (
    Company,
    Comparison,
    Credit,
    anchor_credit,
    anchored_turns,
    has_signal,
    outcome_credit,
    return_credit,
)
from deedrl.training.kl_reward import turn_divergences
from deedrl.training.learner import Learner
from deedrl.training.losses import Silent
from deedrl.training.objectives import DIVERGENCES
from deedrl.training.policy_gradient import update_policy
from deedrl.training.selection import SelectionCounts, group_trajectories, select, whitened_samples
from deedrl.training.turn_rewards import Overlong, has_step_rewards, turn_rewards
from deedrl.types import Task, TerminationReason, Trajectory, TrajectoryGroup

ESTIMATORS = {"grpo": advantages.grpo, "dr_grpo": advantages.dr_grpo, "rloo": advantages.rloo}
CREDITS: Mapping[str, Callable[[Grpo], Credit]] = {
    "outcome": lambda stage: outcome_credit,
    "returns": lambda stage: partial(return_credit, gamma=stage.gamma),
    "anchors": lambda stage: partial(anchor_credit, gamma=stage.gamma, anchor_weight=stage.anchor_weight),
}

Sampled = tuple[list[TrajectoryGroup], dict[str, float]]
"""The groups of a step, and figures of its episodes."""


def grpo_stage(session: Session, stage: Grpo) -> dict[str, float]:
    """Trains on the whole training pool, as the stage's curriculum draws from it; returns the last figures."""
    return train_policy(session, stage, *task_source(session, stage))


def train_policy(session: Session, stage: Grpo, tasks: TaskSource, observer: Observer = UNOBSERVED) -> dict[str, float]:
    """`stage.steps` updates from where the stage stopped; ends with the best validated weights, saved."""
    learner = Learner(session.loaded, temperature=session.sampling(stage.temperature).temperature)
    supply = stage.tasks_per_step * (1 + stage.refill_attempts)
    return train_online(
        session,
        stage,
        learner,
        lambda step, weights: tasks(step, supply, weights),
        partial(sample_groups, session, stage, observer),
        partial(_update, session, stage, learner),
        observer,
    )


def comparison(stage: Grpo, max_tokens: int) -> Comparison:
    """How the stage compares siblings; `max_tokens` is the limit of a conversation."""
    overlong = Overlong(max_tokens, stage.overlong_buffer, stage.overlong_penalty) if stage.overlong_penalty else None
    return Comparison(
        estimator=ESTIMATORS[stage.advantage],
        threshold=stage.zero_variance_threshold,
        credit=CREDITS[stage.credit](stage),
        rewards=partial(turn_rewards, step_weight=stage.step_reward_weight, overlong=overlong),
        left_out=[TerminationReason(limit) for limit in stage.left_out_at],
    )


# ---------------------------------------------------------------- one step


def _update(
    session: Session, stage: Grpo, learner: Learner, step: int, sampled: Sampled, reference: Reference
) -> dict[str, float]:
    """Selects and updates; returns the step's figures."""
    groups, figures = sampled
    played = [trajectory for group in groups for trajectory in group.trajectories]
    figures = figures | dependence_figures(session, stage, learner, played, step)
    stage = msgspec.structs.replace(stage, kl_coefficient=reference.kl_coefficient)
    max_tokens = session.recipe.limits.max_tokens_per_episode
    compare, held = comparison(stage, max_tokens), reference.parameters if stage.kl_coefficient else None
    if held is not None and stage.kl_in == "reward":
        compare, figures = with_kl(stage, learner, groups, compare, held, max_tokens, figures)
        held = None
    selection = select(groups, compare, max_tokens=max_tokens, keep_zero_variance=stage.kl_on_zero_variance)
    rate = step_rate(stage, step, stage.steps)
    settings = update_settings(stage, rate)
    counts = selection.counts
    silent, samples = silent_part(stage, counts), selection.samples
    if stage.whiten_advantages:
        samples = tuple(whitened_samples(samples, round(silent.action_tokens)))
    updated = update_policy(learner, samples, settings, held, silent, at_reference=step == 0)
    trained = {sample.episode_id for sample in selection.samples}
    behind = staleness(stage.title, step, [t for t in played if t.episode_id in trained])
    no_signal = signal_alarm(figures, counts, session.recipe.sampling.max_tokens)
    company = anchored_turns(groups)
    warn(
        session,
        stage.title,
        no_signal,
        *credit_alarms(stage, groups, company),
        # Against older weights the gap is what the policy has learnt since.
        None if behind else logprob_gap_alarm(updated, session.loaded.model.dtype),
    )
    return (
        figures
        | updated
        | ({"anchored_share": company.share} if stage.credit == "anchors" else {})
        | ({"kl_coefficient": stage.kl_coefficient} if stage.kl_target is not None else {})
        | {
            "learning_rate": rate,
            "staleness": behind,
            "groups": float(counts.groups),
            "zero_variance_groups": float(counts.zero_variance),
            "unscored_episodes": float(counts.unscored),
            "left_out_episodes": float(counts.left_out),
            "split_trajectories": float(counts.samples.split_trajectories),
            "too_long_samples": float(counts.samples.too_long),
        }
    )


def with_kl(
    stage: Grpo,
    learner: Learner,
    groups: Sequence[TrajectoryGroup],
    compare: Comparison,
    reference: Sequence[Tensor],
    max_tokens: int,
    figures: Mapping[str, float],
) -> tuple[Comparison, dict[str, float]]:
    """The comparison with the KL divergence to `reference` taken from rewards, and figures with its mean per token."""
    episodes = [t for group in groups for t in group.trajectories if compare.compares(t)]
    sums = turn_divergences(
        learner,
        episodes,
        reference,
        DIVERGENCES[stage.kl_estimator],
        max_tokens=max_tokens,
        micro_batch_tokens=stage.micro_batch_tokens,
    )
    penalties = {name: [stage.kl_coefficient * value for value in turns] for name, turns in sums.items()}
    tokens = sum(trajectory.sampled_tokens for trajectory in episodes)
    mean = sum(value for turns in sums.values() for value in turns) / max(tokens, 1)
    return replace(compare, penalties=penalties), {**figures, "kl": mean}


def credit_alarms(stage: Grpo, groups: Sequence[TrajectoryGroup], company: Company) -> tuple[str | None, str | None]:
    """What is said of rewards of single steps that are not used, and of credit that finds nothing to compare."""
    episodes = [trajectory for group in groups for trajectory in group.trajectories]
    paid = 0 if stage.step_reward_weight else sum(map(has_step_rewards, episodes))
    return step_reward_alarm(paid, len(episodes)), anchor_alarm(company) if stage.credit == "anchors" else None


def silent_part(stage: Grpo, counts: SelectionCounts) -> Silent:
    """Episodes without a signal that are part of the step's `tasks_per_step` groups, and were not replaced."""
    in_place = max(stage.tasks_per_step - (counts.groups - counts.zero_variance - counts.too_small), 0)
    share = min(in_place / counts.zero_variance, 1.0) if counts.zero_variance else 0.0
    return Silent(counts.silent_episodes, counts.silent_tokens) * share


def sample_groups(session: Session, stage: Grpo, observer: Observer, step: int, supply: Sequence[Task]) -> Sampled:
    """The step's groups, those without a signal replaced by fresh tasks of `supply` up to `refill_attempts` times."""
    wanted = stage.tasks_per_step
    kept: list[TrajectoryGroup] = []
    silent: list[TrajectoryGroup] = []
    episodes: list[Trajectory] = []
    dropped = 0
    compare = comparison(stage, session.recipe.limits.max_tokens_per_episode)
    for _ in range(1 + stage.refill_attempts):
        missing, supply = supply[: wanted - len(kept)], supply[wanted - len(kept) :]
        if not missing:
            break
        played = play_groups(session, stage, missing, step)
        episodes += played
        whole, broken = drop_broken_groups(played)
        dropped += broken.groups
        for group in group_trajectories(whole):
            telling = has_signal(compare.advantages(group))
            (kept if telling else silent).append(group)
    observer.saw(step, episodes)
    return kept + silent, episode_figures(episodes, dropped, session.recipe.learned_terms)
