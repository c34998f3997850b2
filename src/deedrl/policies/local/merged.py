"""A decoder for sampling: the model's own modules, with a LoRA adapter added into the weights it acts on.

Unmerged, an adapter costs two more small products and two more passes over the activations in every linear layer,
at every token. Sampling pays that thousands of times between two updates; adding the adapter in costs once.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn


def decoder_of(model: Any) -> Any:
    """The part of a causal model below its output head, whether or not PEFT wraps it."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return inner.get_decoder() if hasattr(inner, "get_decoder") else inner.model


class MergedDecoder:
    """Called like the decoder of `model`. Shares all its tensors but the adapted weights, which it holds merged.

    The model itself is never changed, so nothing has to be undone before an update. Where a layer's adapter is not
    plain LoRA on a plain linear layer, the decoder runs unmerged.
    """

    def __init__(self, model: Any) -> None:
        self._source = decoder_of(model)
        adapted = {name: module for name, module in self._source.named_modules() if _is_lora(module)}
        self._adapted = adapted if all(_can_merge(module) for module in adapted.values()) else {}
        self._decoder = _twin(self._source, self._adapted) if self._adapted else self._source
        self._stale = True

    def weights_changed(self) -> None:
        """The next call merges anew."""
        self._stale = True

    def __call__(self, **inputs: Any) -> Any:
        if self._stale:
            self._merge()
            self._stale = False
        return self._decoder(**inputs)

    @torch.no_grad()
    def _merge(self) -> None:
        for name, module in self._adapted.items():
            merged = self._decoder.get_submodule(name)
            base = module.get_base_layer().weight
            total = base.float()
            for adapter in module.active_adapters:
                total = total + module.get_delta_weight(adapter).float()
            merged.weight.copy_(total)


def _is_lora(module: nn.Module) -> bool:
    return hasattr(module, "get_base_layer") and hasattr(module, "active_adapters")


def _can_merge(module: Any) -> bool:
    """By exact types: quantised layers, DoRA and other variants are more than a product added to a weight."""
    from peft.tuners.lora import Linear

    variants = getattr(module, "lora_variant", None) or any(getattr(module, "use_dora", {}).values())
    return type(module) is Linear and type(module.get_base_layer()) is nn.Linear and not variants and not module.merged


def _twin(source: nn.Module, adapted: dict[str, Any]) -> nn.Module:
    """The same modules over the same tensors, with a linear layer of its own in place of each adapted one."""
    shared = {id(tensor): tensor for tensor in (*source.parameters(), *source.buffers())}
    twin: nn.Module = copy.deepcopy(source, shared)
    for name, module in adapted.items():
        base = module.get_base_layer()
        layer = nn.Linear(base.in_features, base.out_features, bias=False, dtype=base.weight.dtype, device="meta")
        layer.weight = nn.Parameter(torch.empty_like(base.weight), requires_grad=False)
        layer.bias = base.bias
        parent, _, leaf = name.rpartition(".")
        setattr(twin.get_submodule(parent), leaf, layer)
    return twin.eval()
