"""Keys and values of shared prefixes and of each row's own tokens.

Own parts lie in one block per layer, [rows, K, slots, D], indexed by row; decoding reads the block in place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deedrl.memory import give_back
from deedrl.policies.local.attention import attend_many, causal_own_mask, folded_mask
from deedrl.policies.local.compiled.kernels import Kernels, Places, Projected

SLOT_QUANTUM = 64
FIRST_ROWS = 16


class KVStore:
    """Storage for up to `rows` sequences. It holds no more than was reserved: own parts grow in steps of
    `SLOT_QUANTUM` tokens, the number of rows doubles."""

    def __init__(self, model: Any, rows: int) -> None:
        config = model.config.get_text_config()
        self.model = model
        self.layers: int = config.num_hidden_layers
        self.kv_heads: int = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        self.groups: int = config.num_attention_heads // self.kv_heads
        """Query heads to each key/value head."""
        self.size: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.dtype: torch.dtype = model.dtype
        self.rows = rows
        self.held_rows = 0
        self.slots = 0
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def reserve(self, rows: int, *, slots: int = 0) -> None:
        """Makes room for `slots` own tokens at least in each of the first `rows` rows, keeping what is stored."""
        slots = max(self.slots, -(-slots // SLOT_QUANTUM) * SLOT_QUANTUM)
        held = self.held_rows
        if rows > held:
            held = min(self.rows, max(rows, 2 * held, FIRST_ROWS))
        if (held, slots) == (self.held_rows, self.slots):
            return
        if not self.keys:
            self.keys, self.values = ([self._empty(held, slots) for _ in range(self.layers)] for _ in range(2))
        else:
            # Layer by layer, so that old and new storage never exist as a whole side by side: blocks that are freed
            # are too small for the new ones, and the system only gets them back when it is told to take them.
            for layer in range(self.layers):
                for blocks in (self.keys, self.values):
                    grown = self._empty(held, slots)
                    grown[: self.held_rows, :, : self.slots] = blocks[layer]
                    blocks[layer] = grown
                give_back()
        self.held_rows, self.slots = held, slots

    def _empty(self, rows: int, slots: int) -> Tensor:
        # Zeros, not empty memory: a masked slot holding NaN would still turn weight 0 into NaN.
        return torch.zeros(rows, self.kv_heads, slots, self.size, dtype=self.dtype)

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        """Gives row `target` what row `source` holds in the slots from `start` up to `end`."""
        if start == end:
            return
        for block in (*self.keys, *self.values):
            block[target, :, start:end] = block[source, :, start:end]


@dataclass(eq=False, frozen=True)
class Prefix:
    """Tokens that many sequences begin with, and per layer their keys and values, [1, K, P, D] each."""

    ids: tuple[int, ...]
    blocks: list[tuple[Tensor, Tensor]]


class PrefixLayout:
    """Computes a shared prefix itself: one row, plain causal attention; `blocks` keeps its keys and values."""

    def __init__(self, tokens: int, model: Any) -> None:
        self.blocks: list[tuple[Tensor, Tensor]] = []
        self._mask = folded_mask(causal_own_mask(torch.zeros(1, dtype=torch.long), tokens, tokens), model)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        self.blocks.append((key, value))
        return attend_many(query, key, value, self._mask, scaling)

    def attend_products(self, layer: int, projected: Projected, kernels: Kernels, scaling: float) -> Tensor:
        tokens = torch.arange(len(projected.products))
        here = Places(torch.zeros_like(tokens), tokens)
        keys, values = kernels.empty_store(1, len(projected.products)), kernels.empty_store(1, len(projected.products))
        query = kernels.place(projected, keys, values, here)
        self.blocks.append((keys, values))
        return kernels.attend(query, None, keys, values, here, scaling)
