"""What the policy's loss is made of, per action token: objectives, divergences and weights, one small function each.

Everything is safe at any difference of log-probabilities: what goes into exp is clamped before it (case C08).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor

MAX_LOG_RATIO = 10.0
"""Log-ratios are clamped to this before exp: e^10 is far beyond any clip range and finite in every float type."""


class Clip(NamedTuple):
    """Ratios are kept within 1 - low and 1 + high."""

    low: float
    high: float

    def __call__(self, ratio: Tensor) -> Tensor:
        return ratio.clamp(1 - self.low, 1 + self.high)


class TokenLosses(NamedTuple):
    """Of N action tokens."""

    losses: Tensor
    clipped: Tensor
    """Which were kept from having their full effect."""


Objective = Callable[[Tensor, Tensor, Tensor, Tensor, Clip], TokenLosses]
"""From log-probabilities, those of the policy that is improved on, advantages and the sample of each token, all [N]."""


def clipped(logprobs: Tensor, before: Tensor, advantages: Tensor, sample_of: Tensor, clip: Clip) -> TokenLosses:
    """-min(r A, clip(r) A) with each token's own ratio r (PPO, Schulman et al. 2017, arXiv 1707.06347, eq. 7)."""
    return _pessimistic(_clamped(logprobs - before).exp(), advantages, clip)


def sequence_clipped(
    logprobs: Tensor, before: Tensor, advantages: Tensor, sample_of: Tensor, clip: Clip
) -> TokenLosses:
    """As `clipped`, with one ratio for all of a sample's tokens: the geometric mean of theirs.

    GSPO in its form with an advantage for each token, Zheng et al. 2025 (arXiv 2507.18071) section 4.3: the ratio has
    the sequence's value and the token's gradient. A sequence is a training sample; tools' tokens are not in the mean.
    """
    gaps = (logprobs - before).detach()
    sums = torch.zeros(int(sample_of.max()) + 1, dtype=gaps.dtype).index_add(0, sample_of, gaps)
    mean = sums / torch.bincount(sample_of).clamp(min=1)
    ratio = _clamped(mean)[sample_of].exp() * (logprobs - logprobs.detach()).exp()
    return _pessimistic(ratio, advantages, clip)


def cispo(logprobs: Tensor, before: Tensor, advantages: Tensor, sample_of: Tensor, clip: Clip) -> TokenLosses:
    """-clip(r) A log pi, with no gradient through the ratio: clipping bounds a token's weight and drops no token.

    MiniMax 2025 (arXiv 2506.13585) eq. 4.
    """
    ratio = _clamped(logprobs - before).detach().exp()
    weight = clip(ratio)
    return TokenLosses(-weight * advantages * logprobs, weight != ratio)


ObjectiveName = Literal["clipped", "sequence_clipped", "cispo"]
OBJECTIVES: Mapping[ObjectiveName, Objective] = {
    "clipped": clipped,
    "sequence_clipped": sequence_clipped,
    "cispo": cispo,
}


def _pessimistic(ratio: Tensor, advantages: Tensor, clip: Clip) -> TokenLosses:
    free, bounded = ratio * advantages, clip(ratio) * advantages
    return TokenLosses(-torch.minimum(free, bounded), bounded < free)


# ---------------------------------------------------------------- divergences

Divergence = Callable[[Tensor, Tensor], Tensor]
"""From log-probabilities of sampled tokens under the policy and under the reference, [N] each, to estimates [N]."""


def k1(logprobs: Tensor, reference: Tensor) -> Tensor:
    """logprob - reference: unbiased for KL(policy || reference), of either sign (Schulman 2020, as k2 and k3)."""
    return logprobs - reference


def k2(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Half the square of k1. Biased; the gradient of its mean is that of the divergence, token by token."""
    return 0.5 * (logprobs - reference).square()


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Non-negative, low-variance estimate exp(d) - d - 1 with d = reference - logprob (Schulman 2020).

    d is clamped *before* exp, so value and gradient stay finite for any input; beyond the clamp the gradient is 0.
    """
    difference = _clamped(reference - logprobs)
    return difference.exp() - difference - 1


DivergenceName = Literal["k1", "k2", "k3"]
DIVERGENCES: Mapping[DivergenceName, Divergence] = {"k1": k1, "k2": k2, "k3": k3}

# ---------------------------------------------------------------- another sampler


def sampler_weights(before: Tensor, sampled: Tensor, *, cap: float, band: tuple[float, float] | None) -> Tensor:
    """How much more likely the trainer's policy was to draw each token than the sampler that drew it, at most `cap`.

    Truncated importance sampling of single tokens, Yao et al. 2025 ("Your efficient RL framework secretly brings you
    off-policy RL training"); a token whose weight lies outside `band` gets 0, as IcePop does (Ling team 2025).
    """
    weights = _clamped(before - sampled).exp()
    if band is None:
        return weights.clamp(max=cap)
    return weights.clamp(max=cap) * ((weights >= band[0]) & (weights <= band[1]))


def _clamped(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
