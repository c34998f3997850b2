"""A copy of a model's linear layers for sampling: LoRA adapters added in, weights packed for small products.

Unmerged, an adapter costs two more small products and two more passes over the activations in every linear layer, at
every token; and a product of few rows with a weight in its plain layout spends much of its time on rearranging the
weight. Sampling pays both thousands of times between two updates; the copy is made once after each.

On an accelerator there is no copy, for its memory hardly holds the model once: sampling runs the model's own layers, as
updates do.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from deedrl.errors import ModelError
from deedrl.policies.local.compiled.kernels import Kernels
from deedrl.policies.local.device import adapter_precision
from deedrl.policies.local.fused import FusedLayer, NotFused, compare, fused, kernels_for
from deedrl.policies.local.packed import PackedWeight, packed
from deedrl.policies.local.sampling import sample_tokens


def decoder_of(model: Any) -> Any:
    """The part of a causal model below its output head, whether or not PEFT wraps it."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return inner.get_decoder() if hasattr(inner, "get_decoder") else inner.model


class SamplingModel:
    """Decoder and head of `model` for sampling. Everything but the linear layers is shared with the model.

    The model itself is never changed, so nothing has to be undone before an update. A layer whose adapter is more than
    plain LoRA on a plain linear layer is shared too, and runs as it is.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._source = decoder_of(model)
        self._source_head = model.get_output_embeddings()
        self._decoder: Any = None
        self._head: Any = None
        self._compared = False
        """Whether every layer was found to compute what its replacement does; new weights do not change that."""
        self._warned = self._without_kernels = False
        self._kernels: Kernels | None = None

    def weights_changed(self) -> None:
        """The next call copies anew."""
        self._decoder = self._head = None

    def hold(self) -> None:
        """Copies now if that is still to do; until `weights_changed` an update of the model then changes nothing here.

        Raises ModelError where a trained tensor is shared, so that an update would be seen half done.
        """
        if self._decoder is None or self._decoder is self._source:
            self._copy()
        named = (*self._decoder.named_parameters(), *self._head.named_parameters())
        if shared := [name for name, parameter in named if parameter.requires_grad]:
            raise ModelError(
                f"sampling during an update needs an adapter of plain LoRA on linear layers, so that only copies are "
                f"read; here {len(shared)} trained tensors are shared, such as {shared[0]}; set max_staleness to 0"
            )

    def hidden(self, ids: Tensor, positions: Tensor, layout: Any) -> Tensor:
        """Last hidden states [B, T, hidden] of ids [B, T] at `positions` [B, T]; attention is the layout's."""
        if self._decoder is None:
            self._open()
        with self._precision():
            output = self._decoder(input_ids=ids, position_ids=positions, use_cache=False, layout=layout)
        last: Tensor = output.last_hidden_state
        return last

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [N, V] of hidden states [N, hidden], after `hidden` was called."""
        with self._precision():
            result: Tensor = self._head(hidden)
        return result

    def draw(self, logits: Tensor, temperatures: Tensor, uniforms: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
        """As `sample_tokens`."""
        if logits.device.type == "mps":  # it has no float64
            logits = logits.cpu()
        draw = self._kernels.draw if self._kernels and self._kernels.reads(logits, *logits.shape) else sample_tokens
        return draw(logits, temperatures, uniforms, which)

    def _precision(self) -> AbstractContextManager[None]:
        """As in updates, where adapters have not been added in."""
        return adapter_precision(self._model) if self._decoder is self._source else nullcontext()

    def _open(self) -> None:
        if self._source.device.type == "cpu":
            self._copy()
        else:
            self._share()

    def _share(self) -> None:
        self._decoder, self._head = self._source, self._source_head

    @torch.no_grad()
    def _copy(self) -> None:
        modules = dict(self._source.named_modules())
        # The twin of a module reaches its tensors through this table instead of copying them.
        shared: dict[int, Any] = {id(t): t for t in (*self._source.parameters(), *self._source.buffers())}
        shared.update((id(layer), replacement) for layer, replacement in self._fused_layers())
        # What is inside a module that is replaced or adapted is not looked at.
        whole = [f"{name}." for name, m in modules.items() if id(m) in shared or hasattr(m, "get_base_layer")]
        for name, module in modules.items():
            if is_known(module) and not name.startswith(tuple(whole)):
                shared[id(module)] = _packed(module)
        self._decoder = copy.deepcopy(self._source, shared).eval()
        self._head = self._copied_head()

    def _copied_head(self) -> Any:
        if type(self._source_head) is not nn.Linear:
            return self._source_head
        fits = self._source_head.weight.dtype == self._source.dtype
        return _packed(self._source_head, self._kernels if fits else None)

    def _fused_layers(self) -> Iterator[tuple[Any, FusedLayer]]:
        """The decoder's layers that can be fused, with their replacements; says once why others cannot."""
        if self._without_kernels or self._source.device.type != "cpu" or not can_pack(self._source_head.weight):
            return
        reasons = []
        try:
            self._kernels = kernels = kernels_for(self._source)
            for layer in self._source.layers:
                try:
                    replacement = fused(layer, kernels, weight_and_bias)
                    if not self._compared:
                        compare(layer, replacement, self._source, kernels)
                    yield layer, replacement
                except NotFused as reason:
                    reasons.append(reason)
        except NotFused as reason:
            reasons.append(reason)
            self._without_kernels = True
        if reasons and not self._warned:
            warnings.warn(f"sampling runs a model's layers as they are, which is slower: {reasons[0]}", stacklevel=2)
            self._warned = True
        self._compared = not reasons


class _PackedLinear(nn.Module):
    """A linear layer whose weight lies as products of few rows read it."""

    def __init__(self, weight: PackedWeight) -> None:
        super().__init__()
        self._weight = weight

    def forward(self, inputs: Tensor) -> Tensor:
        return self._weight.times(inputs)


def _packed(module: Any, kernels: Kernels | None = None) -> nn.Module:
    """The layer with its adapters added to its weight; packed where this build of torch can."""
    weight, bias = weight_and_bias(module)
    if can_pack(weight):
        return _PackedLinear(packed(weight, bias, kernels))
    outputs, inputs = weight.shape
    layer = nn.Linear(inputs, outputs, bias=False, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias, requires_grad=False)
    return layer


def weight_and_bias(module: Any) -> tuple[Tensor, Tensor | None]:
    """Of a linear layer, adapters added in. Raises NotFused for one that is not known."""
    if not is_known(module):
        raise NotFused(f"a layer has a {type(module).__name__}, or an adapter that is more than plain LoRA")
    base = module.get_base_layer() if hasattr(module, "get_base_layer") else module
    bias = None if base.bias is None else base.bias.detach()
    if base is module:
        return module.weight.detach(), bias
    total = base.weight.float()
    for adapter in module.active_adapters:
        total = total + module.get_delta_weight(adapter).float()
    return total.to(base.weight.dtype), bias


def is_known(module: Any) -> bool:
    return type(module) is nn.Linear or _is_plain_lora(module)


def can_pack(weight: Tensor) -> bool:
    operations = ("_reorder_linear_weight", "_linear_pointwise")
    known = bool(torch._C._has_mkldnn) and all(hasattr(torch.ops.mkldnn, name) for name in operations)
    # In bf16 oneDNN needs instructions that not every processor has; torch's own layers always work.
    native = weight.dtype == torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return known and weight.device.type == "cpu" and bool(native)


def _is_plain_lora(module: Any) -> bool:
    """By exact types: quantised layers, DoRA and other variants are more than a product added to a weight."""
    if not hasattr(module, "get_base_layer") or not hasattr(module, "get_delta_weight"):
        return False
    from peft.tuners.lora import Linear

    variants = getattr(module, "lora_variant", None) or any(getattr(module, "use_dora", {}).values())
    biased = any(getattr(module, "lora_bias", {}).values())
    plain = type(module) is Linear and type(module.get_base_layer()) is nn.Linear and not module.merged
    return plain and not variants and not biased
