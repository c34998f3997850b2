"""The learning rate of a step."""

from __future__ import annotations

from deedrl.pipeline.stage_base import TrainingSettings
from deedrl.training.learner import scheduled_rate


def step_rate(stage: TrainingSettings, step: int, steps: int) -> float:
    """Of `step` (from 0) of `steps`, by the stage's schedule."""
    return scheduled_rate(
        step,
        steps,
        peak=stage.learning_rate,
        final=stage.final_learning_rate,
        schedule=stage.schedule,
        warmup=stage.warmup_steps,
    )
