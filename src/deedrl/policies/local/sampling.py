"""Exact sampling from a full distribution by inverting its cumulative sum in two levels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

BLOCK = 64


def sample_tokens(logits: Tensor, temperatures: Tensor, uniforms: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
    """Makes N draws from B distributions; overwrites `logits` if they are float32.

    logits [B, V] of any float type (``-inf`` = forbidden); temperatures [B], 0 = greedy (the log-probability is then
    that of temperature 1); uniforms [N] float64 in [0, 1); which [N] the distribution that each draw is from. Returns
    (tokens [N] int64, log-probabilities [N] float32 under softmax(logits / T)). Block sums are searched first and then
    one block, in float64, so that no rounding of a long float32 cumulative sum shifts mass between tokens. What is
    returned is where `logits` are; the others may be on the processor.
    """
    greedy = temperatures == 0
    tempered, some_greedy = not bool((temperatures == 1.0).all()), bool(greedy.any())
    # What was asked of these above would have kept the host waiting for an accelerator.
    greedy, temperatures, uniforms, which = (t.to(logits.device) for t in (greedy, temperatures, uniforms, which))
    # In place from here on: memory for another block of this size costs more than a pass over it.
    shifted = logits.float()
    if tempered:
        shifted = shifted.div_(torch.where(greedy, 1.0, temperatures)[:, None])
    best = shifted.argmax(-1) if some_greedy else None
    shifted.sub_(shifted.amax(-1, keepdim=True))
    weights = shifted.exp()
    missing = -weights.shape[1] % BLOCK
    blocks = (F.pad(weights, (0, missing)) if missing else weights).view(len(weights), -1, BLOCK)
    block_ends = blocks.sum(-1).double().cumsum(-1)[which]
    totals = block_ends[:, -1]
    targets = uniforms * totals
    block = torch.searchsorted(block_ends, targets[:, None], right=True).clamp_(max=block_ends.shape[1] - 1)
    before = torch.where(block > 0, block_ends.gather(1, (block - 1).clamp(min=0)), 0.0)
    inside = blocks[which, block[:, 0]].double().cumsum(-1)
    within = torch.searchsorted(inside, targets[:, None] - before, right=True)
    # Rounding between the two levels may point one past the block's last positive weight: take that weight then.
    within = torch.minimum(within, (inside < inside[:, -1:]).sum(-1, keepdim=True))
    tokens = (block * BLOCK + within)[:, 0]
    if best is not None:
        tokens = torch.where(greedy[which], best[which], tokens)
    logprobs = shifted[which, tokens] - totals.log().float()
    return tokens, logprobs
