"""What the settings of several stages share."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from deedrl.config import (
    Count,
    LearningRate,
    Many,
    NonNegative,
    PositiveFloat,
    PositiveInt,
    Settings,
    require,
)
from deedrl.pipeline.curriculum_settings import AnyCurriculum, UniformCurriculum
from deedrl.pipeline.noise_settings import NoiseSetting

Schedule = Literal["constant", "linear", "cosine"]
Limit = Literal["step_limit", "token_limit", "timeout", "loop"]
"""What may cut an episode before its job is over."""


class StageSettings(Settings, frozen=True, kw_only=True, tag_field="stage"):
    """What all stages share."""

    kind: ClassVar[str]
    """The value of the key ``stage``."""

    name: str = ""
    """Name within the run; empty means the value of ``stage``."""

    @property
    def title(self) -> str:
        """The stage's name within the run: `name`, or the value of ``stage``."""
        return self.name or self.kind

    @property
    def training_stores(self) -> tuple[str, ...]:
        """Names of the trajectory stores it fills with episodes that may be learnt from; none of its validations."""
        return ()

    def validate(self, path: str) -> None:
        """Raises `ConfigError` if values do not go together; `path` is the dotted path of this stage."""


class TrainingSettings(StageSettings, frozen=True, kw_only=True):
    """Of stages that take optimiser steps."""

    learning_rate: LearningRate
    """Peak learning rate (of the adapter, if there is one)."""
    final_learning_rate: NonNegative = 0.0
    """Learning rate after the last step; `schedule` leads there."""
    schedule: Schedule = "linear"
    """How the learning rate falls from its peak to its end."""
    warmup_steps: Count = 0
    """Steps over which the learning rate rises linearly from 0."""
    max_grad_norm: PositiveFloat = 1.0
    """Gradient norm is clipped to this."""
    micro_batch_tokens: PositiveInt = 4096
    """Tokens in one forward and backward pass; bounds memory, does not change the gradient."""

    def validate(self, path: str) -> None:
        require(
            self.final_learning_rate <= self.learning_rate,
            f"{path}.final_learning_rate",
            f"expected at most learning_rate ({self.learning_rate:g}), got {self.final_learning_rate:g}",
        )


class OnlineSettings(TrainingSettings, frozen=True, kw_only=True):
    """Of stages in which the policy learns from episodes it plays."""

    steps: PositiveInt = 10
    """Optimisation steps: each samples a batch of groups and updates the policy."""
    tasks_per_step: PositiveInt = 8
    """Tasks (groups) in one step."""
    group_size: Many = 6
    """Sibling trajectories of one task."""
    temperature: PositiveFloat | None = None
    """Overrides ``sampling.temperature``; above 0, for equal siblings teach nothing."""
    noise: NoiseSetting | None = None
    """Overrides ``environment.noise`` in the episodes this stage learns from; 0 is the bare environment."""
    learning_rate: LearningRate = 1e-4
    """Peak learning rate (of the adapter, if there is one)."""
    kl_coefficient: NonNegative = 0.01
    """Weight of the KL divergence to the policy this stage starts from; 0 leaves it out."""
    kl_target: PositiveFloat | None = None
    """Nats per action token: after each step the weight moves, from `kl_coefficient` on, so that the divergence comes
    near this; null leaves the weight as it is."""
    kl_gain: Annotated[float, Meta(gt=0, lt=5)] = 0.1
    """How fast: the change of the weight in a step per relative error, which counts up to 0.2 either way."""
    clip_low: Annotated[float, Meta(gt=0, lt=1)] = 0.2
    """Importance ratios are clipped below at 1 - clip_low."""
    clip_high: PositiveFloat = 0.2
    """Importance ratios are clipped above at 1 + clip_high."""
    loss_normalisation: Literal["token", "sequence", "constant"] = "token"
    """Denominator of the loss: tokens of the batch; tokens of each sequence, then sequences; `normalisation_tokens`."""
    normalisation_tokens: PositiveInt = 512
    """Tokens a sequence counts for under ``loss_normalisation: constant``."""
    mini_batches: PositiveInt = 1
    """Updates in one pass over a sampled batch, each on its share of the episodes."""
    updates_per_batch: PositiveInt = 1
    """Passes over each sampled batch; with more than one update the importance ratio and its clipping matter."""
    reasoning_check_every: Count = 0
    """Steps between measurements of how much the policy's reasoning depends on its prompt, each a forward pass over a
    few episodes; 0 never measures it."""
    ema_decay: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    """Validated and kept is a moving average of the weights after each step, in which a step's weights count so many
    times as much one step later; 0 keeps the weights themselves. Episodes to learn from are always the latest's."""
    failure_weight: NonNegative = 0.0
    """Families are drawn in proportion to 1 + this × the share of their tasks the last validation did not solve."""
    curriculum: AnyCurriculum | None = None
    """Which tasks a step draws, by what was seen of them; null takes families and labelled difficulties in turn."""
    max_staleness: Annotated[int, Meta(ge=0, le=1)] = 0
    """Updates that the weights which sample may be behind those that are updated; with 1 the next step is sampled while
    an update runs, which needs an adapter and the memory of both at once."""
    validate_every: Count = 5
    """Steps between validations on held-out tasks; 0 means only after the last step."""
    validation_tasks: PositiveInt = 48
    """Validation tasks played each time; the best checkpoint is chosen by their completion rate."""
    patience_steps: Count = 0
    """Stops after this many steps without a better validation; 0 never stops early."""

    @property
    def training_stores(self) -> tuple[str, ...]:
        return (self.title,)

    def validate(self, path: str) -> None:
        super().validate(path)
        require(
            self.patience_steps == 0 or self.validate_every > 0,
            f"{path}.patience_steps",
            "early stopping needs validations; set validate_every above 0 or patience_steps to 0",
        )
        require(
            self.kl_target is None or self.kl_coefficient > 0,
            f"{path}.kl_target",
            "expected kl_coefficient above 0 with it, which is the weight it starts from and is only ever multiplied",
        )
        if self.curriculum is not None:
            self.curriculum.validate(f"{path}.curriculum")
            require(
                self.failure_weight == 0 or isinstance(self.curriculum, UniformCurriculum),
                f"{path}.failure_weight",
                f"expected 0 with a curriculum that draws by measured difficulty, got {self.failure_weight:g}: both "
                "say what is drawn; set it to 0 or the curriculum to {kind: uniform}",
            )
