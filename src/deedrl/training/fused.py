"""Decoder layers of the common form for updates of an adapter: forward and backward in a few dozen calls.

As `policies.local.fused` does for sampling, but with gradients, written out here: autograd sees two functions a layer,
one before attention and one after it. What is cheap to make again (norms, the gate) is, so that less is kept.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from deedrl.policies.local.compiled.kernels import HeadNorms, Kernels, Places, Projected, Rotation
from deedrl.policies.local.fused import HEAD_NORMS, NotFused, check_distance, kernels_for
from deedrl.policies.local.merged import can_pack, decoder_of
from deedrl.training.adapted import AdaptedProduct, Merged
from deedrl.training.layout import TreeLayout
from deedrl.training.sharding import sharded

_TRIED = (2, 3)
"""Rows and tokens on which a layer and its replacement are compared."""


class _Norm(NamedTuple):
    """An RMSNorm and its gradient."""

    kernels: Kernels
    weight: Tensor
    epsilon: float

    def of(self, hidden: Tensor) -> Tensor:
        return self.kernels.rms_norm(hidden, self.weight, self.epsilon)

    def add_gradient(self, hidden: Tensor, gradient: Tensor, total: Tensor) -> None:
        self.kernels.add_rms_norm_gradient(hidden, self.weight, self.epsilon, gradient, total)


class _Positions(NamedTuple):
    """Of the tokens of a pass, which lie row by row."""

    rotation: Rotation
    at: Places
    rows: int


class _Before(NamedTuple):
    """What comes before attention."""

    kernels: Kernels
    norm: _Norm
    projections: Merged
    head_norms: HeadNorms | None
    positions: _Positions

    def projected(self, products: Tensor) -> Projected:
        return Projected(products, self.positions.rotation, self.head_norms)


class _BeforeAttention(torch.autograd.Function):
    """From hidden [N, hidden] to queries [B, H, T, D], keys and values [B, K, T, D]."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, part: _Before, *adapters: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        products = part.projections.times(part.norm.of(hidden))
        # The gradient needs products only where heads have norms.
        ctx.save_for_backward(hidden, *([] if part.head_norms is None else [products]))
        ctx.part = part
        return part.kernels.spread(part.projected(products), part.positions.at, part.positions.rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        part: _Before = ctx.part
        hidden, *kept = ctx.saved_tensors
        products = kept[0] if kept else hidden.new_empty(len(hidden), len(part.projections.weight))
        found = part.kernels.spread_gradient(part.projected(products), part.positions.at, *gradients)
        below = torch.zeros_like(hidden)
        part.norm.add_gradient(hidden, part.projections.input_gradient(found), below)
        return below, None, *part.projections.adapter_gradients(part.norm.of(hidden), found)


class _After(NamedTuple):
    """What comes after attention: its output projection, and the MLP."""

    kernels: Kernels
    norm: _Norm
    output: Merged
    gate_and_up: Merged
    down: Merged


class _AfterAttention(torch.autograd.Function):
    """From attention [N, H D] and the layer's hidden [N, hidden] to the layer's result [N, hidden]."""

    @staticmethod
    def forward(ctx: Any, attended: Tensor, hidden: Tensor, part: _After, *adapters: Tensor) -> Tensor:
        middle = part.output.times_added(attended, hidden)
        products = part.gate_and_up.times(part.norm.of(middle))
        ctx.save_for_backward(attended, middle, products)
        ctx.part = part
        return part.down.times_added(part.kernels.gated(products), middle)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        part: _After = ctx.part
        attended, middle, products = ctx.saved_tensors
        gradient = gradient.contiguous()
        gated, found = part.kernels.gated_gradient(products, part.down.input_gradient(gradient))
        below = gradient.clone()
        part.norm.add_gradient(middle, part.gate_and_up.input_gradient(found), below)
        of_adapters = (
            *part.output.adapter_gradients(attended, below),
            *part.gate_and_up.adapter_gradients(part.norm.of(middle), found),
            *part.down.adapter_gradients(gated, gradient),
        )
        return part.output.input_gradient(below), below, None, *of_adapters


class FusedTrainingLayer(nn.Module):
    """Computes what a decoder layer of the common form does, with gradients in its input and in adapters.

    Raises NotFused for a layer of another form; says nothing yet about what it computes (`compare`).
    """

    def __init__(self, layer: Any, kernels: Kernels) -> None:
        super().__init__()
        attention, mlp = layer.self_attn, layer.mlp
        self._kernels = kernels
        self._index, self._scaling = int(attention.layer_idx), float(attention.scaling)
        self._epsilon = float(layer.input_layernorm.variance_epsilon)  # of all norms; `compare` would find another one
        self.norms = nn.ModuleList([layer.input_layernorm, layer.post_attention_layernorm])
        self.head_norms = nn.ModuleList([getattr(attention, name) for name in HEAD_NORMS if hasattr(attention, name)])
        self._projections = AdaptedProduct([attention.q_proj, attention.k_proj, attention.v_proj])
        self._output = AdaptedProduct([attention.o_proj])
        self._gate_and_up = AdaptedProduct([mlp.gate_proj, mlp.up_proj])
        self._down = AdaptedProduct([mlp.down_proj])
        width, of_heads = self._projections.inputs, list[Any](self.head_norms)
        fits = [kernels.reads(norm.weight, width) for norm in list[Any](self.norms)]
        fits += [kernels.reads(norm.weight, -1) for norm in of_heads]
        if self._projections.outputs != kernels.width or len(of_heads) == 1 or not all(fits):
            raise NotFused(f"{type(layer).__name__} has norms or projections of another shape or type")
        if any(parameter.requires_grad for norm in (*self.norms, *of_heads) for parameter in norm.parameters()):
            raise NotFused("norms are trained")

    def forward(
        self, hidden_states: Tensor, *, position_embeddings: tuple[Tensor, Tensor], layout: TreeLayout, **_: Any
    ) -> Tensor:
        rows, tokens, width = hidden_states.shape
        hidden = hidden_states.reshape(rows * tokens, width)
        cosine, sine = (part.expand(rows, -1, -1).reshape(rows * tokens, -1) for part in position_embeddings)
        positions = _Positions(Rotation(cosine, sine), layout.places, rows)
        attended = layout.attend(self._index, *self._before(hidden, positions), self._scaling, self._kernels)
        attended = attended.transpose(1, 2).reshape(rows * tokens, -1)
        return self._after(attended, hidden).view(rows, tokens, width)

    def rest(self) -> None:
        """Gives up merged weights."""
        for product in (self._projections, self._output, self._gate_and_up, self._down):
            product.rest()

    def _before(self, hidden: Tensor, positions: _Positions) -> tuple[Tensor, Tensor, Tensor]:
        of_heads: list[Any] = list(self.head_norms)
        norms = HeadNorms(of_heads[0].weight, of_heads[1].weight, self._epsilon) if of_heads else None
        part = _Before(self._kernels, self._norm(0), self._projections.merged(), norms, positions)
        result: tuple[Tensor, Tensor, Tensor]
        result = _BeforeAttention.apply(hidden, part, *self._projections.parameters())  # type: ignore[no-untyped-call]
        return result

    def _after(self, attended: Tensor, hidden: Tensor) -> Tensor:
        products = (self._output, self._gate_and_up, self._down)
        part = _After(self._kernels, self._norm(1), *(product.merged() for product in products))
        adapters = [parameter for product in products for parameter in product.parameters()]
        result: Tensor = _AfterAttention.apply(attended, hidden, part, *adapters)  # type: ignore[no-untyped-call]
        return result

    def _norm(self, index: int) -> _Norm:
        norm: Any = self.norms[index]
        return _Norm(self._kernels, norm.weight, self._epsilon)


class TrainingDecoder:
    """The decoder of `model` for passes with gradients: its layers fused where all can be, or as they are.

    Everything but the layers is the model's own, and so are all parameters; nothing of the model is changed.
    """

    def __init__(self, model: Any) -> None:
        self._source = decoder_of(model)
        self._fused: Any = None
        # Without an adapter the layers themselves are trained; an accelerator is no place for compiled C; weights in
        # shards are whole for the model's own layers alone.
        own = not hasattr(model, "peft_config") or sharded(model) is not None
        self._tried = own or self._source.device.type != "cpu"

    def hidden(self, ids: Tensor, positions: Tensor, layout: TreeLayout) -> Tensor:
        """Last hidden states [B, T, hidden] of ids [B, T] at `positions` [B, T]; attention is the layout's."""
        output = self._decoder()(input_ids=ids, position_ids=positions, use_cache=False, layout=layout)
        last: Tensor = output.last_hidden_state
        return last

    def rest(self) -> None:
        """Gives up merged weights; the next pass merges again."""
        if self._fused is not None:
            for layer in self._fused.layers:
                layer.rest()

    def _decoder(self) -> Any:
        # Merged weights have no place for dropout between the adapter's input and its product.
        if any(isinstance(part, nn.Dropout) and part.training and part.p > 0 for part in self._source.modules()):
            return self._source
        if not self._tried:
            self._tried = True
            try:
                self._fused = _with_fused_layers(self._source)
            except NotFused as reason:
                warnings.warn(f"updates run a model's layers as they are, which is slower: {reason}", stacklevel=2)
        return self._source if self._fused is None else self._fused


def _with_fused_layers(decoder: Any) -> Any:
    """A twin of `decoder` that shares everything but its layers. Raises NotFused."""
    layers = list(getattr(decoder, "layers", []))
    if not can_pack(decoder.get_input_embeddings().weight):
        raise NotFused("it takes a processor that multiplies numbers of the model's type")
    kernels = kernels_for(decoder)
    # The twin of a module reaches its tensors through this table instead of copying them.
    shared: dict[int, Any] = {id(t): t for t in (*decoder.parameters(), *decoder.buffers())}
    for layer in layers:
        try:
            replacement = FusedTrainingLayer(layer, kernels)
        except AttributeError as error:
            raise NotFused(f"{type(layer).__name__} has another form: {error}") from error
        compare(layer, replacement, decoder)
        shared[id(layer)] = replacement
    return deepcopy(decoder, shared)


@torch.enable_grad()
def compare(layer: Any, replacement: FusedTrainingLayer, decoder: Any) -> None:
    """Raises NotFused unless both compute the same, and the same gradients, on random input, as a part of `decoder`."""
    rows, tokens = _TRIED
    generator = torch.Generator().manual_seed(0)

    def random() -> Tensor:
        return torch.randn(rows, tokens, decoder.config.hidden_size, generator=generator).to(decoder.dtype)

    # Small, so that the output is what the layer adds; a part that is left out cannot hide behind its input.
    hidden, direction = (0.01 * random()).requires_grad_(), random()
    in_full = deepcopy(layer).float()
    expected, found = (_computed(part, _trained(layer), hidden, direction, decoder) for part in (layer, replacement))
    exact = _computed(in_full, _trained(in_full), hidden.float(), direction.float(), decoder)
    for of_layer, given, of_exact in zip(expected, found, exact, strict=True):
        if of_layer is not None and bool(of_layer.any()):
            given = of_layer.new_zeros(1) if given is None else given
            check_distance(layer, of_layer, given, decoder.dtype, of_exact)


def _trained(layer: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in layer.parameters() if parameter.requires_grad]


def _computed(
    part: Any, adapters: Sequence[Tensor], hidden: Tensor, direction: Tensor, decoder: Any
) -> list[Tensor | None]:
    """What `part` adds to `hidden`, and the gradients of input and `adapters` that `direction` at its output gives."""
    rows, tokens = _TRIED
    positions = torch.arange(tokens).expand(rows, -1)
    options = {"position_ids": positions, "position_embeddings": decoder.rotary_emb(hidden, position_ids=positions)}
    output = part(hidden, **options, layout=TreeLayout([], rows, tokens, decoder))
    if not isinstance(output, Tensor):
        raise NotFused(f"{type(part).__name__} returns more than hidden states")
    gradients = torch.autograd.grad(output, [hidden, *adapters], direction, allow_unused=True)
    # That of the input is mostly `direction` itself, as the output is mostly the input.
    below = None if gradients[0] is None else gradients[0] - direction
    return [output - hidden, below, *gradients[1:]]
