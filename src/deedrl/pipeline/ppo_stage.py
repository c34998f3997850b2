"""The stage `ppo`: sample episodes, let a critic say what states are worth, update both, validate."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import msgspec

from deedrl.pipeline.alarms import bootstrap_alarm, cut_alarm, logprob_gap_alarm, step_reward_alarm
from deedrl.pipeline.curriculum import Observer
from deedrl.pipeline.dependence import dependence_figures
from deedrl.pipeline.online import Reference, staleness, train_online, update_settings, warn
from deedrl.pipeline.ppo_settings import Ppo
from deedrl.pipeline.rates import step_rate
from deedrl.pipeline.session import Session
from deedrl.pipeline.stage_curriculum import task_source
from deedrl.pipeline.step_episodes import episode_figures, play_groups
from deedrl.rollouts.failures import drop_broken_groups
from deedrl.seeding import stream
from deedrl.training.critic import ActorCritic, Critic, HeadCritic, adapter_critic
from deedrl.training.episodes import EpisodeCounts, RewardedEpisode, rewarded_episodes
from deedrl.training.learner import Learner
from deedrl.training.ppo import PpoUpdate, update_actor_critic, warm_up_critic
from deedrl.types import Task, TerminationReason, Trajectory


def ppo_stage(session: Session, stage: Ppo) -> dict[str, float]:
    """Trains on tasks of the whole training pool; returns the last figures. The critic ends with the stage."""
    policy = Learner(session.loaded, temperature=session.sampling(stage.temperature).temperature)
    with critic_of(policy, stage) as critic:
        learner = ActorCritic(critic)
        tasks, observer = task_source(session, stage)
        return train_online(
            session,
            stage,
            learner,
            lambda step, weights: tasks(step, stage.tasks_per_step, weights),
            partial(_sample, session, stage, observer),
            partial(_train_step, session, stage, learner),
            observer,
        )


def _sample(session: Session, stage: Ppo, observer: Observer, step: int, drawn: Sequence[Task]) -> list[Trajectory]:
    played = play_groups(session, stage, drawn, step)
    observer.saw(step, played)
    return played


def critic_of(policy: Learner, stage: Ppo) -> AbstractContextManager[Critic]:
    """The critic that the stage asks for, inside a block."""
    match stage.critic:
        case "value_head":
            return nullcontext(HeadCritic(policy, coefficient=stage.value_coefficient))
        case "adapter":
            return adapter_critic(policy)


def _train_step(
    session: Session, stage: Ppo, learner: ActorCritic, step: int, played: list[Trajectory], reference: Reference
) -> dict[str, float]:
    """Updates; returns the step's figures."""
    stage = msgspec.structs.replace(stage, kl_coefficient=reference.kl_coefficient)
    whole, broken = drop_broken_groups(played)
    episodes, counts = rewarded_episodes(
        whole,
        max_tokens=session.recipe.limits.max_tokens_per_episode,
        step_weight=stage.step_reward_weight,
        cut_by=[TerminationReason(limit) for limit in stage.bootstrap_at],
    )
    learning = step - stage.value_warmup_steps
    rate = step_rate(stage, learning, stage.steps - stage.value_warmup_steps) if learning >= 0 else 0.0
    figures = episode_figures(played, broken.groups, session.recipe.learned_terms)
    figures |= dependence_figures(session, stage, learner.policy, whole, step)
    updated = _update(session, stage, learner, episodes, reference, step, rate)
    behind = staleness(stage.title, step, whole)
    warn(
        session,
        stage.title,
        cut_alarm(figures, session.recipe.sampling.max_tokens),
        bootstrap_alarm(counts),
        step_reward_alarm(0 if stage.step_reward_weight else counts.with_step_rewards, len(whole)),
        None if behind else logprob_gap_alarm(updated, session.loaded.model.dtype),
    )
    held = {"kl_coefficient": stage.kl_coefficient} if stage.kl_target is not None else {}
    return figures | updated | held | {"learning_rate": rate, "staleness": behind} | _count_figures(counts)


def _update(
    session: Session,
    stage: Ppo,
    learner: ActorCritic,
    episodes: Sequence[RewardedEpisode],
    reference: Reference,
    step: int,
    rate: float,
) -> dict[str, float]:
    settings = ppo_settings(stage, rate)
    order = stream(session.recipe.seed, stage.title, "order", step)
    if step < stage.value_warmup_steps:
        return warm_up_critic(learner, episodes, settings, order)
    return update_actor_critic(
        learner,
        episodes,
        settings,
        reference.parameters if stage.kl_coefficient else None,
        order,
        # Until then the policy is as it was at the start.
        at_reference=step == stage.value_warmup_steps,
    )


def ppo_settings(stage: Ppo, learning_rate: float) -> PpoUpdate:
    """The stage's settings of the same names; `learning_rate` is the policy's in this step."""
    return PpoUpdate(
        policy=update_settings(stage, learning_rate),
        critic_learning_rate=stage.critic_learning_rate,
        gamma=stage.gamma,
        gae_lambda=stage.gae_lambda,
        value_clip=stage.value_clip,
        whiten_advantages=stage.whiten_advantages,
    )


def _count_figures(counts: EpisodeCounts) -> dict[str, float]:
    return {
        "learnt_episodes": float(counts.episodes),
        "bootstrapped_episodes": float(counts.cut),
        "step_reward_episodes": float(counts.with_step_rewards),
        "unscored_episodes": float(counts.unscored),
        "split_trajectories": float(counts.samples.split_trajectories),
        "too_long_samples": float(counts.samples.too_long),
    }
