"""Loss weights put on samples."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from deedrl.training.samples import TrainingSample


def weighted(samples: Sequence[TrainingSample], weights: Sequence[float]) -> list[TrainingSample]:
    """The samples with `weights` in place of their own (which `losses.sample_weights` has already taken in)."""
    return [msgspec.structs.replace(s, weight=w) for s, w in zip(samples, weights, strict=True)]
