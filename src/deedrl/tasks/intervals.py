"""How far a share that was counted may be from the true one."""

from __future__ import annotations

import math
from statistics import NormalDist

Z95 = NormalDist().inv_cdf(0.975)
"""Two-sided 95 % quantile of the normal distribution, 1.96."""


def wilson(successes: float, trials: float) -> tuple[float, float]:
    """95 % score interval of a proportion, within [0, 1]; needs trials above 0, which may be sums of weights.

    Unlike the textbook interval it stays honest at 0 of n and n of n (0 of 10 gives 0 to 0.28). It takes trials as
    independent: completions of one episode are not quite, so theirs is a little too narrow.
    Source: Wilson 1927, JASA 22:209.
    """
    share = successes / trials
    squared = Z95 * Z95
    centre = (share + squared / (2 * trials)) / (1 + squared / trials)
    half = Z95 * math.sqrt(share * (1 - share) / trials + squared / (4 * trials * trials)) / (1 + squared / trials)
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == trials else centre + half
    return low, high
