"""Advantages of sibling episodes from their rewards: pure functions, one per estimator.

Rewards may be None (not scored): such a sibling takes no part in the baseline and gets advantage 0.0; its tokens must
also be left out of the loss (`selection` does). Sources: GRPO, Shao et al. 2024 (arXiv 2402.03300) eq. 21; Dr. GRPO,
Liu et al. 2025 (arXiv 2503.20783) section 3.2; RLOO, Ahmadian et al. 2024 (arXiv 2402.14740) eq. 8.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

Rewards = Sequence[float | None]

ZERO_VARIANCE = 1e-6
"""Standard deviation below which the rewards of a group count as equal; float noise is far smaller."""
_STD_EPSILON = 1e-4


def has_signal(rewards: Rewards, threshold: float = ZERO_VARIANCE) -> bool:
    """Whether at least two siblings are scored and their rewards differ by more than rounding."""
    scored = [reward for reward in rewards if reward is not None]
    return len(scored) >= 2 and _std(scored) > threshold


def grpo(rewards: Rewards, threshold: float = ZERO_VARIANCE) -> list[float]:
    """(r - mean) / (std + 1e-4), with the population mean and std over scored siblings; zeros without signal."""
    scored = [reward for reward in rewards if reward is not None]
    scale = 1.0 / (_std(scored) + _STD_EPSILON) if scored else 0.0
    return [advantage * scale for advantage in dr_grpo(rewards, threshold)]


def dr_grpo(rewards: Rewards, threshold: float = ZERO_VARIANCE) -> list[float]:
    """r - mean over scored siblings, without division by the std; zeros without signal."""
    if not has_signal(rewards, threshold):
        return [0.0] * len(rewards)
    scored = [reward for reward in rewards if reward is not None]
    mean = math.fsum(scored) / len(scored)
    return [0.0 if reward is None else reward - mean for reward in rewards]


def rloo(rewards: Rewards, threshold: float = ZERO_VARIANCE) -> list[float]:
    """r - mean of the other scored siblings (leave-one-out); zeros without signal."""
    count = sum(reward is not None for reward in rewards)
    if count < 2:
        return [0.0] * len(rewards)
    # r - (sum - r)/(n - 1) = (r - mean) * n/(n - 1)
    return [advantage * count / (count - 1) for advantage in dr_grpo(rewards, threshold)]


Estimator = Callable[[Rewards, float], list[float]]


def _std(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
