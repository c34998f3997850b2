"""A measured number together with what it was measured on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean

from deedrl.evaluation.intervals import mean_interval
from deedrl.tasks.intervals import wilson
from deedrl.types import Record


class Figure(Record, frozen=True):
    """A share or a mean with its 95 % interval. The field names are part of the public contract."""

    value: float | None
    """numerator / denominator; None when the denominator is 0: nothing was measured, which is not 0.0."""
    numerator: int | float
    denominator: int
    low: float | None
    """Lower end of the 95 % interval; None when there is no value, or only one episode to take a mean over."""
    high: float | None

    def __post_init__(self) -> None:
        for number in (self.value, self.numerator, self.low, self.high):
            if number is not None and not math.isfinite(number):
                raise ValueError(f"a figure holds finite numbers, got {self!r}; leave out what was not measured")


def share(outcomes: Iterable[bool]) -> Figure:
    """Share of True with Wilson's interval."""
    counted = list(outcomes)
    if not counted:
        return Figure(value=None, numerator=0, denominator=0, low=None, high=None)
    successes = sum(counted)
    low, high = wilson(successes, len(counted))
    return Figure(value=successes / len(counted), numerator=successes, denominator=len(counted), low=low, high=high)


def mean(values: Sequence[int] | Sequence[float], floor: float | None = None) -> Figure:
    """Mean with a t-interval whose lower end is not put below `floor`; the numerator is the sum."""
    if not values:
        return Figure(value=None, numerator=0, denominator=0, low=None, high=None)
    low, high = mean_interval(values) or (None, None)
    if low is not None and floor is not None:
        low = max(low, floor)
    return Figure(value=fmean(values), numerator=sum(values), denominator=len(values), low=low, high=high)
