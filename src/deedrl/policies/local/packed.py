"""Weights of linear layers laid out for products of few rows, with what a decoder does before and after a product."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from deedrl.policies.local.compiled.kernels import Kernels, Norm

Weights = Callable[[Any], tuple[Tensor, Tensor | None]]
"""From a linear layer to its weight and bias, adapters added in; raises NotFused where they are more than that."""

_TILE = 32
_GATES = 16
"""Lines of a tiled weight that follow each other before their partners come."""


class PackedWeight(Protocol):
    """One weight [outputs, inputs], or that of a gate above that of its input."""

    def times(self, inputs: Tensor, *, norm: Norm | None = None, other: Tensor | None = None) -> Tensor:
        """The product [N, outputs] of inputs [N, inputs], normed first, with `other` added; or SiLU of the gate's half
        times the other [N, outputs / 2]."""
        ...


def packed_weight(layers: Sequence[Any], weights: Weights, kernels: Kernels, *, gated: bool = False) -> PackedWeight:
    """Of one layer, or of several that read the same, one below the other."""
    parts = [weights(layer) for layer in layers]
    weight = torch.cat([weight for weight, _ in parts])
    bias = None
    if any(given is not None for _, given in parts):
        bias = torch.cat([part.new_zeros(len(part)) if given is None else given for part, given in parts])
    return packed(weight, bias, kernels, gated=gated)


def packed(weight: Tensor, bias: Tensor | None, kernels: Kernels | None, *, gated: bool = False) -> PackedWeight:
    """As this processor reads it fastest; without `kernels` it can neither norm nor gate."""
    if kernels is not None and kernels.tiled and not any(size % _TILE for size in weight.shape):
        return _Tiled(weight, bias, kernels, gated=gated)
    return _Reordered(weight, bias, kernels, gated=gated)


class _Tiled:
    """For the matrix tiles of AMX, by functions of our own."""

    def __init__(self, weight: Tensor, bias: Tensor | None, kernels: Kernels, *, gated: bool) -> None:
        self._weight = kernels.pack(_alternating(weight) if gated else weight)
        self._bias = _alternating(bias) if gated and bias is not None else bias
        self._kernels, self._gated = kernels, gated

    def times(self, inputs: Tensor, *, norm: Norm | None = None, other: Tensor | None = None) -> Tensor:
        return self._kernels.linear(inputs, self._weight, self._bias, norm=norm, other=other, gated=self._gated)


class _Reordered:
    """As oneDNN reads it."""

    def __init__(self, weight: Tensor, bias: Tensor | None, kernels: Kernels | None, *, gated: bool) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight)
        self._bias, self._kernels, self._gated = bias, kernels, gated

    def times(self, inputs: Tensor, *, norm: Norm | None = None, other: Tensor | None = None) -> Tensor:
        if norm is not None:
            assert self._kernels is not None
            inputs = self._kernels.rms_norm(inputs, *norm)
        pointwise = torch.ops.mkldnn._linear_pointwise
        if other is not None:
            added: Tensor = pointwise.binary(inputs, other, self._weight, self._bias, "add")
            return added
        products: Tensor = pointwise(inputs, self._weight, self._bias, "none", [], "")
        if not self._gated:
            return products
        assert self._kernels is not None
        return self._kernels.gated(products)


def _alternating(lines: Tensor) -> Tensor:
    """Of the lines of two halves, some of the one and then as many of the other."""
    return lines.reshape(2, -1, _GATES, *lines.shape[1:]).transpose(0, 1).reshape(lines.shape)
