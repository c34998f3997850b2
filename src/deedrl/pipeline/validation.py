"""Held-out validation during training: what the best checkpoint is chosen by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from torch import Tensor

from deedrl.evaluation.metrics import Metrics, compute_metrics
from deedrl.pipeline.checkpoint import CheckpointFolder
from deedrl.pipeline.session import Session
from deedrl.training.averaging import averaged_weights


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


# ---------------------------------------------------------------- the best so far


@dataclass(frozen=True)
class Validations:
    """The best validation so far, and by family what the latest one solved."""

    step: int = 0
    score: float | None = None
    completion: float | None = None
    solved: Mapping[str, float] = field(default_factory=dict)
    latest: float | None = None
    """Completion of the latest validation; None before the first, and after a resume before the next."""

    def state(self) -> dict[str, Any]:
        return {
            "best_step": self.step,
            "best_score": self.score,
            "best_completion": self.completion,
            "solved_by_family": dict(self.solved),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Validations:
        return cls(
            step=int(state.get("best_step", 0)),
            score=state.get("best_score"),
            completion=state.get("best_completion"),
            solved=state.get("solved_by_family", {}),
        )


def validated(
    session: Session,
    stage: str,
    tasks: int,
    checkpoints: CheckpointFolder,
    tensors: Callable[[], Mapping[str, Tensor]],
    step: int,
    best: Validations,
    acting: AbstractContextManager[None] | None = None,
    beside: Mapping[str, Any] | None = None,
) -> Validations:
    """Validates the weights after `step` and saves a scored checkpoint of `tensors`; returns the best so far.

    Inside `acting` the weights are those to validate; what is saved is taken outside. `beside` is saved with it.
    """
    with acting or nullcontext():
        metrics = validate(session, stage, step, tasks)
    # What sampling guesses from what it saw decides about rounding, and a resume at this step has not seen this.
    session.rest_policies()
    score = held_out_score(metrics)
    shares = {family: group.completion_rate.value for family, group in metrics.by_family.items()}
    solved = {family: share for family, share in shares.items() if share is not None}
    if score is not None and (best.score is None or score > best.score):
        best = Validations(step, score, metrics.completion_rate.value)
    best = replace(best, solved=solved, latest=metrics.completion_rate.value)
    checkpoints.save(step, tensors(), best.state() | dict(beside or {}), score)
    return best


class Restorable(Protocol):
    """What can be put back to saved weights."""

    def load_tensors(self, state: dict[str, Tensor]) -> None: ...


def keep_best(session: Session, learner: Restorable, checkpoints: CheckpointFolder, stage: str) -> None:
    """The best validated weights become the policy of the run (case F20)."""
    best = checkpoints.best()
    if best is not None:
        learner.load_tensors(averaged_weights(best.tensors))
        session.weights_changed(f"{stage}:{best.step}")
    session.save_policy()
