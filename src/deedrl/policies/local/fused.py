"""Decoder layers of the common form (Llama, SmolLM2, Mistral, Qwen2, Qwen3) in a dozen calls, for sampling.

The form: RMSNorm, attention with rotated queries and keys, RMSNorm, gated MLP with SiLU, a sum after each half. Written
with torch's operations such a layer is a hundred small ones, and for the few tokens of a decoding pass most of the time
goes into starting them. Here the projections of a layer are one product, activations and sums are done by the products
as they write, and the rest is compiled (`compiled/kernels.c`).

A layer is replaced only if its replacement computes what the layer does; names of classes decide nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from deedrl.policies.local.compiled.kernels import HeadNorms, Kernels, Rotation
from deedrl.policies.local.compiled.loading import NotCompiled
from deedrl.policies.local.kv_store import PrefixLayout

_TRIED = 5
"""Tokens on which a layer and its replacement are compared."""
_LARGEST_DISTANCE = {torch.float32: 1e-4, torch.bfloat16: 0.03}
"""Between what the two compute, relative to it; more is not rounding."""

Weights = Callable[[Any], tuple[Tensor, Tensor | None]]
"""From a linear layer to its weight and bias, adapters added in; raises NotFused where they are more than that."""


class NotFused(Exception):
    """A layer stays as it is; the text says why."""


class FusedLayout(Protocol):
    """Where a pass of fused layers keeps keys and values, and who may attend to whom."""

    def attend_products(
        self,
        layer: int,
        products: Tensor,
        rotation: Rotation,
        norms: HeadNorms | None,
        kernels: Kernels,
        scaling: float,
    ) -> Tensor:
        """Attention [N, H D] of the tokens whose projections are `products` [N, (H + 2 K) D]."""
        ...


class _Packed(NamedTuple):
    """A product's weight as oneDNN reads it."""

    weight: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, layers: list[Any], weights: Weights) -> _Packed:
        """Of one layer, or of several that read the same, one below the other."""
        parts = [weights(layer) for layer in layers]
        weight = torch.cat([weight for weight, _ in parts])
        bias = None
        if any(given is not None for _, given in parts):
            bias = torch.cat([part.new_zeros(len(part)) if given is None else given for part, given in parts])
        return cls(torch.ops.mkldnn._reorder_linear_weight(weight), bias)

    def times(self, inputs: Tensor, activation: str = "none") -> Tensor:
        result: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, self.weight, self.bias, activation, [], "")
        return result

    def times_and(self, operation: str, other: Tensor, inputs: Tensor) -> Tensor:
        """`other` and the product put together by ``add`` or ``mul``."""
        result: Tensor = torch.ops.mkldnn._linear_pointwise.binary(inputs, other, self.weight, self.bias, operation)
        return result


class FusedLayer(nn.Module):
    """Computes what a decoder layer of the common form does; takes and ignores what transformers passes beside."""

    def __init__(self, layer: Any, kernels: Kernels, weights: Weights) -> None:
        super().__init__()
        attention, mlp = layer.self_attn, layer.mlp
        self._kernels = kernels
        self._index, self._scaling = int(attention.layer_idx), float(attention.scaling)
        self._norms = tuple((n.weight, _epsilon(n)) for n in (layer.input_layernorm, layer.post_attention_layernorm))
        self._heads = None
        if hasattr(attention, "q_norm"):
            query, key = attention.q_norm, attention.k_norm
            self._heads = HeadNorms(query.weight, key.weight, _epsilon(query))
        self._projections = _Packed.of([attention.q_proj, attention.k_proj, attention.v_proj], weights)
        self._output = _Packed.of([attention.o_proj], weights)
        self._gate, self._up = (_Packed.of([part], weights) for part in (mlp.gate_proj, mlp.up_proj))
        self._down = _Packed.of([mlp.down_proj], weights)

    def forward(
        self, hidden_states: Tensor, *, position_embeddings: tuple[Tensor, Tensor], layout: FusedLayout, **_: Any
    ) -> Tensor:
        hidden = hidden_states[0]
        rotation = Rotation(*(tensor[0].contiguous() for tensor in position_embeddings))
        products = self._projections.times(self._kernels.rms_norm(hidden, *self._norms[0]))
        attended = layout.attend_products(
            self._index, products, rotation, self._heads, self._kernels, self._scaling
        )
        hidden = self._output.times_and("add", hidden, attended)
        normed = self._kernels.rms_norm(hidden, *self._norms[1])
        gated = self._up.times_and("mul", self._gate.times(normed, "swish"), normed)
        return self._down.times_and("add", hidden, gated)[None]


def kernels_for(model: Any) -> Kernels:
    """The compiled functions for a model. Raises NotFused where there are none."""
    config = model.config.get_text_config()
    heads = int(config.num_attention_heads)
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    size = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    try:
        return Kernels(heads, kv_heads, size, model.dtype)
    except NotCompiled as error:
        raise NotFused(str(error)) from error


def fused(layer: Any, kernels: Kernels, weights: Weights) -> FusedLayer:
    """A replacement of `layer`, not compared with it yet. Raises NotFused for a layer that lacks a part of the form."""
    try:
        return FusedLayer(layer, kernels, weights)
    except AttributeError as error:
        raise NotFused(f"{type(layer).__name__} has another form: {error}") from error


@torch.no_grad()
def compare(layer: Any, replacement: FusedLayer, decoder: Any) -> None:
    """Raises NotFused unless both compute the same, on random input, as a part of `decoder`."""
    generator = torch.Generator().manual_seed(0)
    # Small, so that the output is what the layer adds; a part that is left out cannot hide behind its input.
    hidden = 0.01 * torch.randn(1, _TRIED, decoder.config.hidden_size, generator=generator).to(decoder.dtype)
    positions = torch.arange(_TRIED)[None]
    options = {"position_ids": positions, "position_embeddings": decoder.rotary_emb(hidden, position_ids=positions)}
    layouts = (PrefixLayout(_TRIED, decoder) for _ in range(2))
    expected, found = (part(hidden, **options, layout=next(layouts)) for part in (layer, replacement))
    if not isinstance(expected, Tensor):
        raise NotFused(f"{type(layer).__name__} returns more than hidden states")
    distance = float((found - expected).float().norm() / expected.float().norm())
    if not distance <= _LARGEST_DISTANCE[decoder.dtype]:
        raise NotFused(f"{type(layer).__name__} computes something else: {100 * distance:.2g} % away")


def _epsilon(norm: Any) -> float:
    return float(norm.variance_epsilon)
