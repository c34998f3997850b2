"""Held-out validation during training: what the best checkpoint is chosen by."""

from __future__ import annotations

from deedrl.evaluation.metrics import Metrics, compute_metrics
from deedrl.pipeline.session import Session


def validate(session: Session, stage: str, step: int, tasks: int) -> Metrics:
    """Figures of the current weights on the first `tasks` validation tasks, with the recipe's sampling."""
    chosen = session.tasks("validation")[:tasks]
    specs = [
        session.spec(task, f"{stage}-validation-{step}-{task.id}", stage=stage, sampling=session.sampling())
        for task in chosen
    ]
    with session.context.progress.bar(f"{stage}: validation {step}", total=len(specs), unit="episode") as bar:
        episodes = session.play(specs, store=f"{stage}-validation", policy=session.policy(), bar=bar)
    metrics = compute_metrics(episodes, sampling=session.sampling())
    session.context.tracker.log(
        {
            "validation_completion": metrics.completion_rate.value,
            "validation_mean_steps": metrics.mean_steps.value,
            "validation_tool_call_accuracy": metrics.tool_call_accuracy.value,
            "validation_format_compliance": metrics.format_compliance.value,
        },
        step=step,
        stage=stage,
    )
    return metrics


def held_out_score(metrics: Metrics) -> float | None:
    """What checkpoints are compared by, in [0, 1): (solved + mean reward) / (episodes + 1); None if none was scored.

    It orders by completion; among equals the mean reward decides, which also sees format, steps and how far failures
    came. A few dozen tasks often give equal completion, and then the earlier weights are not the better ones.
    """
    completion = metrics.completion_rate
    if not completion.denominator:
        return None
    return (completion.numerator + (metrics.mean_reward.value or 0.0)) / (completion.denominator + 1)
