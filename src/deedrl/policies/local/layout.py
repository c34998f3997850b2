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
class Fill:
    """New context of one row: `ids` are to be computed and written from own slot `start` on."""

    row: Row
    start: int
    ids: list[int]


class StepLayout:
    """One pass over the tokens of many rows laid end to end: one new token of each decoding row, then the fills.

    Laid so, the model's products see one long row without padding, and no row waits for another's context. Only
    attention knows which token belongs to which row: decoding rows attend in place, fills in one padded call a prefix.
    """

    def __init__(self, store: KVStore, used: int, decoding: Sequence[Row], fills: Sequence[Fill]) -> None:
        """`used` rows of the store are in use; `decoding` (in the order of the store) and those of `fills` are some."""
        self._store = store
        self._used = used
        starts = [*(len(row.ids) for row in decoding), *(fill.start for fill in fills)]
        counts = torch.tensor([*(1 for _ in decoding), *(len(fill.ids) for fill in fills)])
        rows = [*decoding, *(fill.row for fill in fills)]
        offsets = torch.tensor([len(row.prefix.ids) if row.prefix else 0 for row in rows])
        columns = torch.cat([torch.arange(int(count)) for count in counts])
        self._rows = torch.tensor([row.index for row in rows]).repeat_interleave(counts)
        self._slots = torch.tensor(starts).repeat_interleave(counts) + columns
        self.positions = self._slots + offsets.repeat_interleave(counts)
        """Position of every token [N] in its sequence, prefix included."""
        self.last = counts.cumsum(0) - 1
        """Place of the newest token of every decoding row and fill in the pass."""
        self._decode = _Decode(store, used, decoding) if decoding else None
        self._fills = [_Fills(store, *group) for group in _by_prefix(len(decoding), fills)]

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
    """Attention of the first `len(rows)` tokens, one new token of each decoding row."""

    def __init__(self, store: KVStore, used: int, rows: Sequence[Row]) -> None:
        self._store, self._used, self._count = store, used, len(rows)
        lengths = torch.full((used,), -1)
        self._index = torch.tensor([row.index for row in rows])
        lengths[self._index] = torch.tensor([len(row.ids) for row in rows])
        self._slots = int(lengths.max()) + 1
        # Rows that wait for a tool take part with a query of zeros and see one slot.
        visible = torch.arange(self._slots)[None, :] <= lengths.clamp(min=0)[:, None]
        self._bias = torch.where(visible, 0.0, -torch.inf)[:, None, None, :]
        self._prefixes: list[tuple[Prefix, Tensor | None]] = []
        for prefix in dict.fromkeys(row.prefix for row in rows):
            at = [i for i, row in enumerate(rows) if row.prefix is prefix]
            if prefix is not None:
                self._prefixes.append((prefix, torch.tensor(at) if len(at) < len(rows) else None))

    def attend(self, layer: int, by_token: Tensor, output: Tensor, scaling: float) -> None:
        """Query and output [N, H, D]."""
        store, used = self._store, self._used
        query = (by_token[: self._count] * scaling).view(self._count, store.kv_heads, -1, store.size)
        keys, values = store.keys[layer][:used, :, : self._slots], store.values[layer][:used, :, : self._slots]
        if self._count == used:
            part = attend_own(query, keys, values, self._bias)
        else:
            all_rows = query.new_zeros(used, *query.shape[1:]).index_copy_(0, self._index, query)
            part = Part(*(tensor[self._index] for tensor in attend_own(all_rows, keys, values, self._bias)))
        for prefix, at in self._prefixes:
            if at is None:
                part = merged(part, attend_shared(query, *prefix.blocks[layer]))
                continue
            whole = merged(Part(*(tensor[at] for tensor in part)), attend_shared(query[at], *prefix.blocks[layer]))
            for tensor, some in zip(part, whole, strict=True):
                tensor.index_copy_(0, at, some)
        output[: self._count] = (part.output / part.total).flatten(1, 2)


class _Fills:
    """Attention of the tokens of several fills that come after one prefix, in one padded call."""

    def __init__(self, store: KVStore, prefix: Prefix | None, first: Sequence[int], fills: Sequence[Fill]) -> None:
        """`first` is the place of each fill's first token in the pass."""
        self._store, self._prefix = store, prefix
        starts = torch.tensor([fill.start for fill in fills])
        counts = torch.tensor([len(fill.ids) for fill in fills])
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


def _by_prefix(first: int, fills: Sequence[Fill]) -> list[tuple[Prefix | None, list[int], list[Fill]]]:
    """The fills of each prefix, and where in the pass the tokens of each fill begin; the first begins at `first`."""
    groups: dict[Prefix | None, tuple[list[int], list[Fill]]] = {}
    for fill in fills:
        places, group = groups.setdefault(fill.row.prefix, ([], []))
        places.append(first)
        group.append(fill)
        first += len(fill.ids)
    return [(prefix, *found) for prefix, found in groups.items()]
