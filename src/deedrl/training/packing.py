"""Samples to micro-batches that share one prefix and waste little padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deedrl.training.samples import TrainingSample


@dataclass(frozen=True)
class Batch:
    """One micro-batch: a prefix common to all rows, and each row's own tokens, right-padded.

    prefix_ids [P]; ids [B, T]; lengths [B]. The N action tokens of all rows lie flat: `rows`, `columns` [N] point at
    the position in `ids` whose hidden state predicts the token, `targets` [N] are the tokens; `logprobs`, `advantages`
    [N] float32; `sample_index` [N] numbers the row each belongs to; `weights` [B].
    """

    prefix_ids: Tensor
    ids: Tensor
    lengths: Tensor
    rows: Tensor
    columns: Tensor
    targets: Tensor
    logprobs: Tensor
    advantages: Tensor
    weights: Tensor

    @property
    def tokens(self) -> int:
        """Real tokens computed: prefix once, plus every row's own."""
        return int(self.prefix_ids.numel() + self.lengths.sum())


def shared_prefix_length(samples: Sequence[TrainingSample]) -> int:
    """Tokens all samples begin with, ending at least one token before the first action of any of them."""
    limit = min(sample.action_mask.index(True) - 1 for sample in samples)
    first = samples[0].ids
    for position in range(max(limit, 0)):
        if any(sample.ids[position] != first[position] for sample in samples):
            return position
    return max(limit, 0)


def pack(samples: Sequence[TrainingSample], *, micro_batch_tokens: int) -> list[Batch]:
    """Cuts samples into batches of at most `micro_batch_tokens` padded own tokens each, similar lengths together.

    Samples without action tokens contribute nothing and are left out. A single longer sample gets a batch of its own.
    """
    useful = sorted((s for s in samples if any(s.action_mask)), key=lambda s: len(s.ids))
    if not useful:
        return []
    for sample in useful:
        if sample.action_mask[0]:
            raise ValueError(
                f"sample {sample.episode_id} begins with an action token, which nothing predicts; "
                "expected a prompt of at least one token before it"
            )
    prefix = shared_prefix_length(useful)
    batches: list[list[TrainingSample]] = [[]]
    for sample in useful:
        own = len(sample.ids) - prefix
        if batches[-1] and own * (len(batches[-1]) + 1) > micro_batch_tokens:
            batches.append([])
        batches[-1].append(sample)
    return [_batch(group, prefix) for group in batches]


def _batch(samples: Sequence[TrainingSample], prefix: int) -> Batch:
    lengths = [len(sample.ids) - prefix for sample in samples]
    ids = torch.zeros(len(samples), max(lengths), dtype=torch.long)
    rows, columns, targets, logprobs, advantages = [], [], [], [], []
    for row, sample in enumerate(samples):
        own = torch.tensor(sample.ids[prefix:])
        ids[row, : len(own)] = own
        mask = torch.tensor(sample.action_mask[prefix:])
        at = mask.nonzero()[:, 0]
        rows.append(torch.full_like(at, row))
        columns.append(at - 1)
        targets.append(own[at])
        logprobs.append(torch.tensor(sample.logprobs[prefix:])[at])
        per_token = sample.advantages or (0.0,) * len(sample.ids)
        advantages.append(torch.tensor(per_token[prefix:])[at])
    return Batch(
        prefix_ids=torch.tensor(samples[0].ids[:prefix], dtype=torch.long),
        ids=ids,
        lengths=torch.tensor(lengths),
        rows=torch.cat(rows),
        columns=torch.cat(columns),
        targets=torch.cat(targets),
        logprobs=torch.cat(logprobs),
        advantages=torch.cat(advantages),
        weights=torch.tensor([sample.weight for sample in samples]),
    )
