"""Frozen linear layers with LoRA adapters, as one product forward and one backward.

With W' = W + s B A (Hu et al. 2021, arXiv 2106.09685, eq. 3), y = x W'ᵀ and ∂x = ∂y W': as many products as without an
adapter. The adapter's own gradients need W' nowhere: ∂A = (∂y s B)ᵀ x and ∂B = ∂yᵀ (x s Aᵀ), of rank r each. PEFT's
layer computes x Wᵀ + s (x Aᵀ) Bᵀ instead, which takes two more products and two more passes over the result in each
direction, and these take longer than their arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from deedrl.policies.local.fused import NotFused
from deedrl.policies.local.merged import is_known


class _Adapter(NamedTuple):
    """What an adapter's gradients are made of, in the type of the products, and the columns of the result it is in."""

    down: Tensor
    """s A [r, inputs]."""
    up: Tensor
    """s B [outputs, r]."""
    columns: slice


class Merged(NamedTuple):
    """The weights of an `AdaptedProduct` as they were at one time."""

    weight: Tensor
    """W' [outputs, inputs]."""
    bias: Tensor | None
    adapters: tuple[_Adapter, ...]

    def times(self, inputs: Tensor) -> Tensor:
        """The result [N, outputs] of inputs [N, inputs]."""
        return torch.nn.functional.linear(inputs, self.weight, self.bias)

    def times_added(self, inputs: Tensor, other: Tensor) -> Tensor:
        """The result, added to `other` [N, outputs]."""
        return torch.addmm(other if self.bias is None else other + self.bias, inputs, self.weight.t())

    def input_gradient(self, gradient: Tensor) -> Tensor:
        """∂x [N, inputs] from ∂y [N, outputs]."""
        return gradient @ self.weight

    def adapter_gradients(self, inputs: Tensor, gradient: Tensor) -> Iterator[Tensor]:
        """∂A, ∂B of each adapter in the order of `AdaptedProduct.parameters`, in float32."""
        if not self.adapters:
            return
        reduced = inputs @ torch.cat([adapter.down for adapter in self.adapters]).t()
        raised = torch.cat([gradient[:, adapter.columns] @ adapter.up for adapter in self.adapters], dim=1)
        downs = raised.t() @ inputs
        start = 0
        for adapter in self.adapters:
            end = start + len(adapter.down)
            yield downs[start:end].float()
            # The transpose of a flat product is faster than a tall one.
            yield (reduced[:, start:end].t() @ gradient[:, adapter.columns]).float().t()
            start = end


class AdaptedProduct:
    """Linear layers that read the same, one below the other; weights are merged anew when one has changed.

    Raises NotFused where they are more than frozen layers with plain LoRA.
    """

    def __init__(self, layers: Sequence[Any]) -> None:
        for layer in layers:
            if not is_known(layer):
                raise NotFused(f"there is a {type(layer).__name__}, or an adapter that is more than plain LoRA")
            if any(parameter.requires_grad for parameter in _base(layer).parameters()):
                raise NotFused("weights below the adapters are trained")
        self._layers = layers
        self.inputs = int(_base(layers[0]).in_features)
        self.outputs = sum(int(_base(layer).out_features) for layer in layers)
        self._merged: Merged | None = None
        self._versions: tuple[Any, ...] = ()

    def parameters(self) -> list[nn.Parameter]:
        """A, B of every active adapter."""
        return [part for layer in self._layers for name in _active(layer) for part in _low_rank(layer, name)]

    def merged(self) -> Merged:
        """The weights as they are now."""
        held = [*self.parameters(), *(part for layer in self._layers for part in _base(layer).parameters())]
        # Torch counts changes in place of every tensor.
        versions = tuple((id(part), part.data_ptr(), part._version) for part in held)
        if self._merged is None or versions != self._versions:
            with torch.no_grad(), torch.autocast("cpu", enabled=False):
                self._merged = self._merge()
            self._versions = versions
        return self._merged

    def rest(self) -> None:
        """Gives up the merged weights."""
        self._merged = None

    def _merge(self) -> Merged:
        weights, biases, adapters, start = [], [], [], 0
        for layer in self._layers:
            base = _base(layer)
            weight, columns = base.weight, slice(start, start + base.out_features)
            for name in _active(layer):
                down, up = _low_rank(layer, name)
                scaling = layer.scaling[name]
                # The product is rounded once, with the weight that it is added to.
                weight = torch.addmm(weight, (scaling * up).to(weight.dtype), down.to(weight.dtype))
                adapters.append(_Adapter((scaling * down).to(weight.dtype), (scaling * up).to(weight.dtype), columns))
            weights.append(weight)
            biases.append(weight.new_zeros(len(weight)) if base.bias is None else base.bias)
            start = columns.stop
        biased = any(_base(layer).bias is not None for layer in self._layers)
        return Merged(torch.cat(weights), torch.cat(biases) if biased else None, tuple(adapters))


def _base(layer: Any) -> Any:
    return layer.get_base_layer() if hasattr(layer, "get_base_layer") else layer


def _active(layer: Any) -> list[str]:
    """Names of the adapters that act in the layer."""
    if not hasattr(layer, "get_base_layer") or layer.disable_adapters or layer.merged:
        return []
    return [name for name in layer.active_adapters if name in layer.lora_A]


def _low_rank(layer: Any, name: str) -> tuple[nn.Parameter, nn.Parameter]:
    return layer.lora_A[name].weight, layer.lora_B[name].weight
