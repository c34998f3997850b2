"""Settings of each stage a recipe can compose, told apart by the key ``stage``.

Every stage may carry a ``name`` (default: its ``stage``); names are unique within a recipe and are what the run
folder, the report and dotted overrides use.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from deedrl.config import (
    Count,
    LearningRate,
    Many,
    ManyOrNone,
    NonNegative,
    PositiveFloat,
    PositiveInt,
    Share,
    require,
)
from deedrl.evaluation.metrics import Metrics
from deedrl.pipeline.dpo_settings import Dpo
from deedrl.pipeline.grpo_settings import Grpo
from deedrl.pipeline.noise_settings import NoiseSetting
from deedrl.pipeline.ppo_settings import Ppo
from deedrl.pipeline.profile_settings import Profile
from deedrl.pipeline.reward_model_settings import RewardModelStage
from deedrl.pipeline.stage_base import StageSettings, TrainingSettings
from deedrl.types import Split

POSITIVES, NEGATIVES = "cold-start-positives", "cold-start-negatives"
"""Stores of what cold starts keep; `sft` learns from the positives."""

PromptPerturbation = Literal["plain", "tool_order", "distractor"]


class _EvaluationSettings(StageSettings, frozen=True, kw_only=True):
    split: Split = "test"
    """Which tasks; the figures of the before/after table come from ``test``."""
    repeats: Many = 1
    """Runs of the same tasks with other seeds; the report shows their spread."""
    tasks: PositiveInt | None = None
    """At most this many tasks of the split, the first ones; null means all."""
    also_unseen: bool = False
    """Also evaluate the split ``test_unseen`` (families and phrasings that never occur in training), reported apart."""
    temperature: NonNegative | None = None
    """Overrides ``sampling.temperature``; keep it equal in `baseline` and `evaluate`. 0 is greedy."""
    noise: NoiseSetting | None = None
    """Overrides ``environment.noise`` in this stage; 0 is the bare environment."""


class Baseline(_EvaluationSettings, frozen=True, kw_only=True, tag="baseline"):
    """Evaluates the untouched model; its figures become ``before`` in ``summary.json``."""

    kind: ClassVar[str] = "baseline"


class Evaluate(_EvaluationSettings, frozen=True, kw_only=True, tag="evaluate"):
    """Evaluates the current policy; the last one's figures become ``after`` in ``summary.json``."""

    kind: ClassVar[str] = "evaluate"


class ColdStart(StageSettings, frozen=True, kw_only=True, tag="cold_start"):
    """Rejection sampling: samples trajectories, keeps stable and efficient successes, marks failures as negatives."""

    kind: ClassVar[str] = "cold_start"

    tasks: Count = 64
    """Training tasks that are sampled."""
    samples_per_task: Many = 4
    """Trajectories sampled for each task."""
    guided_share: Share = 1.0
    """Share of the samples whose decoding is constrained to the schema of an action."""
    temperature: NonNegative | None = None
    """Overrides ``sampling.temperature``."""
    noise: NoiseSetting | None = None
    """Overrides ``environment.noise`` in this stage; 0 is the bare environment."""
    detailed_prompt: bool = True
    """Sample with a prompt that explains the job at length; what is kept is stored under the recipe's own prompt."""
    prompt_variants: tuple[PromptPerturbation, ...] = ("plain", "tool_order", "distractor")
    """Prompt perturbations the samples rotate through."""
    stability_repeats: Count = 2
    """Further samples of a task whose success must repeat before it is taught; 0 takes every success."""
    stability_share: Share = 0.5
    """Share of those repeats that must succeed."""
    efficiency_ratio: Annotated[float, Meta(ge=1)] = 1.5
    """Keeps a success of at most this many times the shortest known number of steps."""
    demonstrations: ManyOrNone = 0
    """Trajectories played by the environment's own ``demonstrate``, on tasks that sampling does not use."""
    demonstration_weights: dict[str, PositiveFloat] = {}
    """How often a family is demonstrated relative to the others, by family, 1 where it is missing; for jobs of which
    some kinds are rarely shown, and to leave reinforcement something to teach."""
    max_demonstration_share: Share = 1.0
    """Ceiling on the share of demonstrations among the positives."""

    @property
    def training_stores(self) -> tuple[str, ...]:
        return (POSITIVES, NEGATIVES, f"{self.title}-samples", f"{self.title}-demonstrations")

    def validate(self, path: str) -> None:
        require(
            self.tasks > 0 or self.demonstrations > 0,
            f"{path}.tasks",
            "expected tasks or demonstrations above 0, got 0 of both; there would be nothing to learn from",
        )
        require(bool(self.prompt_variants), f"{path}.prompt_variants", "expected at least one, e.g. [plain]; got none")


class Sft(TrainingSettings, frozen=True, kw_only=True, tag="sft"):
    """Supervised fine-tuning on the kept trajectories, loss on action tokens only."""

    kind: ClassVar[str] = "sft"

    steps: PositiveInt | None = None
    """Optimiser steps; give this or `epochs`."""
    epochs: Annotated[float, Meta(gt=0, le=1e6)] | None = None
    """Passes over the kept trajectories; give this or `steps`."""
    batch_size: Many = 16
    """Trajectories in one optimiser step."""
    learning_rate: LearningRate = 1e-3
    """Peak learning rate (of the adapter, if there is one)."""
    validate_every: Count = 0
    """Steps between validations; 0 means never."""
    validate_from: Count = 0
    """No validation before this step: the first steps of a start from nothing solve nothing."""
    validation_tasks: PositiveInt = 32
    """Validation tasks played each time."""
    target_completion: Annotated[float, Meta(gt=0, le=1)] | None = None
    """The stage ends at the first validation that reaches this: what is learnt by imitation varies with the
    demonstrations drawn, and reinforcement has little to tell from a policy that succeeds almost always."""
    target_family_completion: Share = 0.0
    """`target_completion` counts only where every family reaches this: where nothing succeeds, reinforcement has
    nothing to reinforce."""

    def validates(self, done: int) -> bool:
        """Whether there is a validation after so many steps."""
        return self.validate_every > 0 and done >= self.validate_from and done % self.validate_every == 0

    def good_enough(self, metrics: Metrics) -> bool:
        """Whether what a validation found ends the stage."""
        completion = metrics.completion_rate.value
        if completion is None or self.target_completion is None:
            return False
        by_family = [group.completion_rate.value or 0.0 for group in metrics.by_family.values()]
        return completion >= self.target_completion and min(by_family, default=1.0) >= self.target_family_completion

    def validate(self, path: str) -> None:
        given = [name for name in ("steps", "epochs") if getattr(self, name) is not None]
        require(len(given) == 1, path, f"expected exactly one of steps and epochs, got {' and '.join(given) or 'none'}")
        super().validate(path)
        require(
            self.target_completion is None or self.validate_every > 0,
            f"{path}.target_completion",
            "expected validate_every above 0 with it, or no validation could reach it; set validate_every",
        )
        require(
            self.target_completion is None or self.steps is None or self.validate_from <= self.steps,
            f"{path}.validate_from",
            f"expected at most steps ({self.steps}) where target_completion is set, got {self.validate_from}",
        )
        require(
            self.target_completion is not None or self.target_family_completion == 0,
            f"{path}.target_family_completion",
            "expected target_completion with it, which it is a condition of; got none",
        )


class Mine(StageSettings, frozen=True, kw_only=True, tag="mine"):
    """Finds tasks of low but non-zero success, clusters what goes wrong in them and trains on them again.

    The update settings (group size, KL, clipping, batch) are those of the recipe's last `grpo` stage.
    """

    kind: ClassVar[str] = "mine"

    tasks: PositiveInt = 96
    """Training tasks that are probed."""
    attempts: Many = 4
    """Episodes a task is probed with."""
    band: tuple[Share, Share] = (0.01, 0.5)
    """A task is hard if its success rate lies in this closed interval."""
    steps: Count = 4
    """Optimisation steps on the new pool; 0 only mines and reports."""
    hard_share: Share = 0.5
    """Share of mined tasks in each step; the rest comes from the whole training pool."""
    learning_rate: LearningRate | None = None
    """Constant learning rate; null means half the peak of the recipe's last `grpo` stage."""

    @property
    def training_stores(self) -> tuple[str, ...]:
        return (f"{self.title}-probe", self.title)

    def validate(self, path: str) -> None:
        low, high = self.band
        require(low < high, f"{path}.band", f"expected [low, high] with low < high, got [{low:g}, {high:g}]")


AnyStage = Baseline | Evaluate | Profile | ColdStart | Sft | RewardModelStage | Grpo | Ppo | Dpo | Mine
