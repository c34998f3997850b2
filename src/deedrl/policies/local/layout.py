"""The layout of one step: which tokens a forward pass holds, and who of them may attend to whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deedrl.policies.local.attention import (
    Part,
    attend_many,
    attend_own,
    attend_shared,
    causal_own_mask,
    folded_mask,
    merged,
)
from deedrl.policies.local.kv_store import KVStore, Prefix
from deedrl.policies.local.rows import Row


@dataclass(frozen=True)
class Feed:
    """What one row takes in: `ids` are to be computed and written from own slot `start` on, `guesses` after them."""

    row: Row
    start: int
    ids: list[int]
    guesses: Sequence[int] = ()

    @property
    def tokens(self) -> int:
        return len(self.ids) + len(self.guesses)

    @property
    def slots(self) -> int:
        """Own slots of the row in use with these tokens."""
        return self.start + self.tokens


class StepLayout:
    """One pass over the tokens of many rows laid end to end: first the decoding rows', few each, then the fills'.

    Laid so, the model's products see one long row without padding, and no row waits for another's context. Only
    attention knows which token belongs to which row: decoding rows attend in place, fills in one padded call a prefix.
    """

    def __init__(self, store: KVStore, used: int, decoding: Sequence[Feed], fills: Sequence[Feed]) -> None:
        """`used` rows of the store are in use; `decoding` (in the order of the store) and those of `fills` are some."""
        self._store = store
        feeds = [*decoding, *fills]
        counts = torch.tensor([feed.tokens for feed in feeds])
        offsets = torch.tensor([len(feed.row.prefix.ids) if feed.row.prefix else 0 for feed in feeds])
        columns = torch.cat([torch.arange(int(count)) for count in counts])
        self._rows = torch.tensor([feed.row.index for feed in feeds]).repeat_interleave(counts)
        self._slots = torch.tensor([feed.start for feed in feeds]).repeat_interleave(counts) + columns
        self.positions = self._slots + offsets.repeat_interleave(counts)
        """Position of every token [N] in its sequence, prefix included."""
        first = [0, *counts.cumsum(0).tolist()]
        drawn = [range(end - 1 - len(feed.guesses), end) for feed, end in zip(feeds, first[1:], strict=True)]
        self.drawn = torch.tensor([place for places in drawn for place in places])
        """Places in the pass that tokens are drawn after: of every feed the last of its ids, and all guesses."""
        self._decode = _Decode(store, used, decoding) if decoding else None
        self._fills = [_Fills(store, *group) for group in _by_prefix(first[len(decoding)], fills)]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        self._store.keys[layer][self._rows, :, self._slots] = key[0].transpose(0, 1)
        self._store.values[layer][self._rows, :, self._slots] = value[0].transpose(0, 1)
        by_token = query[0].transpose(0, 1)
        output = by_token.new_empty(by_token.shape)
        if self._decode is not None:
            self._decode.attend(layer, by_token, output, scaling)
        for fills in self._fills:
            fills.attend(layer, by_token, output, scaling)
        return output.transpose(0, 1)[None]


class _Decode:
    """Attention of the first tokens of a pass, those of the decoding rows: one each, or a few with guesses."""

    def __init__(self, store: KVStore, used: int, feeds: Sequence[Feed]) -> None:
        self._store, self._used = store, used
        counts = torch.tensor([feed.tokens for feed in feeds])
        self._count, widest = int(counts.sum()), int(counts.max())
        columns = torch.arange(widest)[None]
        self._real = columns < counts[:, None]
        # Padding repeats the first token of the pass; its output is never looked at.
        self._tokens = torch.where(self._real, (counts.cumsum(0) - counts)[:, None] + columns, 0)
        self._index = torch.tensor([feed.row.index for feed in feeds])
        lengths = torch.full((used, 1), -1)
        lengths[self._index, 0] = torch.tensor([feed.start for feed in feeds])
        self._slots = max(feed.slots for feed in feeds)
        # Rows that wait for a tool take part with a query of zeros and see one slot.
        newest = (lengths + columns).clamp(min=0)
        visible = torch.arange(self._slots)[None, None] <= newest[:, :, None]
        self._bias = torch.where(visible, 0.0, -torch.inf)[:, None].repeat_interleave(store.groups, dim=2)
        self._prefixes: list[tuple[Prefix, Tensor | None]] = []
        owners = [feed.row.prefix for feed in feeds for _ in range(feed.tokens)]
        for prefix in dict.fromkeys(owners):
            at = [i for i, owner in enumerate(owners) if owner is prefix]
            if prefix is not None:
                self._prefixes.append((prefix, torch.tensor(at) if len(at) < len(owners) else None))

    def attend(self, layer: int, by_token: Tensor, output: Tensor, scaling: float) -> None:
        """Query and output [N, H, D]."""
        query = (by_token[: self._count] * scaling).view(self._count, self._store.kv_heads, -1, self._store.size)
        part = self._own(layer, query)
        for prefix, at in self._prefixes:
            if at is None:
                part = merged(part, attend_shared(query, *prefix.blocks[layer]))
                continue
            whole = merged(Part(*(tensor[at] for tensor in part)), attend_shared(query[at], *prefix.blocks[layer]))
            for tensor, some in zip(part, whole, strict=True):
                tensor.index_copy_(0, at, some)
        output[: self._count] = (part.output / part.total).flatten(1, 2)

    def _own(self, layer: int, query: Tensor) -> Part:
        """Attention of query [N, K, G, D] to each row's own part, whose tokens lie padded to one length T for it."""
        store, used = self._store, self._used
        keys, values = store.keys[layer][:used, :, : self._slots], store.values[layer][:used, :, : self._slots]
        padded = query[self._tokens].transpose(1, 2).flatten(2, 3)  # [rows, K, T G, D]
        if len(padded) < used:
            padded = padded.new_zeros(used, *padded.shape[1:]).index_copy_(0, self._index, padded)
        part = attend_own(padded, keys, values, self._bias)
        by_row = (tensor[self._index] if len(self._index) < used else tensor for tensor in part)
        shape = (len(self._index), store.kv_heads, self._tokens.shape[1], store.groups, -1)
        return Part(*(tensor.view(shape).transpose(1, 2)[self._real] for tensor in by_row))


class _Fills:
    """Attention of the tokens of several fills that come after one prefix, in one padded call."""

    def __init__(self, store: KVStore, prefix: Prefix | None, first: Sequence[int], fills: Sequence[Feed]) -> None:
        """`first` is the place of each fill's first token in the pass."""
        self._store, self._prefix = store, prefix
        starts = torch.tensor([fill.start for fill in fills])
        counts = torch.tensor([fill.tokens for fill in fills])
        longest, begin = int(counts.max()), torch.tensor(first)[:, None]
        columns = torch.arange(longest)[None]
        self._real = columns < counts[:, None]
        self._tokens = torch.where(self._real, begin + columns, begin)
        self._rows = torch.tensor([fill.row.index for fill in fills])
        self._slots = int((starts + counts).max())
        mask = causal_own_mask(starts, longest, self._slots)
        if prefix is not None:
            mask = torch.cat([mask.new_ones(1).expand(len(fills), 1, longest, len(prefix.ids)), mask], dim=-1)
        self._mask = folded_mask(mask, store.model)

    def attend(self, layer: int, by_token: Tensor, output: Tensor, scaling: float) -> None:
        """Query and output [N, H, D]."""
        keys = self._store.keys[layer][self._rows, :, : self._slots]
        values = self._store.values[layer][self._rows, :, : self._slots]
        if self._prefix is not None:
            shared = [block.expand(len(keys), -1, -1, -1) for block in self._prefix.blocks[layer]]
            keys, values = torch.cat([shared[0], keys], dim=2), torch.cat([shared[1], values], dim=2)
        query = by_token[self._tokens].transpose(1, 2)
        padded = attend_many(query, keys, values, self._mask, scaling).transpose(1, 2)
        output[self._tokens[self._real]] = padded[self._real]


def _by_prefix(first: int, fills: Sequence[Feed]) -> list[tuple[Prefix | None, list[int], list[Feed]]]:
    """The fills of each prefix, and where in the pass the tokens of each fill begin; the first begins at `first`."""
    groups: dict[Prefix | None, tuple[list[int], list[Feed]]] = {}
    for fill in fills:
        places, group = groups.setdefault(fill.row.prefix, ([], []))
        places.append(first)
        group.append(fill)
        first += fill.tokens
    return [(prefix, *found) for prefix, found in groups.items()]
