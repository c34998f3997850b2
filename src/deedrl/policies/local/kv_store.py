"""Keys and values of one shared prefix and of each row's own tokens, and the layouts forward passes use on them.

Own parts lie in one block per layer, [rows, K, slots, D], indexed by row; decoding reads the block in place. Rows in
use are always ``0 … used-1``: a finished row is filled by moving the last one, so no step gathers or copies rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deedrl.memory import give_back
from deedrl.policies.local.attention import attend_many, attend_one, causal_own_mask, folded_mask

SLOT_QUANTUM = 128


class KVStore:
    """Storage for up to `rows` sequences; own parts grow in steps of `SLOT_QUANTUM` tokens."""

    def __init__(self, model: Any, rows: int) -> None:
        config = model.config.get_text_config()
        self.model = model
        self.layers: int = config.num_hidden_layers
        self.kv_heads: int = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        self.size: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.dtype: torch.dtype = model.dtype
        self.rows = rows
        self.slots = 0
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.prefix: list[tuple[Tensor, Tensor]] = []
        self.prefix_length = 0

    def reserve(self, slots: int) -> None:
        """Makes room for `slots` own tokens in every row, keeping what is stored."""
        if slots <= self.slots:
            return
        slots = -(-slots // SLOT_QUANTUM) * SLOT_QUANTUM
        if not self.slots:
            self.keys, self.values = ([self._empty(slots) for _ in range(self.layers)] for _ in range(2))
        else:
            # One block after the other, so that old and new storage never exist as a whole side by side.
            for blocks in (self.keys, self.values):
                for layer in range(self.layers):
                    grown = self._empty(slots)
                    grown[:, :, : self.slots] = blocks[layer]
                    blocks[layer] = grown
            give_back()
        self.slots = slots

    def _empty(self, slots: int) -> Tensor:
        # Zeros, not empty memory: a masked slot holding NaN would still turn weight 0 into NaN.
        return torch.zeros(self.rows, self.kv_heads, slots, self.size, dtype=self.dtype)

    def move_row(self, source: int, target: int) -> None:
        for block in (*self.keys, *self.values):
            block[target] = block[source]

    def copy_context(self, fill: Fill) -> None:
        """Gives a fill's twins what its row now holds."""
        end = fill.start + len(fill.ids)
        for block in (*self.keys, *self.values):
            for twin in fill.twins:
                block[twin, :, :end] = block[fill.row, :, :end]


class PrefixLayout:
    """Computes the shared prefix itself: one row, plain causal attention; keeps its keys and values."""

    def __init__(self, tokens: int, model: Any) -> None:
        self.prefix: list[tuple[Tensor, Tensor]] = []
        self._mask = folded_mask(causal_own_mask(torch.zeros(1, dtype=torch.long), tokens, tokens), model)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        self.prefix.append((key, value))
        return attend_many(query, key, value, self._mask, scaling)


@dataclass(frozen=True)
class Fill:
    """New context of one row: `ids` are to be computed and written from own slot `start` on."""

    row: int
    start: int
    ids: list[int]
    with_prefix: bool
    twins: tuple[int, ...] = ()
    """Further rows with the very same own context, which get a copy instead of a computation."""


class StepLayout:
    """One pass over the tokens of many rows laid end to end: one new token of each decoding row, then the fills.

    Laid so, the model's products see one long row without padding, and no row waits for another's context. Only
    attention knows which token belongs to which row: decoding rows attend in place, fills in one padded call.
    """

    def __init__(self, store: KVStore, decoding: Sequence[int], lengths: Tensor, shared: Tensor, fills: Sequence[Fill]):
        """`lengths` [used] own tokens stored and `shared` [used] whether it has the prefix, of every row in use."""
        self._store = store
        self._used = len(lengths)
        rows = torch.tensor(decoding, dtype=torch.long)
        fill_rows = [torch.full((len(fill.ids),), fill.row) for fill in fills]
        fill_slots = [torch.arange(fill.start, fill.start + len(fill.ids)) for fill in fills]
        self._token_rows = torch.cat([rows, *fill_rows])
        self._token_slots = torch.cat([lengths[rows], *fill_slots])
        self._decoding = rows
        self._all_decode = len(decoding) == self._used
        if decoding:
            self._decode_slots = int(lengths.max()) + 1
            visible = torch.arange(self._decode_slots)[None, :] <= lengths[:, None]
            self._own_bias = torch.where(visible, 0.0, -torch.inf)[:, None, None, :]
            self._prefix_bias = None if bool(shared.all()) else torch.where(shared, 0.0, -torch.inf)
        self._fills = bool(fills)
        if fills:
            self._prepare_fills(fills)

    @property
    def positions(self) -> Tensor:
        """Own slot of every token [N]: its position, less the prefix."""
        return self._token_slots

    @property
    def rows(self) -> Tensor:
        """Row of every token [N]."""
        return self._token_rows

    def _prepare_fills(self, fills: Sequence[Fill]) -> None:
        store, longest = self._store, max(len(fill.ids) for fill in fills)
        starts = torch.tensor([fill.start for fill in fills])
        counts = torch.tensor([len(fill.ids) for fill in fills])
        first = len(self._decoding) + counts.cumsum(0) - counts
        columns = torch.arange(longest)[None]
        real = columns < counts[:, None]
        self._fill_tokens = torch.where(real, first[:, None] + columns, first[:, None])
        self._fill_real = real
        self._fill_rows = torch.tensor([fill.row for fill in fills])
        self._fill_slots = int((starts + counts).max())
        mask = causal_own_mask(starts, longest, self._fill_slots)
        if store.prefix_length:
            shared = torch.tensor([fill.with_prefix for fill in fills])
            mask = torch.cat([shared[:, None, None, None].expand(-1, 1, longest, store.prefix_length), mask], dim=-1)
        self._fill_mask = folded_mask(mask, store.model)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        store, count = self._store, len(self._decoding)
        store.keys[layer][self._token_rows, :, self._token_slots] = key[0].transpose(0, 1)
        store.values[layer][self._token_rows, :, self._token_slots] = value[0].transpose(0, 1)
        by_token = query[0].transpose(0, 1)
        parts = []
        if count:
            parts.append(self._decode(layer, by_token[:count], scaling))
        if self._fills:
            parts.append(self._fill(layer, by_token, scaling))
        return torch.cat(parts).transpose(0, 1)[None]

    def _decode(self, layer: int, query: Tensor, scaling: float) -> Tensor:
        """Query and output [decoding rows, H, D]; rows that wait for a tool take part with a query of zeros."""
        store = self._store
        if not self._all_decode:
            query = query.new_zeros(self._used, *query.shape[1:]).index_copy_(0, self._decoding, query)
        prefix = store.prefix[layer] if store.prefix_length else None
        keys = store.keys[layer][: self._used, :, : self._decode_slots]
        values = store.values[layer][: self._used, :, : self._decode_slots]
        output = attend_one(query[:, :, None], keys, values, prefix, self._prefix_bias, self._own_bias, scaling)
        return output[:, :, 0] if self._all_decode else output[self._decoding, :, 0]

    def _fill(self, layer: int, by_token: Tensor, scaling: float) -> Tensor:
        """Output [fill tokens, H, D] of all fills."""
        store = self._store
        keys = store.keys[layer][self._fill_rows, :, : self._fill_slots]
        values = store.values[layer][self._fill_rows, :, : self._fill_slots]
        if store.prefix_length:
            shared = [block.expand(len(keys), -1, -1, -1) for block in store.prefix[layer]]
            keys, values = torch.cat([shared[0], keys], dim=2), torch.cat([shared[1], values], dim=2)
        query = by_token[self._fill_tokens].transpose(1, 2)
        return attend_many(query, keys, values, self._fill_mask, scaling).transpose(1, 2)[self._fill_real]
