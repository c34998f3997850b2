"""Samples to micro-batches in which what samples have in common is computed once, and little padding is wasted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deedrl.training.samples import TrainingSample


@dataclass(frozen=True)
class Batch:
    """One micro-batch, a tree of three levels: prefix → prompts of tasks → each row's own tokens.

    prefix_ids [P], common to all samples of the update. prompt_ids [G, Q] right-padded with prompt_lengths [G]: what
    siblings read before their first action, computed once for all of them; Q is 0 where no two rows are siblings.
    ids [B, T] right-padded with lengths [B]: each row's own tokens, which follow prompt `prompt_of` [B].

    The N action tokens of all rows lie flat: `rows`, `columns` [N] point at the position in `ids` whose hidden state
    predicts the token, `targets` [N] are the tokens; `logprobs`, `advantages` [N] float32; `weights` [B].
    """

    prefix_ids: Tensor
    prompt_ids: Tensor
    prompt_lengths: Tensor
    prompt_of: Tensor
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
        """Real tokens computed: prefix and prompts once, plus every row's own."""
        return int(self.prefix_ids.numel() + self.prompt_lengths.sum() + self.lengths.sum())


def shared_prefix_length(samples: Sequence[TrainingSample]) -> int:
    """Tokens all samples begin with, ending at least one token before the first action of any of them."""
    limit = min(_context(sample) for sample in samples)
    first = samples[0].ids
    for position in range(limit):
        if any(sample.ids[position] != first[position] for sample in samples):
            return position
    return limit


def pack(samples: Sequence[TrainingSample], *, micro_batch_tokens: int) -> list[Batch]:
    """Cuts samples into batches of at most `micro_batch_tokens` padded prompt and own tokens, similar lengths together.

    Samples with the same context before their first action stay together as far as the limit allows. Samples without
    action tokens contribute nothing and are left out. A single longer sample gets a batch of its own. All batches hold
    the same prefix tensor.
    """
    useful = [sample for sample in samples if any(sample.action_mask)]
    if not useful:
        return []
    for sample in useful:
        if sample.action_mask[0]:
            raise ValueError(
                f"sample {sample.episode_id} begins with an action token, which nothing predicts; "
                "expected a prompt of at least one token before it"
            )
    length = shared_prefix_length(useful)
    prefix = torch.tensor(useful[0].ids[:length], dtype=torch.long)
    batches: list[list[_Siblings]] = [[]]
    for siblings in _sibling_groups(useful, length, micro_batch_tokens):
        if batches[-1] and _padded_tokens([*batches[-1], siblings]) > micro_batch_tokens:
            batches.append([])
        batches[-1].append(siblings)
    return [_batch(groups, prefix) for groups in batches]


@dataclass(frozen=True)
class _Siblings:
    """Rows with one prompt; `prompt` is empty for a row without siblings, which then holds it itself."""

    prompt: tuple[int, ...]
    samples: tuple[TrainingSample, ...]
    start: int
    """Where the rows' own tokens begin in their samples."""

    @property
    def longest(self) -> int:
        return max(len(sample.ids) for sample in self.samples) - self.start


def _context(sample: TrainingSample) -> int:
    """Tokens before the one that predicts the first action."""
    return max(sample.action_mask.index(True) - 1, 0)


def _sibling_groups(samples: Sequence[TrainingSample], prefix: int, limit: int) -> list[_Siblings]:
    """Rows by prompt, cut where one prompt has more rows than the limit holds, from short to long."""
    by_prompt: dict[tuple[int, ...], list[TrainingSample]] = {}
    for sample in samples:
        by_prompt.setdefault(sample.ids[prefix : _context(sample)], []).append(sample)
    groups: list[_Siblings] = []
    for prompt, members in by_prompt.items():
        start = prefix + len(prompt)
        piece: list[TrainingSample] = []
        for sample in sorted(members, key=lambda s: len(s.ids)):
            if piece and len(prompt) + (len(piece) + 1) * (len(sample.ids) - start) > limit:
                groups.append(_siblings(prompt, piece, prefix))
                piece = []
            piece.append(sample)
        groups.append(_siblings(prompt, piece, prefix))
    return sorted(groups, key=lambda group: group.longest)


def _siblings(prompt: tuple[int, ...], samples: Sequence[TrainingSample], prefix: int) -> _Siblings:
    if len(samples) == 1 or not prompt:
        return _Siblings(prompt=(), samples=tuple(samples), start=prefix)
    return _Siblings(prompt=prompt, samples=tuple(samples), start=prefix + len(prompt))


def _padded_tokens(groups: Sequence[_Siblings]) -> int:
    rows = sum(len(group.samples) for group in groups)
    prompts = len(groups) * max(len(group.prompt) for group in groups)
    return prompts + rows * max(group.longest for group in groups)


def _padded(sequences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Ids [n, longest] right-padded with 0, and lengths [n]."""
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    ids = torch.zeros(len(sequences), int(lengths.max()), dtype=torch.long)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = torch.tensor(sequence)
    return ids, lengths


def _batch(groups: Sequence[_Siblings], prefix: Tensor) -> Batch:
    members = [(index, group.start, sample) for index, group in enumerate(groups) for sample in group.samples]
    prompt_ids, prompt_lengths = _padded([group.prompt for group in groups])
    ids, lengths = _padded([sample.ids[start:] for _, start, sample in members])
    rows, columns, logprobs, advantages = [], [], [], []
    for row, (_, start, sample) in enumerate(members):
        at = torch.tensor(sample.action_mask[start:]).nonzero()[:, 0]
        rows.append(torch.full_like(at, row))
        columns.append(at - 1)
        logprobs.append(torch.tensor(sample.logprobs[start:])[at])
        advantages.append(torch.tensor((sample.advantages or (0.0,) * len(sample.ids))[start:])[at])
    row_index, column_index = torch.cat(rows), torch.cat(columns)
    return Batch(
        prefix_ids=prefix,
        prompt_ids=prompt_ids,
        prompt_lengths=prompt_lengths,
        prompt_of=torch.tensor([index for index, _, _ in members]),
        ids=ids,
        lengths=lengths,
        rows=row_index,
        columns=column_index,
        targets=ids[row_index, column_index + 1],
        logprobs=torch.cat(logprobs),
        advantages=torch.cat(advantages),
        weights=torch.tensor([sample.weight for _, _, sample in members]),
    )
