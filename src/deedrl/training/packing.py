"""Samples to micro-batches in which what samples have in common is computed once, and little padding is wasted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from deedrl.training.samples import TrainingSample

SHORTEST_SHARED = 16
"""Tokens. A shorter common beginning is not worth a pass of its own through all layers."""


@dataclass(frozen=True)
class Batch:
    """One micro-batch, a tree of three levels: prefix → shared beginnings → each row's own tokens.

    prefix_ids [P], common to all samples of the update. shared_ids [G, Q] right-padded with shared_lengths [G]: what
    the rows of a cluster go on with, actions included, computed once for all of them. ids [B, T] right-padded with
    lengths [B]: each row's own tokens, which follow the first `shared_before` [B] tokens of `shared_of` [B]; a row
    outside all clusters has 0 there. G and Q are 0 where there are no clusters.

    A slot is a position in shared_ids or, counted on from G Q, in ids, both row by row. The hidden state at `slots` [M]
    predicts the token `targets` [M]: every pair that some sample needs, once. The N action tokens of all S samples lie
    flat: `predictions` [N] says which of the M each is, `sample_of` [N] whose it is; `logprobs`, `advantages`, and of a
    critic `values`, `returns` [N] float32; `weights` [S]. `given_as` [S] says which of the samples given to `pack` each
    is. The hidden states at `end_slots` [E] are those after the tokens at `read_at` of the samples `end_of` [E], and
    after the last token of samples that a limit cut.
    """

    prefix_ids: Tensor
    shared_ids: Tensor
    shared_lengths: Tensor
    shared_of: Tensor
    shared_before: Tensor
    ids: Tensor
    lengths: Tensor
    slots: Tensor
    targets: Tensor
    predictions: Tensor
    sample_of: Tensor
    logprobs: Tensor
    advantages: Tensor
    values: Tensor
    returns: Tensor
    weights: Tensor
    given_as: Tensor
    end_slots: Tensor
    end_of: Tensor
    siblings_share: bool = False
    """Some batch of the same `pack` has shared beginnings."""

    @property
    def tokens(self) -> int:
        """Real tokens computed: prefix and shared beginnings once, plus every row's own."""
        return int(self.prefix_ids.numel() + self.shared_lengths.sum() + self.lengths.sum())

    @property
    def action_tokens(self) -> int:
        """N, in which a token that several samples hold counts for each of them."""
        return len(self.predictions)


def shared_prefix_length(samples: Sequence[TrainingSample]) -> int:
    """Tokens all samples begin with, ending at least one token before the first action of any of them."""
    first = samples[0].ids
    limit = min(sample.action_mask.index(True) for sample in samples) - 1
    return max(min(limit, *(_common(first, sample.ids) for sample in samples)), 0)


def pack(samples: Sequence[TrainingSample], *, micro_batch_tokens: int) -> list[Batch]:
    """Cuts samples into batches of at most `micro_batch_tokens` padded shared and own tokens, similar lengths together.

    Rows of a cluster stay together as far as the limit allows. Samples without action tokens contribute nothing and
    are left out, and so is what follows the last token that predicts an action or is read at (in a sample that a limit
    cut nothing is, for a critic is asked about its end). A single longer sample gets a batch of its own. All batches
    hold the same prefix tensor.
    """
    places = [place for place, sample in enumerate(samples) if any(sample.action_mask)]
    useful = [samples[place] for place in places]
    if not useful:
        return []
    for sample in useful:
        if sample.action_mask[0]:
            raise ValueError(
                f"sample {sample.episode_id} begins with an action token, which nothing predicts; "
                "expected a prompt of at least one token before it"
            )
    start = shared_prefix_length(useful)
    prefix = torch.tensor(useful[0].ids[:start], dtype=torch.long)
    pieces = [
        piece for rows in _clustered(_rows(useful, places), start) for piece in _pieces(rows, start, micro_batch_tokens)
    ]
    batches: list[list[_Cluster]] = [[]]
    for piece in sorted(pieces, key=lambda piece: (piece.longest, piece.shared)):
        if batches[-1] and _padded_tokens([*batches[-1], piece]) > micro_batch_tokens:
            batches.append([])
        batches[-1].append(piece)
    siblings_share = any(cluster.shared for clusters in batches for cluster in clusters)
    return [_batch(clusters, prefix, siblings_share) for clusters in batches]


# ---------------------------------------------------------------- what is computed once


@dataclass(frozen=True)
class _Row:
    """Tokens to compute, and the samples they serve: what each of these has to compute is a beginning of `ids`."""

    ids: tuple[int, ...]
    samples: list[tuple[int, TrainingSample]]
    """With each its place among the samples given."""


@dataclass(frozen=True)
class _Cluster:
    """Rows that have `shared` tokens in common after the first `start`; 0 for a row alone, which holds all itself."""

    rows: tuple[_Row, ...]
    start: int
    shared: int

    @classmethod
    def of(cls, rows: Sequence[_Row], start: int) -> _Cluster:
        ends = [_common(rows[0].ids, row.ids) for row in rows[1:]]
        return cls(tuple(rows), start, min(ends, default=start) - start)

    @property
    def longest(self) -> int:
        return max(len(row.ids) for row in self.rows) - self.start - self.shared


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens that both begin with."""
    for position, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return position
    return min(len(one), len(other))


def _rows(samples: Sequence[TrainingSample], places: Sequence[int]) -> list[_Row]:
    """The distinct rows of samples; none is a beginning of another."""
    rows: list[_Row] = []
    needed = [(_needed(sample), place, sample) for place, sample in zip(places, samples, strict=True)]
    # In falling order a row's beginnings come after it.
    for ids, place, sample in sorted(needed, key=lambda entry: entry[0], reverse=True):
        if rows and rows[-1].ids[: len(ids)] == ids:
            rows[-1].samples.append((place, sample))
        else:
            rows.append(_Row(ids, [(place, sample)]))
    return rows


def _needed(sample: TrainingSample) -> tuple[int, ...]:
    """The tokens to compute: from the last action token on nothing predicts an action."""
    if sample.cut:
        return sample.ids
    last_action = max(i for i, action in enumerate(sample.action_mask) if action)
    return sample.ids[: max(last_action, *(position + 1 for position in sample.read_at), 0)]


def _clustered(rows: Sequence[_Row], start: int) -> list[list[_Row]]:
    """Rows by what they begin with: the pairs with most in common join first, as long as that saves tokens.

    A cluster of n rows with c tokens in common saves (n - 1) c. A row that would shorten the common part of a cluster
    by more than it saves stays out, and may join others like it.
    """
    tails = [row.ids[start:] for row in rows]
    pairs = ((_common(tails[i], tails[j]), i, j) for i, j in combinations(range(len(rows)), 2))
    cluster_of = {i: [i] for i in range(len(rows))}
    saved = dict.fromkeys(cluster_of, 0)  # by a cluster's first row
    for common, i, j in sorted((pair for pair in pairs if pair[0] >= SHORTEST_SHARED), reverse=True):
        one, other = cluster_of[i], cluster_of[j]
        # Pairs come with falling `common`, so it is what the two clusters have in common as well.
        saving = (len(one) + len(other) - 1) * common
        if one is not other and saving > saved[one[0]] + saved[other[0]]:
            one += other
            saved[one[0]] = saving
            cluster_of.update(dict.fromkeys(other, one))
    return [[rows[i] for i in cluster] for first, cluster in cluster_of.items() if cluster[0] == first]


def _pieces(rows: Sequence[_Row], start: int, limit: int) -> list[_Cluster]:
    """A cluster, or several of similar lengths where it has more rows than the limit holds."""
    pieces: list[_Cluster] = []
    for row in sorted(rows, key=lambda row: len(row.ids)):
        joined = _Cluster.of([*pieces[-1].rows, row], start) if pieces else None
        if joined and _padded_tokens([joined]) <= limit:
            pieces[-1] = joined
        else:
            pieces.append(_Cluster.of([row], start))
    return pieces


def _padded_tokens(clusters: Sequence[_Cluster]) -> int:
    shared = [cluster.shared for cluster in clusters if cluster.shared]
    rows = sum(len(cluster.rows) for cluster in clusters)
    return len(shared) * max(shared, default=0) + rows * max(cluster.longest for cluster in clusters)


# ---------------------------------------------------------------- tensors


def _padded(sequences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Ids [n, longest] right-padded with 0, and lengths [n]."""
    lengths = torch.tensor([len(sequence) for sequence in sequences], dtype=torch.long)
    ids = torch.zeros(len(sequences), max(map(len, sequences), default=0), dtype=torch.long)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = torch.tensor(sequence)
    return ids, lengths


def _batch(clusters: Sequence[_Cluster], prefix: Tensor, siblings_share: bool) -> Batch:
    sharing = [cluster for cluster in clusters if cluster.shared]
    members = [(cluster, row) for cluster in clusters for row in cluster.rows]
    start = len(prefix)
    shared_ids, shared_lengths = _padded([c.rows[0].ids[start : start + c.shared] for c in sharing])
    ids, lengths = _padded([row.ids[start + cluster.shared :] for cluster, row in members])
    place = {id(cluster): index for index, cluster in enumerate(sharing)}
    flat = _FlatTokens()
    for index, (cluster, row) in enumerate(members):
        first, own = place.get(id(cluster), 0) * shared_ids.shape[1], shared_ids.numel() + index * ids.shape[1]
        slots = [*range(first, first + cluster.shared), *range(own, own + len(row.ids))]
        for place_given, sample in row.samples:
            flat.add(sample, place_given, start, slots)
    return Batch(
        prefix_ids=prefix,
        shared_ids=shared_ids,
        shared_lengths=shared_lengths,
        shared_of=torch.tensor([place.get(id(cluster), 0) for cluster, _ in members]),
        shared_before=torch.tensor([cluster.shared for cluster, _ in members]),
        ids=ids,
        lengths=lengths,
        slots=torch.tensor([slot for slot, _ in flat.distinct]),
        targets=torch.tensor([target for _, target in flat.distinct]),
        predictions=torch.tensor(flat.predictions),
        sample_of=torch.tensor(flat.sample_of),
        logprobs=torch.tensor(flat.logprobs),
        advantages=torch.tensor(flat.advantages),
        values=torch.tensor(flat.values),
        returns=torch.tensor(flat.returns),
        weights=torch.tensor(flat.weights),
        given_as=torch.tensor(flat.given_as),
        end_slots=torch.tensor([slot for slot, _ in flat.ends], dtype=torch.long),
        end_of=torch.tensor([sample for _, sample in flat.ends], dtype=torch.long),
        siblings_share=siblings_share,
    )


class _FlatTokens:
    """The action tokens of samples one after the other, and the distinct (slot, target) they need."""

    def __init__(self) -> None:
        self.distinct: dict[tuple[int, int], int] = {}
        self.predictions: list[int] = []
        self.sample_of: list[int] = []
        self.logprobs: list[float] = []
        self.advantages: list[float] = []
        self.values: list[float] = []
        self.returns: list[float] = []
        self.weights: list[float] = []
        self.given_as: list[int] = []
        self.ends: list[tuple[int, int]] = []

    def add(self, sample: TrainingSample, place: int, start: int, slots: Sequence[int]) -> None:
        """`slots` are those of the sample's tokens from position `start` on; `place` is its place among those given."""
        row = len(self.weights)
        for position, action in enumerate(sample.action_mask):
            if action:
                pair = slots[position - 1 - start], sample.ids[position]
                self.predictions.append(self.distinct.setdefault(pair, len(self.distinct)))
                self.sample_of.append(row)
                self.logprobs.append(sample.logprobs[position])
                self.advantages.append(sample.advantages[position] if sample.advantages else 0.0)
                self.values.append(sample.values[position] if sample.values else 0.0)
                self.returns.append(sample.returns[position] if sample.returns else 0.0)
        for position in (*sample.read_at, *([len(sample.ids) - 1] if sample.cut else [])):
            self.ends.append((slots[position - start], row))
        self.weights.append(sample.weight)
        self.given_as.append(place)
