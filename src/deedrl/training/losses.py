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

from deedrl.training.objectives import MAX_LOG_RATIO, Clip, Divergence, Objective, clipped, k3
from deedrl.training.samples import TrainingSample

Normalisation = Literal["token", "sequence", "constant"]

RATIO_BOUNDS = (0.5, 2.0)
"""Importance ratios outside have left every usual clip range behind; they are counted for the log."""


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
    """Tokens that the objective's clipping acts on."""
    clamped: Tensor
    """Tokens whose log-ratio was beyond `MAX_LOG_RATIO`."""
    kl: Tensor
    """Sum over tokens of the estimate of KL(policy || reference)."""
    logprob_gap: Tensor
    """Sum over tokens of |log-probability here - as sampled|."""
    approx_kl: Tensor
    """Sum over tokens of the k3 estimate of KL(sampler || policy): how far the policy has moved since."""
    ratio_outside: Tensor
    """Tokens whose importance ratio lies outside `RATIO_BOUNDS`."""
    ratio_max: Tensor
    """The largest importance ratio of a token, at most exp(`MAX_LOG_RATIO`)."""


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
    objective: Objective = clipped,
    divergence: Divergence = k3,
    sample_of: Tensor | None = None,
    before: Tensor | None = None,
    correction: Tensor | None = None,
) -> PolicyLoss:
    """Policy-gradient loss with a KL penalty; GRPO's with what is the default.

    `sampled` are the behaviour policy's log-probabilities. Per token: `objective` of the importance ratio to `before`
    (None: to `sampled`), `correction` times if given, plus kl_coefficient times `divergence`. `sample_of` says which
    tokens are one sequence (None: all), for objectives that ask.
    """
    start = sampled if before is None else before
    sequences = torch.zeros(len(logprobs), dtype=torch.long) if sample_of is None else sample_of
    per_token, held = objective(logprobs, start, advantages, sequences, Clip(clip_low, clip_high))
    if correction is not None:
        per_token = correction * per_token
    estimate = torch.zeros_like(logprobs)
    if reference is not None:
        estimate = divergence(logprobs, reference)
        per_token = per_token + kl_coefficient * estimate
    ratio = (logprobs - start).detach().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    return PolicyLoss(
        loss=(weights * per_token).sum(),
        clipped=held.sum().detach(),
        clamped=((logprobs - start).abs() > MAX_LOG_RATIO).sum().detach(),
        kl=estimate.sum().detach(),
        logprob_gap=(logprobs - sampled).abs().sum().detach(),
        approx_kl=k3(sampled, logprobs.detach()).sum(),
        ratio_outside=((ratio < RATIO_BOUNDS[0]) | (ratio > RATIO_BOUNDS[1])).sum(),
        ratio_max=ratio.max() if ratio.numel() else ratio.new_ones(()),
    )


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
