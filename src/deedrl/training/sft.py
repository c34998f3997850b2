"""Supervised fine-tuning on kept trajectories: loss on action tokens only, turn-end token included."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from deedrl.training.learner import Learner, UpdateStats
from deedrl.training.losses import sample_weights, sft_loss
from deedrl.training.packing import pack
from deedrl.training.samples import TrainingSample
from deedrl.training.weighting import weighted


def sft_update(
    learner: Learner,
    samples: Sequence[TrainingSample],
    *,
    learning_rate: float,
    max_grad_norm: float,
    micro_batch_tokens: int,
) -> UpdateStats:
    """One step on these samples; the loss is the mean negative log-likelihood of their action tokens, in nats.

    An adapter's dropout acts here.
    """
    scaled = weighted(samples, sample_weights(samples, "token"))
    batches = pack(scaled, micro_batch_tokens=micro_batch_tokens)
    return learner.update(
        batches,
        lambda batch, logprobs: sft_loss(logprobs, batch.weights[batch.sample_of]),
        learning_rate=learning_rate,
        max_grad_norm=max_grad_norm,
        dropout=True,
    )


def batch_order(count: int, batch_size: int, steps: int, seed: int) -> Iterator[list[int]]:
    """Indices of each step's samples: shuffled passes over `count` samples, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    waiting: list[int] = []
    for _ in range(steps):
        while len(waiting) < batch_size:
            waiting += torch.randperm(count, generator=generator).tolist()
        yield waiting[:batch_size]
        waiting = waiting[batch_size:]
