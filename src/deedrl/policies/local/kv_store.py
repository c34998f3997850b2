"""Keys and values of shared prefixes and of each row's own tokens.

Own parts lie in one block per layer, [rows, K, slots, D], indexed by row; decoding reads the block in place.
"""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from deedrl.policies.local.attention import attend_many, causal_own_mask, folded_mask
from deedrl.policies.local.compiled.kernels import Kernels, Places, Projected

SLOT_QUANTUM = 64
FIRST_ROWS = 16
FIRST_ROOM = 576
"""Slots that rows have addresses for at first; no power of two, so that rows do not share the same sets of a cache."""


class KVStore:
    """Storage for up to `rows` sequences. Own parts grow in steps of `SLOT_QUANTUM` tokens, the number of rows doubles.

    On a processor rows have more addresses than memory: a page comes from the system, as zeros, when something is
    written into it. So what is stored seldom has to move when more slots are reserved, and what was never reserved
    costs nothing. An accelerator's memory is taken at once, so there rows have room for what is reserved.
    """

    def __init__(self, model: Any, rows: int) -> None:
        config = model.config.get_text_config()
        self.model = model
        self.layers: int = config.num_hidden_layers
        self.kv_heads: int = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        self.groups: int = config.num_attention_heads // self.kv_heads
        """Query heads to each key/value head."""
        self.size: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.dtype: torch.dtype = model.dtype
        self.device: torch.device = model.device
        self.rows = rows
        self.held_rows = 0
        self.slots = 0
        """Reserved."""
        self._room = 0
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def reserve(self, rows: int, *, slots: int = 0) -> None:
        """Makes room for `slots` own tokens at least in each of the first `rows` rows, keeping what is stored."""
        slots = max(self.slots, -(-slots // SLOT_QUANTUM) * SLOT_QUANTUM)
        held = self.held_rows
        if rows > held:
            held = min(self.rows, max(rows, 2 * held, FIRST_ROWS))
        room = self._room
        while room < slots:
            room = max(2 * room, FIRST_ROOM) if self.device.type == "cpu" else slots
        if (held, room) != (self.held_rows, self._room):
            # Layer by layer, so that old and new storage never exist as a whole side by side.
            for layer in range(self.layers):
                for blocks in (self.keys, self.values):
                    grown = self._zeros(held, self.kv_heads, room, self.size)
                    if layer < len(blocks):
                        grown[: self.held_rows, :, : self.slots] = blocks[layer][:, :, : self.slots]
                        blocks[layer] = grown
                    else:
                        blocks.append(grown)
        self.held_rows, self.slots, self._room = held, slots, room

    def _zeros(self, *shape: int) -> Tensor:
        if self.device.type == "cpu":
            return _untouched(*shape, dtype=self.dtype)
        return torch.zeros(shape, dtype=self.dtype, device=self.device)

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        """Gives row `target` what row `source` holds in the slots from `start` up to `end`."""
        if start == end:
            return
        for block in (*self.keys, *self.values):
            block[target, :, start:end] = block[source, :, start:end]


def _untouched(*shape: int, dtype: torch.dtype) -> Tensor:
    """Zeros that take memory where they are written, given back when the tensor goes.

    Zeros are needed: a masked slot holding NaN would still turn weight 0 into NaN.
    """
    size = math.prod(shape) * dtype.itemsize
    if not size:
        return torch.empty(shape, dtype=dtype)
    # Shared memory, which is what mmap gives unasked on Unix, would be another process's after a fork.
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    return torch.frombuffer(mmap.mmap(-1, size, **private), dtype=dtype).view(shape)


@dataclass(eq=False, frozen=True)
class Prefix:
    """Tokens that many sequences begin with, and per layer their keys and values, [1, K, P, D] each."""

    ids: tuple[int, ...]
    blocks: list[tuple[Tensor, Tensor]]


class PrefixLayout:
    """Computes a shared prefix itself: one row, plain causal attention; `blocks` keeps its keys and values."""

    def __init__(self, tokens: int, model: Any) -> None:
        self.blocks: list[tuple[Tensor, Tensor]] = []
        self._mask = folded_mask(
            causal_own_mask(torch.zeros(1, dtype=torch.long, device=model.device), tokens, tokens), model
        )

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
