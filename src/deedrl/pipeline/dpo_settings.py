"""Settings of the stage `dpo`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from deedrl.config import Count, LearningRate, NonNegative, PositiveFloat, PositiveInt, require
from deedrl.pipeline.pair_settings import PairSettings


class Dpo(PairSettings, frozen=True, kw_only=True, tag="dpo"):
    """Direct preference optimisation on pairs of stored episodes: a better and a worse one of the same task."""

    kind: ClassVar[str] = "dpo"

    hand_check: Count = 8
    """Pairs written to ``hand-check.md`` for people to read, drawn by chance; 0 writes none."""
    loss: Literal["sigmoid", "ipo", "length_normalised"] = "sigmoid"
    """``sigmoid`` (DPO) on summed log-ratios; ``ipo`` and ``length_normalised`` on their mean per action token."""
    beta: PositiveFloat = 0.1
    """How much reward a nat of log-ratio stands for: larger stays closer to the start. Per-token variants need more."""
    label_smoothing: Annotated[float, Meta(ge=0, lt=0.5)] = 0.0
    """Share of pairs believed to be labelled the wrong way round."""
    sft_coefficient: NonNegative = 0.0
    """Weight of the chosen sides' negative log-likelihood per token, which keeps what is chosen likely."""
    learning_rate: LearningRate = 5e-5
    """Peak learning rate (of the adapter, if there is one)."""
    validate_every: Count = 10
    """Steps between validations on held-out tasks; 0 means only after the last step."""
    validation_tasks: PositiveInt = 48
    """Validation tasks played each time; the best checkpoint is chosen by their completion rate."""

    def validates(self, done: int, steps: int) -> bool:
        """Whether there is a validation after `done` of `steps` steps."""
        return done == steps or (self.validate_every > 0 and done % self.validate_every == 0)

    def validate(self, path: str) -> None:
        super().validate(path)
        require(bool(self.kinds), f"{path}.kinds", "expected at least one, got none")
