"""A weight of the KL divergence that follows the divergence it is to hold."""

from __future__ import annotations

import math

MAX_ERROR = 0.2
"""Relative error up to which the divergence of one step counts, which is a noisy estimate."""


def controlled_coefficient(coefficient: float, kl: float, *, target: float, gain: float) -> float:
    """The weight of the next step, from that of this one and the divergence (nats) it ended with.

    coefficient * (1 + gain * e), with e = (kl - target) / target kept within ±`MAX_ERROR`: the proportional controller
    of Ziegler et al. 2019 (arXiv 1909.08593) section 2.2, where the gain is 0.1. Departures: their divergence is one of
    whole answers, here it is whatever `target` is in (the stages': the mean per action token); and a divergence that is
    not a number leaves the weight as it is. With a `gain` below 5 the weight stays positive.
    """
    if math.isnan(kl):
        return coefficient
    error = (kl - target) / target
    return coefficient * (1.0 + gain * min(max(error, -MAX_ERROR), MAX_ERROR))
