"""Settings of the stage `reward_model`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from deedrl.config import Count, LearningRate, NonNegative, PositiveInt, Share, require
from deedrl.pipeline.pair_settings import PairSettings


class RewardModelStage(PairSettings, frozen=True, kw_only=True, tag="reward_model"):
    """Learns to score episodes from pairs of stored ones and from people's labels; leaves the policy as it is.

    Where the recipe's ``rubric`` gives its name a weight, later online stages are rewarded by it too.
    """

    kind: ClassVar[str] = "reward_model"

    reads: Literal["outcome", "process"] = "outcome"
    """``outcome``: one score an episode, learnt from pairs; ``process``: one a turn, learnt from labels of turns."""
    labels: tuple[str, ...] = ()
    """JSON-lines files of people's labels beside the run's own ``labels.jsonl``: of pairs (``outcome``) or of turns
    (``process``)."""
    held_out_share: Annotated[float, Meta(ge=0, le=0.9)] = 0.2
    """Share of the tasks whose labels form the calibration set."""
    learning_rate: LearningRate = 1e-4
    """Peak learning rate of the model's adapter and head."""
    pairs_per_step: PositiveInt = 16
    """Pairs, or labelled turns, of one step."""
    label_smoothing: Annotated[float, Meta(ge=0, lt=0.5)] = 0.0
    """Share of pairs believed to be labelled the wrong way round."""
    centre: NonNegative = 0.01
    """Weight of the mean squared sum of a pair's two scores, which holds scores near 0."""
    calibrate_every: PositiveInt = 5
    """Steps between scorings of the calibration set; the weights that agree with it best are kept."""
    max_fall: Share = 0.15
    """A pairwise accuracy this much below an earlier one is an alarm: of the calibration set below its best while the
    model learns, and of fresh episodes against the verifier below the first ones while a policy learns from it."""
    patience: Count = 3
    """So many such alarms in a row end the stage that learns; 0 only warns."""
    drift_pairs: PositiveInt = 100
    """Pairs of fresh solved and failed siblings in each of the two accuracies that are compared then."""

    def calibrates(self, done: int, steps: int) -> bool:
        """Whether the calibration set is scored after `done` of `steps` steps; it is before the first, too."""
        return done in (0, steps) or done % self.calibrate_every == 0

    def validate(self, path: str) -> None:
        super().validate(path)
        require(
            self.reads == "outcome" or self.label_smoothing == 0,
            f"{path}.label_smoothing",
            f"expected 0 with reads: process, whose labels are shares already, got {self.label_smoothing:g}",
        )
        twice = sorted({name for name in self.labels if self.labels.count(name) > 1})
        require(not twice, f"{path}.labels", f"expected each file once, got {', '.join(twice)} twice")
