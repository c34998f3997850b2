"""Who attends to whom in a pass of an update: rows to what came before them, and to themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from deedrl.policies.local.attention import Part, attend_many, causal_own_mask, folded_mask
from deedrl.policies.local.compiled.kernels import Kernels, Places

KeysValues = list[tuple[Tensor, Tensor]]
"""Per layer, keys and values [rows, K, tokens, D]."""


class Earlier:
    """Keys and values before a pass's own tokens: one row for all, or of row `rows` [B] the first `lengths` [B]."""

    def __init__(self, layers: KeysValues, rows: Tensor | None = None, lengths: Tensor | None = None) -> None:
        self._layers = layers
        self._device = layers[0][0].device
        self._rows = None if rows is None else rows.to(self._device)
        self._lengths = None if lengths is None else lengths.to(self._device)
        self.tokens = int(layers[0][0].shape[2])

    def at(self, layer: int, rows: int) -> tuple[Tensor, Tensor]:
        keys, values = self._layers[layer]
        if self._rows is None:
            return keys.expand(rows, -1, -1, -1), values.expand(rows, -1, -1, -1)
        return keys[self._rows], values[self._rows]

    def visible(self, rows: int, tokens: int) -> Tensor:
        """Mask [B, 1, T, S]: everything but what is not the row's, or padding."""
        if self._lengths is None:
            return torch.ones(rows, 1, tokens, self.tokens, dtype=torch.bool, device=self._device)
        real = torch.arange(self.tokens, device=self._device)[None] < self._lengths[:, None]
        return real[:, None, None, :].expand(-1, 1, tokens, -1)


class TreeLayout:
    """Rows attend to earlier segments and causally to themselves; right padding is never seen by a real token."""

    def __init__(self, earlier: Sequence[Earlier], rows: int, tokens: int, model: Any) -> None:
        self.kept: KeysValues = []
        self._earlier = earlier
        # Rows differ only in what they see of shared beginnings: without these one mask serves them all.
        masks = rows if any(segment.visible(1, 1).shape[0] > 1 for segment in earlier) else 1
        own = causal_own_mask(torch.zeros(masks, dtype=torch.long, device=model.device), tokens, tokens)
        mask = torch.cat([*(segment.visible(masks, tokens) for segment in earlier), own], dim=-1)
        self._mask = folded_mask(mask, model)
        lines = torch.arange(rows * tokens)
        self.places = Places(lines // tokens, lines % tokens)
        """Row and slot of each token, row by row."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, kernels: Kernels | None = None
    ) -> Tensor:
        self.kept.append((key, value))
        before = [segment.at(layer, len(query)) for segment in self._earlier]
        keys = torch.cat([*(k for k, _ in before), key], dim=2) if before else key
        values = torch.cat([*(v for _, v in before), value], dim=2) if before else value
        if kernels is None or not kernels.tiled:
            return attend_many(query, keys, values, self._mask, scaling)
        folded = query.reshape(len(query), keys.shape[1], -1, query.shape[3])
        output: Tensor
        output = _TiledAttention.apply(folded, keys, values, self._mask, scaling, kernels)  # type: ignore[no-untyped-call]
        return output.reshape(query.shape)


class _TiledAttention(torch.autograd.Function):
    """`Kernels.attend_tiled` with gradients in query, keys and values."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scaling: float, kernels: Kernels
    ) -> Tensor:
        part = kernels.attend_tiled(query, keys, values, mask, scaling)
        ctx.save_for_backward(query, keys, values, *part)
        ctx.rest = mask, scaling, kernels
        return part.output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, keys, values, *part = ctx.saved_tensors
        mask, scaling, kernels = ctx.rest
        found = kernels.attend_tiled_gradients(query, keys, values, mask, scaling, Part(*part), gradient)
        return (*found, None, None, None)
