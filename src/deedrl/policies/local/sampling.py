"""Exact sampling from a full distribution by inverting its cumulative sum in two levels."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 64


def sample_tokens(logits: Tensor, temperatures: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Draws one token a row; returns (tokens [B] int64, log-probabilities [B] float32 under softmax(logits / T)).

    logits [B, V] of any float type (``-inf`` = forbidden); temperatures [B], 0 = greedy (the log-probability is then
    that of temperature 1); uniforms [B] float64 in [0, 1). Block sums are searched first and then one block, in
    float64, so that no rounding of a long float32 cumulative sum shifts mass between tokens.
    """
    greedy = temperatures == 0
    scaled = logits.float() / torch.where(greedy, 1.0, temperatures)[:, None]
    top = scaled.amax(-1, keepdim=True)
    rows, vocabulary = scaled.shape
    padded = -(-vocabulary // BLOCK) * BLOCK
    weights = torch.zeros(rows, padded) if padded != vocabulary else torch.empty(rows, padded)
    torch.exp(scaled - top, out=weights[:, :vocabulary])
    blocks = weights.view(rows, -1, BLOCK)
    block_ends = blocks.sum(-1).double().cumsum(-1)
    totals = block_ends[:, -1]
    targets = uniforms * totals
    block = torch.searchsorted(block_ends, targets[:, None], right=True).clamp_(max=block_ends.shape[1] - 1)
    before = torch.where(block > 0, block_ends.gather(1, (block - 1).clamp(min=0)), 0.0)
    inside = blocks.gather(1, block[:, :, None].expand(-1, -1, BLOCK))[:, 0].double().cumsum(-1)
    within = torch.searchsorted(inside, targets[:, None] - before, right=True)
    # Rounding between the two levels may point one past the block's last positive weight: take that weight then.
    within = torch.minimum(within, (inside < inside[:, -1:]).sum(-1, keepdim=True))
    tokens = torch.where(greedy, scaled.argmax(-1), (block * BLOCK + within)[:, 0])
    logprobs = scaled.gather(1, tokens[:, None])[:, 0] - top[:, 0] - totals.log().float()
    return tokens, logprobs
