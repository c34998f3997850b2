"""Twins of a decoder: other modules in place of its linear layers, everything else shared with the model itself."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


def decoder_of(model: Any) -> Any:
    """The part of a causal model below its output head, whether or not PEFT wraps it."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return inner.get_decoder() if hasattr(inner, "get_decoder") else inner.model


def twin(decoder: Any, replacement: Callable[[Any], nn.Module | None]) -> Any:
    """A copy of `decoder` that holds the same tensors.

    `replacement` is asked for a module in place of every plain linear layer and every one with plain LoRA; where it
    gives None the twin runs the layer as it is. The decoder itself is never changed, so nothing has to be undone.
    """
    modules = dict(decoder.named_modules())
    adapted = [name + "." for name, module in modules.items() if hasattr(module, "get_base_layer")]
    # The twin of a module reaches its tensors through this table instead of copying them.
    shared: dict[int, Any] = {id(t): t for t in (*decoder.parameters(), *decoder.buffers())}
    for name, module in modules.items():
        if (type(module) is nn.Linear or _is_plain_lora(module)) and not name.startswith(tuple(adapted)):
            other = replacement(module)
            if other is not None:
                shared[id(module)] = other
    return copy.deepcopy(decoder, shared)


def _is_plain_lora(module: Any) -> bool:
    """By exact types: quantised layers, DoRA and other variants are more than a product added to a weight."""
    if not hasattr(module, "get_base_layer") or not hasattr(module, "get_delta_weight"):
        return False
    from peft.tuners.lora import Linear

    variants = getattr(module, "lora_variant", None) or any(getattr(module, "use_dora", {}).values())
    return type(module) is Linear and type(module.get_base_layer()) is nn.Linear and not variants and not module.merged


def can_pack(weight: Tensor) -> bool:
    """Whether this build of torch and this processor multiply `weight` in packed layout."""
    operations = ("_reorder_linear_weight", "_linear_pointwise")
    known = bool(torch._C._has_mkldnn) and all(hasattr(torch.ops.mkldnn, name) for name in operations)
    # In bf16 oneDNN needs instructions that not every processor has; torch's own layers always work.
    native = weight.dtype == torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return known and weight.device.type == "cpu" and bool(native)


def packed_weight(weight: Tensor) -> Tensor:
    """Weight [outputs, inputs] laid as oneDNN's products read it, for `packed_product`."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight)
    return packed


def packed_product(inputs: Tensor, packed: Tensor, bias: Tensor | None = None) -> Tensor:
    """inputs [..., inputs] · weightᵀ + bias → [..., outputs]."""
    result: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, packed, bias, "none", [], "")
    return result
