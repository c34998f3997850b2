"""Intervals and tests for figures measured on few episodes; closed forms, no sampling, no dependencies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, variance

from deedrl.tasks.intervals import Z95 as Z95
from deedrl.tasks.intervals import wilson as wilson


def t_quantile_975(degrees: int) -> float:
    """97.5 % quantile of Student's t; exact for 1 and 2 degrees of freedom, within 0.01 above.

    Source: Abramowitz & Stegun 26.7.5.
    """
    if degrees == 1:
        return math.tan(math.pi * 0.475)
    if degrees == 2:
        return 0.95 * math.sqrt(2 / (4 * 0.975 * 0.025))
    z = Z95
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return math.fsum(value / degrees**power for power, value in enumerate(terms))


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """95 % t-interval of the mean; None for fewer than two values, which say nothing about their spread."""
    if len(values) < 2:
        return None
    half = t_quantile_975(len(values) - 1) * math.sqrt(variance(values) / len(values))
    return fmean(values) - half, fmean(values) + half


def mcnemar_exact(only_before: int, only_after: int) -> float:
    """Two-sided exact p-value of "nothing changed", from the pairs that succeeded before only and after only.

    1.0 when nothing changed. Source: McNemar's test in its binomial form.
    """
    changed = only_before + only_after
    tail = sum(math.comb(changed, count) for count in range(min(only_before, only_after) + 1))
    return min(1.0, 2 * tail / (1 << changed))


def paired_difference(both: int, only_after: int, only_before: int, neither: int) -> tuple[float, float]:
    """95 % interval of (share after - share before) over the same pairs; needs at least one pair.

    Source: Newcombe 1998, Statistics in Medicine 17:2635, method 10 (Wilson intervals joined, with the correlation of
    the pairs corrected for continuity).
    """
    pairs = both + only_after + only_before + neither
    after, before = both + only_after, both + only_before
    product = after * (pairs - after) * before * (pairs - before)
    covariance = float(both * neither - only_after * only_before)
    if covariance > 0:
        covariance = max(covariance - pairs / 2, 0.0)
    phi = covariance / math.sqrt(product) if product else 0.0
    share_after, share_before = after / pairs, before / pairs
    low_after, high_after = wilson(after, pairs)
    low_before, high_before = wilson(before, pairs)
    down = _joined(share_after - low_after, high_before - share_before, phi)
    up = _joined(high_after - share_after, share_before - low_before, phi)
    difference = share_after - share_before
    return difference - down, difference + up


def _joined(first: float, second: float, phi: float) -> float:
    return math.sqrt(max(first**2 - 2 * phi * first * second + second**2, 0.0))
