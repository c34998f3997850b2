"""What stages share that learn from pairs of stored episodes: where these come from, and how many are learnt from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from deedrl.config import Many, ManyOrNone, NonNegative, PositiveFloat, PositiveInt, Share, require
from deedrl.errors import suggest
from deedrl.pipeline.stage_base import TrainingSettings
from deedrl.training.preferences import Kind
from deedrl.types import Source


class PairSettings(TrainingSettings, frozen=True, kw_only=True):
    """Of stages that learn from pairs of stored episodes."""

    stores: tuple[str, ...] = ()
    """Trajectory stores that pairs are made of; empty means those of all the recipe's training stages."""
    tasks: ManyOrNone = 0
    """Training tasks that are played first, with the policy the stage starts from; 0 takes stored episodes alone."""
    samples_per_task: Many = 4
    """Episodes of each of these tasks."""
    temperature: PositiveFloat | None = None
    """Overrides ``sampling.temperature`` for them; above 0, for equal episodes make no pair."""
    sources: tuple[Source, ...] = ("policy", "demonstration")
    """Where episodes may come from; add ``guided`` for those sampled under constraints."""
    kinds: tuple[Kind, ...] = ("triple", "outcome", "efficiency")
    """Pairs that are built: of triples (excellent, ordinary, failed); success over failure; few steps over many."""
    wasteful_ratio: Annotated[float, Meta(gt=1)] = 1.5
    """A success of at least this many times the fewest steps seen is wasteful, ordinary in a triple."""
    min_margin: NonNegative = 0.01
    """Pairs whose rewards differ by less are dropped."""
    pairs_per_task: PositiveInt = 8
    """At most so many pairs of one task; kinds take turns, and within a kind chance decides."""
    length_band: tuple[Share, Share] = (0.0, 1.0)
    """[low, high] for the share of pairs whose chosen side has more action tokens, among pairs of different lengths;
    pairs of the largest difference are dropped until it is met."""
    held_out_share: Annotated[float, Meta(ge=0, le=0.9)] = 0.1
    """Share of the tasks whose pairs are measured and not learnt from."""

    steps: PositiveInt | None = None
    """Optimiser steps; give this or `epochs`."""
    epochs: PositiveFloat | None = None
    """Passes over the pairs; give this or `steps`."""
    pairs_per_step: PositiveInt = 16
    """Pairs of one step."""

    @property
    def training_stores(self) -> tuple[str, ...]:
        return (self.title,)

    def steps_for(self, pairs: int) -> int:
        """Steps of the stage with so many pairs."""
        return self.steps or max(1, math.ceil((self.epochs or 1.0) * pairs / self.pairs_per_step))

    def validate(self, path: str) -> None:
        given = [name for name in ("steps", "epochs") if getattr(self, name) is not None]
        require(len(given) == 1, path, f"expected exactly one of steps and epochs, got {' and '.join(given) or 'none'}")
        super().validate(path)
        for name in ("sources", "kinds", "stores"):
            values = getattr(self, name)
            twice = sorted({value for value in values if values.count(value) > 1})
            require(not twice, f"{path}.{name}", f"expected each once, got {', '.join(twice)} twice")
        require(bool(self.sources), f"{path}.sources", "expected at least one, got none")
        low, high = self.length_band
        require(low <= high, f"{path}.length_band", f"expected [low, high] with low <= high, got [{low:g}, {high:g}]")

    def validate_among(self, path: str, stores: Sequence[str], temperature: float) -> None:
        """As `validate`, for what depends on the recipe: the stores all its stages fill, and its sampling."""
        for store in self.stores:
            require(
                store in stores,
                f"{path}.stores",
                f"expected stores that training stages fill, got '{store}'{suggest(store, set(stores))}",
            )
        require(
            self.tasks > 0 or bool(set(self.stores or stores) - {self.title}),
            f"{path}.tasks",
            "expected above 0 where no other stage plays episodes that pairs can be made of, got 0",
        )
        require(
            self.tasks == 0 or not self.stores or self.title in self.stores,
            f"{path}.stores",
            f"expected '{self.title}' among them, the store of the episodes that tasks ({self.tasks}) asks for",
        )
        require(
            self.tasks == 0 or temperature > 0 or self.temperature is not None,
            f"{path}.temperature",
            "expected above 0: greedy episodes are equal and make no pair; set it here or in sampling.temperature",
        )
