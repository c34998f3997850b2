"""Losses over flat action tokens: pure functions of tensors [N], one float32 entry per action token.

Normalisation lives in the token weights, computed once for the whole update, so that cutting a batch into
micro-batches or processes cannot change the gradient. Sums of these losses over all micro-batches are the loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from deedrl.training.samples import TrainingSample

MAX_LOG_RATIO = 10.0
"""Log-ratios are clamped to this before exp: e^10 is far beyond any clip range and finite in every float type."""

Normalisation = Literal["token", "sequence", "constant"]


@dataclass(frozen=True)
class Silent:
    """Episodes whose advantages are all 0: nothing is computed for them, but losses are means over them too.

    Left out of the mean, a batch in which few groups differ would weigh its few as much as a batch of many, and an
    optimiser that scales gradients to unit size would follow their noise.
    """

    episodes: float = 0.0
    action_tokens: float = 0.0

    def __mul__(self, share: float) -> Silent:
        return Silent(self.episodes * share, self.action_tokens * share)


NONE_SILENT = Silent()


def sample_weights(
    samples: Sequence[TrainingSample], normalisation: Normalisation, constant: int = 512, silent: Silent = NONE_SILENT
) -> list[float]:
    """The factor of each sample's token losses so that their sum over the update is the normalised loss.

    ``token``: every action token of the update counts the same. ``sequence``: every episode counts the same, its tokens
    share it equally (an episode cut into several samples still counts once). ``constant``: as ``sequence`` but
    divided by `constant` tokens instead of the episode's own (Dr. GRPO). Samples' own `weight` multiplies and is part
    of the denominators. Only samples passed here and `silent` ones count; excluded ones are in neither numerator nor
    denominator.
    """
    tokens_of: dict[str, float] = {}
    weight_of: dict[str, float] = {}
    for sample in samples:
        tokens_of[sample.episode_id] = tokens_of.get(sample.episode_id, 0.0) + sample.action_tokens
        weight_of[sample.episode_id] = sample.weight
    total_tokens = sum(tokens_of[episode] * weight_of[episode] for episode in tokens_of)
    total_episodes = sum(weight_of[episode] for episode in tokens_of if tokens_of[episode])
    if not total_tokens:
        return [0.0] * len(samples)
    total_tokens += silent.action_tokens
    total_episodes += silent.episodes
    if normalisation == "token":
        return [sample.weight / total_tokens for sample in samples]
    if normalisation == "sequence":
        return [sample.weight / (total_episodes * max(tokens_of[sample.episode_id], 1)) for sample in samples]
    return [sample.weight / (total_episodes * constant) for sample in samples]


def sft_loss(logprobs: Tensor, weights: Tensor) -> Tensor:
    """Weighted negative log-likelihood of action tokens."""
    return -(weights * logprobs).sum()


@dataclass(frozen=True)
class PolicyLoss:
    """A loss to differentiate and detached sums over its tokens for the log."""

    loss: Tensor
    clipped: Tensor
    """Tokens whose ratio left the clip range in the direction that clipping acts on."""
    clamped: Tensor
    """Tokens whose log-ratio was beyond `MAX_LOG_RATIO`."""
    kl: Tensor
    """Sum over tokens of the k3 estimate of KL(policy || reference)."""
    logprob_gap: Tensor
    """Sum over tokens of |log-probability here - as sampled|."""
    approx_kl: Tensor
    """Sum over tokens of the k3 estimate of KL(sampler || policy): how far the policy has moved since."""


def policy_loss(
    logprobs: Tensor,
    sampled: Tensor,
    advantages: Tensor,
    weights: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    reference: Tensor | None = None,
    kl_coefficient: float = 0.0,
) -> PolicyLoss:
    """Clipped policy-gradient loss with a KL penalty (PPO, Schulman et al. 2017, eq. 7; GRPO adds the KL term).

    `sampled` are the behaviour policy's log-probabilities. Per token: -min(r A, clip(r, 1 - clip_low, 1 + clip_high) A)
    + kl_coefficient * k3, with r the importance ratio.
    """
    raw = logprobs - sampled
    log_ratio = raw.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio = log_ratio.exp()
    unclipped = ratio * advantages
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    per_token = -torch.minimum(unclipped, clipped)
    divergence = torch.zeros_like(logprobs)
    if reference is not None:
        divergence = k3(logprobs, reference)
        per_token = per_token + kl_coefficient * divergence
    return PolicyLoss(
        loss=(weights * per_token).sum(),
        clipped=(clipped < unclipped).sum().detach(),
        clamped=(raw.abs() > MAX_LOG_RATIO).sum().detach(),
        kl=divergence.sum().detach(),
        logprob_gap=raw.abs().sum().detach(),
        approx_kl=k3(sampled, logprobs.detach()).sum(),
    )


def k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """Non-negative, low-variance estimate exp(d) - d - 1 with d = reference - logprob (Schulman 2020).

    d is clamped *before* exp, so value and gradient stay finite for any input; beyond the clamp the gradient is 0.
    """
    difference = (reference - logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return difference.exp() - difference - 1


@dataclass(frozen=True)
class ValueLoss:
    """A critic's loss to differentiate and a detached sum over its tokens for the log."""

    loss: Tensor
    clipped: Tensor
    """Tokens whose value left the clip range while the clipped one is further from the return: no gradient."""


def value_loss(values: Tensor, recorded: Tensor, returns: Tensor, weights: Tensor, *, clip: float | None) -> ValueLoss:
    """Half the squared error of a critic's `values`, kept near those `recorded` before the update.

    Per token: max((v - R)², (recorded + clamp(v - recorded, -clip, clip) - R)²) / 2, as in the PPO of OpenAI's
    baselines (not in the paper); clip None leaves the second part out.
    """
    error = (values - returns).square()
    clipped = torch.zeros_like(error)
    if clip is not None:
        near = recorded + (values - recorded).clamp(-clip, clip)
        bounded = (near - returns).square()
        clipped = (bounded > error).float()
        error = torch.maximum(error, bounded)
    return ValueLoss(loss=0.5 * (weights * error).sum(), clipped=clipped.sum().detach())
