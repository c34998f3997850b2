"""Keys and values of one shared prefix and of each row's own tokens, and the layouts forward passes use on them.

Own parts lie in one block per layer, [rows, K, slots, D], indexed by row; decoding reads the block in place. Rows in
use are always ``0 … used-1``: a finished row is filled by moving the last one, so no step gathers or copies rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from deedrl.policies.local.attention import attend_many, attend_one, causal_own_mask, folded_mask

SLOT_QUANTUM = 64


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
        self.reserve(SLOT_QUANTUM)

    def reserve(self, slots: int) -> None:
        """Makes room for `slots` own tokens in every row, keeping what is stored."""
        if slots <= self.slots:
            return
        slots = -(-slots // SLOT_QUANTUM) * SLOT_QUANTUM
        self.keys = [self._grown(self.keys, layer, slots) for layer in range(self.layers)]
        self.values = [self._grown(self.values, layer, slots) for layer in range(self.layers)]
        self.slots = slots

    def _grown(self, blocks: list[Tensor], layer: int, slots: int) -> Tensor:
        # Zeros, not empty memory: a masked slot holding NaN would still turn weight 0 into NaN.
        block = torch.zeros(self.rows, self.kv_heads, slots, self.size, dtype=self.dtype)
        if blocks:
            block[:, :, : self.slots] = blocks[layer]
        return block

    def move_row(self, source: int, target: int) -> None:
        for block in (*self.keys, *self.values):
            block[target] = block[source]


class PrefixLayout:
    """Computes the shared prefix itself: one row, plain causal attention; keeps its keys and values."""

    def __init__(self, tokens: int, model: Any) -> None:
        self.prefix: list[tuple[Tensor, Tensor]] = []
        self._mask = folded_mask(causal_own_mask(torch.zeros(1, dtype=torch.long), tokens, tokens), model)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        self.prefix.append((key, value))
        return attend_many(query, key, value, self._mask, scaling)


class PrefillLayout:
    """Adds several new tokens to some rows (right-padded; padding writes past a row's end and is overwritten later)."""

    def __init__(self, store: KVStore, rows: Sequence[int], starts: Tensor, tokens: int, with_prefix: Tensor) -> None:
        self._store = store
        self._rows = torch.tensor(rows)
        self._positions = starts[:, None] + torch.arange(tokens)[None, :]
        self._slots = int(starts.max()) + tokens
        mask = causal_own_mask(starts, tokens, self._slots)
        if store.prefix_length:
            seen = with_prefix[:, None, None, None].expand(-1, 1, tokens, store.prefix_length)
            mask = torch.cat([seen, mask], dim=-1)
        self._mask = folded_mask(mask, store.model)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        store, rows = self._store, self._rows
        store.keys[layer][rows[:, None], :, self._positions] = key.transpose(1, 2)
        store.values[layer][rows[:, None], :, self._positions] = value.transpose(1, 2)
        keys = store.keys[layer][rows, :, : self._slots]
        values = store.values[layer][rows, :, : self._slots]
        if store.prefix_length:
            shared = [block.expand(len(rows), -1, -1, -1) for block in store.prefix[layer]]
            keys, values = torch.cat([shared[0], keys], dim=2), torch.cat([shared[1], values], dim=2)
        return attend_many(query, keys, values, self._mask, scaling)


class DecodeLayout:
    """Adds one token to each of the first `used` rows and attends in place.

    Rows that wait (for a tool) take part with a token that is written past their end and overwritten later.
    """

    def __init__(self, store: KVStore, lengths: Tensor, with_prefix: Tensor) -> None:
        self._store = store
        self._used = lengths.shape[0]
        self._rows = torch.arange(self._used)
        self._lengths = lengths
        visible = torch.arange(store.slots)[None, :] <= lengths[:, None]
        self._own_bias = torch.where(visible, 0.0, -torch.inf)[:, None, None, :]
        self._prefix_bias = None if bool(with_prefix.all()) else torch.where(with_prefix, 0.0, -torch.inf)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        store, used = self._store, self._used
        store.keys[layer][self._rows, :, self._lengths] = key[:, :, 0]
        store.values[layer][self._rows, :, self._lengths] = value[:, :, 0]
        prefix = store.prefix[layer] if store.prefix_length else None
        return attend_one(
            query,
            store.keys[layer][:used],
            store.values[layer][:used],
            prefix,
            self._prefix_bias,
            self._own_bias,
            scaling,
        )
