"""Says of a recipe's training settings, before anything is trained, where they are beyond what usually holds."""

from __future__ import annotations

from deedrl.pipeline.dpo_settings import Dpo
from deedrl.pipeline.recipe import Mine, Recipe
from deedrl.pipeline.stage_base import OnlineSettings

FULL_TUNING_RATE = 5e-6
"""Learning rate up to which reinforcement and preference learning usually hold where all weights are trained."""
ADAPTER_RATE = 1.5e-4
"""Learning rate of an adapter up to which reinforcement held in the runs of docs/quickstart.md: with 2e-4 and more
validations fell in three of four, within two to six steps."""
LEAST_KL = 0.01
"""Weight of the KL divergence below which hardly anything holds a policy to where it started."""


def training_findings(recipe: Recipe) -> list[str]:
    """One sentence for each setting that is beyond its bound; none is an error, and a run may mean it."""
    found = []
    for stage in recipe.stages:
        if isinstance(stage, OnlineSettings | Dpo | Mine) and recipe.model.adapter is None:
            found += _full_tuning_finding(stage.title, stage.learning_rate)
        elif isinstance(stage, OnlineSettings | Mine):
            found += _adapter_finding(stage.title, stage.learning_rate)
        if isinstance(stage, OnlineSettings):
            found += _kl_finding(stage)
    return found


def _full_tuning_finding(stage: str, rate: float | None) -> list[str]:
    if rate is None or rate <= FULL_TUNING_RATE:
        return []
    return [
        f"stages.{stage}.learning_rate is {rate:g}, above {FULL_TUNING_RATE:g}, with all weights trained "
        "(model.adapter: null): a few such updates on noisy gradients can undo what the model knew. Lower it, or train "
        f"an adapter, for which rates of 1e-5 to {ADAPTER_RATE:g} are usual"
    ]


def _adapter_finding(stage: str, rate: float | None) -> list[str]:
    if rate is None or rate <= ADAPTER_RATE:
        return []
    return [
        f"stages.{stage}.learning_rate is {rate:g}, above {ADAPTER_RATE:g}: updates of an adapter from few groups can "
        "then undo what the model knew within a few steps. Lower it, or keep it with many tasks_per_step and watch "
        "validations"
    ]


def _kl_finding(stage: OnlineSettings) -> list[str]:
    if stage.kl_coefficient >= LEAST_KL:
        return []
    return [
        f"stages.{stage.title}.kl_coefficient is {stage.kl_coefficient:g}, below {LEAST_KL:g}: hardly anything holds "
        "the policy to the one it starts from, so it may drift to whatever the reward leaves open. Raise it, or keep "
        "it and watch validations: runs that are checked by rules alone sometimes do without"
    ]
