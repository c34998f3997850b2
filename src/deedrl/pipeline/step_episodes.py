"""The episodes of one step of training: played in groups of siblings, and what is logged of them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from deedrl.evaluation.metrics import compute_metrics
from deedrl.pipeline.learned_terms import learned_figures, with_learned_terms
from deedrl.pipeline.replay_check import check_replays
from deedrl.pipeline.session import Session
from deedrl.pipeline.stage_base import OnlineSettings
from deedrl.types import Task, Trajectory


def play_groups(session: Session, stage: OnlineSettings, tasks: Sequence[Task], step: int) -> list[Trajectory]:
    """`stage.group_size` siblings of each of `tasks`, with the current weights; reward models score them too."""
    sampling = session.sampling(stage.temperature)
    specs = [
        session.spec(
            task,
            f"{stage.title}-{step}-{task.id}-{sibling}",
            stage=stage.title,
            sampling=sampling,
            noise=stage.noise,
        )
        for task in tasks
        for sibling in range(stage.group_size)
    ]
    title = f"{stage.title}: episodes of step {step + 1}"
    with session.context.progress.bar(title, total=len(specs), unit="episode") as bar:
        played = session.play(specs, store=stage.title, policy=session.policy(), bar=bar)
    check_replays(session, stage.title, played)
    return with_learned_terms(session, stage.title, stage.title, played)


def episode_figures(
    episodes: Sequence[Trajectory], dropped_groups: int, learned_terms: Sequence[str]
) -> dict[str, float]:
    """Figures of all episodes of a step, of the groups that infrastructure trouble dropped, and of learned terms."""
    metrics = compute_metrics(episodes)
    return {
        "reward": metrics.mean_reward.value or 0.0,
        "completion": metrics.completion_rate.value or 0.0,
        "mean_steps": metrics.mean_steps.value or 0.0,
        "format_compliance": metrics.format_compliance.value or 0.0,
        "tool_call_accuracy": metrics.tool_call_accuracy.value or 0.0,
        "episodes": float(len(episodes)),
        "errored_episodes": float(metrics.errored),
        "dropped_groups": float(dropped_groups),
        "cut_share": _cut_share(episodes),
        "entropy": sampled_entropy(episodes),
        "cache_hit_share": metrics.cache_hit_share.value or 0.0,
    } | learned_figures(learned_terms, episodes)


def _cut_share(episodes: Sequence[Trajectory]) -> float:
    """Share of completions that hit the token limit."""
    reasons = [step.completion.finish_reason for episode in episodes for step in episode.steps]
    return sum(reason == "length" for reason in reasons) / len(reasons) if reasons else 0.0


def sampled_entropy(episodes: Sequence[Trajectory]) -> float:
    """Entropy of the policy in nats a token at the temperature of sampling, estimated by what was sampled.

    Where it falls at once, siblings become alike and nothing is left to learn from.
    """
    logprobs = [x for episode in episodes for step in episode.steps for x in step.completion.logprobs]
    return -fmean(logprobs) if logprobs else 0.0
