"""Decoder layers of the common form (Llama, SmolLM2, Mistral, Qwen2, Qwen3) in a dozen calls, for sampling.

The form: RMSNorm, attention with rotated queries and keys, RMSNorm, gated MLP with SiLU, a sum after each half. Of
torch's operations such a layer takes a hundred, and for the few tokens of a decoding pass most of the time goes into
starting them. Here the projections of a layer are one product, as are gate and input of its MLP, products add up as
they write, and the rest is compiled (`compiled/kernels.c`).

A layer is replaced only if its replacement computes what the layer does; names of classes decide nothing.
"""

from __future__ import annotations

import copy
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from deedrl.policies.local.compiled.kernels import HeadNorms, Kernels, Norm, Projected, Rotation
from deedrl.policies.local.compiled.loading import NotCompiled
from deedrl.policies.local.kv_store import PrefixLayout
from deedrl.policies.local.packed import Weights, packed_weight

HEAD_NORMS = ("q_norm", "k_norm")
_TRIED = 5
"""Tokens on which a layer and its replacement are compared."""
_LARGEST_DISTANCE = {torch.float32: 1e-4, torch.bfloat16: 0.03}
"""Between what the two compute, relative to it; more is not rounding."""
_LARGEST_DISTANCE_EVER = 0.5
"""Beyond this nothing is told apart, however much was rounded."""


class NotFused(Exception):
    """A layer stays as it is; the text says why."""


class FusedLayout(Protocol):
    """Where a pass of fused layers keeps keys and values, and who may attend to whom."""

    def attend_products(self, layer: int, projected: Projected, kernels: Kernels, scaling: float) -> Tensor:
        """Attention [N, H D] of the tokens whose projections are `products` [N, (H + 2 K) D]."""
        ...


class FusedLayer(nn.Module):
    """Computes what a decoder layer of the common form does; takes and ignores what transformers passes beside."""

    def __init__(self, layer: Any, kernels: Kernels, weights: Weights) -> None:
        super().__init__()
        attention, mlp = layer.self_attn, layer.mlp
        self._kernels = kernels
        self._index, self._scaling = int(attention.layer_idx), float(attention.scaling)
        self._epsilon = float(layer.input_layernorm.variance_epsilon)  # of all norms; `compare` would find another one
        # The layer's own modules: who looks for tensors that are shared with it finds these.
        self.norms = nn.ModuleList([layer.input_layernorm, layer.post_attention_layernorm])
        self.head_norms = nn.ModuleList([getattr(attention, name) for name in HEAD_NORMS if hasattr(attention, name)])
        # To look a module up takes longer than many a function that gets its weight.
        self._before, self._between = (Norm(norm.weight, self._epsilon) for norm in list[Any](self.norms))
        self._projections = packed_weight([attention.q_proj, attention.k_proj, attention.v_proj], weights, kernels)
        self._output = packed_weight([attention.o_proj], weights, kernels)
        self._gate_and_up = packed_weight([mlp.gate_proj, mlp.up_proj], weights, kernels, gated=True)
        self._down = packed_weight([mlp.down_proj], weights, kernels)
        width = sum(part.out_features for part in (attention.q_proj, attention.k_proj, attention.v_proj))
        norms, of_heads = list[Any](self.norms), list[Any](self.head_norms)
        fits = [kernels.reads(norm.weight, attention.q_proj.in_features) for norm in norms]
        fits += [kernels.reads(norm.weight, -1) for norm in of_heads]
        if width != kernels.width or len(self.head_norms) == 1 or not all(fits):
            raise NotFused(f"{type(layer).__name__} has norms or projections of another shape or type")
        self._of_heads = HeadNorms(of_heads[0].weight, of_heads[1].weight, self._epsilon) if of_heads else None

    def forward(
        self, hidden_states: Tensor, *, position_embeddings: tuple[Tensor, Tensor], layout: FusedLayout, **_: Any
    ) -> Tensor:
        hidden = hidden_states[0]
        rotation = Rotation(*(tensor[0].contiguous() for tensor in position_embeddings))
        products = self._projections.times(hidden, norm=self._before)
        projected = Projected(products, rotation, self._of_heads)
        attended = layout.attend_products(self._index, projected, self._kernels, self._scaling)
        hidden = self._output.times(attended, other=hidden)
        return self.mlp(hidden, hidden, self._between)[None]

    def mlp(self, inputs: Tensor, other: Tensor, norm: Norm | None = None) -> Tensor:
        """Of inputs [N, hidden], normed first, added to `other` [N, hidden]."""
        return self._down.times(self._gate_and_up.times(inputs, norm=norm), other=other)


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
def compare(layer: Any, replacement: FusedLayer, decoder: Any, kernels: Kernels) -> None:
    """Raises NotFused unless both compute the same, on random input, as a part of `decoder`."""
    # With dropout, which sampling leaves out, a layer would differ from itself.
    layer = copy.deepcopy(layer).eval() if layer.training else layer
    generator = torch.Generator().manual_seed(0)
    # Small, so that the output is what the layer adds; a part that is left out cannot hide behind its input.
    hidden = 0.01 * torch.randn(1, _TRIED, decoder.config.hidden_size, generator=generator).to(decoder.dtype)
    positions = torch.arange(_TRIED)[None]
    options = {"position_ids": positions, "position_embeddings": decoder.rotary_emb(hidden, position_ids=positions)}
    if not all(kernels.reads(tensor, 1, _TRIED, -1) for tensor in options["position_embeddings"]):
        raise NotFused(f"{type(layer).__name__} does not rotate whole heads by numbers of the model's own type")
    layouts = (PrefixLayout(_TRIED, decoder) for _ in range(2))
    expected, found = (part(hidden, **options, layout=next(layouts)) for part in (layer, replacement))
    if not isinstance(expected, Tensor):
        raise NotFused(f"{type(layer).__name__} returns more than hidden states")
    check_distance(layer, expected, found, decoder.dtype)
    # Near 0 all activations are alike; the gate is to reach where they differ.
    inputs = hidden[0] * (2 / layer.mlp.gate_proj(hidden[0]).float().std()).to(hidden.dtype)
    check_distance(layer, layer.mlp(inputs[None])[0], replacement.mlp(inputs, torch.zeros_like(inputs)), decoder.dtype)


def check_distance(
    layer: Any, expected: Tensor, found: Tensor, dtype: torch.dtype, exact: Tensor | None = None
) -> None:
    """Raises NotFused where `found` is further from what `layer` gave than rounding to `dtype` explains.

    `exact`, the same in float32, says how much rounding does explain where that depends on the numbers: sums that
    nearly cancel, as gradients of an adapter can, lose more than others.
    """
    goal, allowed = expected, _LARGEST_DISTANCE[dtype]
    if exact is not None:
        # The replacement rounds more often: merged weights too, and what is made again on the way back.
        goal, allowed = exact, max(3 * allowed, min(4 * _distance(expected, exact), _LARGEST_DISTANCE_EVER))
    distance = _distance(found, goal)
    if not distance <= allowed:
        raise NotFused(f"{type(layer).__name__} computes something else: {100 * distance:.2g} % away")


def _distance(tensor: Tensor, goal: Tensor) -> float:
    goal = goal.detach().float()
    return float((tensor.detach().float() - goal).norm() / goal.norm())
