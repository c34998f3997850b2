"""Generalised advantage estimation over the action tokens of an episode: pure functions of lists.

Time here is counted in action tokens. What tools and prompts put between two of them takes no time and has no value:
each step of the recursion goes from one action token to the next, so a reward is neither attenuated nor lost on the way
through an observation, and nothing that a critic says about an observation can leak into an advantage. Source: Schulman
et al. 2016 (arXiv 1506.02438) eqs. 11, 12 and 16.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from deedrl.training.advantages import ZERO_VARIANCE


class Credit(NamedTuple):
    """What the n action tokens of one episode are credited with."""

    advantages: list[float]
    returns: list[float]
    """Advantage + value: what the critic is to learn, a TD(lambda) return."""


def gae(
    rewards: Sequence[float], values: Sequence[float], *, end_value: float | None, gamma: float, lam: float
) -> Credit:
    """Advantages and returns of one episode's action tokens.

    rewards [n]: what came between an action token and the next, observations included. values [n]: the critic's value
    of the state each was sampled in. `end_value` is its value of the state after the last one where a limit cut the
    episode, and None where the episode ended: nothing comes after. `gamma` discounts and `lam` blends per action
    token, both in [0, 1]; lam = 1 gives the return minus the value, lam = 0 the one-step difference.
    """
    if len(rewards) != len(values):
        raise ValueError(f"expected a value for each of {len(rewards)} rewards, got {len(values)}")
    advantages = [0.0] * len(rewards)
    following, advantage = 0.0 if end_value is None else end_value, 0.0
    for at in reversed(range(len(rewards))):
        surprise = rewards[at] + gamma * following - values[at]
        advantage = surprise + gamma * lam * advantage
        advantages[at] = advantage
        following = values[at]
    return Credit(advantages, [a + v for a, v in zip(advantages, values, strict=True)])


def whitened(advantages: Sequence[Sequence[float]]) -> list[list[float]]:
    """Advantages of several episodes with mean 0 and population standard deviation 1 over all their tokens.

    Where they spread by no more than rounding they become zeros: nothing tells the tokens apart.
    """
    mean, std = moments([a for episode in advantages for a in episode])
    scale = 1.0 / std if std > ZERO_VARIANCE else 0.0
    return [[(a - mean) * scale for a in episode] for episode in advantages]


def explained_variance(values: Sequence[float], returns: Sequence[float]) -> float | None:
    """1 - Var(return - value) / Var(return): 1 for a perfect critic, 0 for a constant one, less for a worse one.

    None where the returns are all alike, for there is nothing to explain.
    """
    spread = moments(returns)[1]
    if spread <= ZERO_VARIANCE:
        return None
    left = moments([r - v for r, v in zip(returns, values, strict=True)])[1]
    return 1.0 - (left / spread) ** 2


def moments(values: Sequence[float]) -> tuple[float, float]:
    """Mean and population standard deviation; zeros of nothing."""
    if not values:
        return 0.0, 0.0
    mean = math.fsum(values) / len(values)
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
