"""Products with frozen weights in training: packed in both directions, a LoRA adapter's part added in place.

A layer with an adapter costs PEFT a product and two more passes over whole activations (scaling, adding), forward and
backward, and a product with a weight in its plain layout rearranges the weight anew each time. Here a layer is one step
of autograd. The adapter's parameters stay PEFT's own, so optimiser, checkpoints and snapshots know nothing of it.

Shapes: n tokens, I inputs, O outputs, r rank.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from deedrl.policies.local.attention import install
from deedrl.policies.local.twin import can_pack, decoder_of, packed_product, packed_weight, twin


class FrozenWeight:
    """A weight [O, I] that gets no gradient, and its products in both directions."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight.detach()

    def forward(self, inputs: Tensor, bias: Tensor | None = None) -> Tensor:
        """inputs [n, I] · weightᵀ + bias → [n, O]."""
        return torch.nn.functional.linear(inputs, self.weight, bias)

    def backward(self, gradient: Tensor) -> Tensor:
        """gradient [n, O] · weight → [n, I]."""
        return gradient @ self.weight


class PackedWeight(FrozenWeight):
    """Each direction is packed when it is first needed: a pass without gradients needs one alone."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__(weight)
        self._forward: Tensor | None = None
        self._backward: Tensor | None = None

    def forward(self, inputs: Tensor, bias: Tensor | None = None) -> Tensor:
        if self._forward is None:
            self._forward = packed_weight(self.weight)
        return packed_product(inputs, self._forward, bias)

    def backward(self, gradient: Tensor) -> Tensor:
        if self._backward is None:
            self._backward = packed_weight(self.weight.t().contiguous())
        return packed_product(gradient, self._backward)


class PackedModel:
    """Decoder and head of `model` for one update. Layers that cannot be replaced run as they are.

    Made when an update begins, because dropout that acts in it rules layers out, and dropped after it: packed weights
    take up to twice the memory of the model's linear layers.
    """

    def __init__(self, model: Any) -> None:
        install(model)  # before the twin copies the model's configuration
        self.decoder = twin(decoder_of(model), _replacement)
        head = model.get_output_embeddings()
        self.head = PackedWeight(head.weight) if is_frozen(head) and can_pack(head.weight) else None


def is_frozen(layer: Any) -> bool:
    """A plain linear layer without any trainable parameter."""
    return type(layer) is nn.Linear and not any(parameter.requires_grad for parameter in layer.parameters())


def _replacement(module: Any) -> nn.Module | None:
    base = module if type(module) is nn.Linear else module.get_base_layer()
    if not is_frozen(base) or not can_pack(base.weight):
        return None
    if base is module:
        return _Frozen(base)
    active = [name for name in module.active_adapters if name in module.lora_A]
    if len(active) != 1 or module.disable_adapters or module.lora_B[active[0]].bias is not None:
        return None
    dropout = module.lora_dropout[active[0]]
    if dropout.training and type(dropout) is not nn.Identity:
        return None
    return _Adapted(base, module.lora_A[active[0]].weight, module.lora_B[active[0]].weight, module.scaling[active[0]])


class _Frozen(nn.Module):
    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self._weight, self._bias = PackedWeight(base.weight), base.bias

    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = _FrozenProduct.apply(inputs.to(self._weight.weight.dtype), self._weight, self._bias)  # type: ignore[no-untyped-call]
        return result


class _Adapted(nn.Module):
    """A frozen layer and one adapter: down [r, I], up [O, r]."""

    def __init__(self, base: nn.Linear, down: nn.Parameter, up: nn.Parameter, scaling: float) -> None:
        super().__init__()
        self._weight, self._bias = PackedWeight(base.weight), base.bias
        self._down, self._up, self._scaling = down, up, scaling

    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = _AdaptedProduct.apply(  # type: ignore[no-untyped-call]
            inputs.to(self._weight.weight.dtype), self._weight, self._bias, self._down, self._up, self._scaling
        )
        return result


class _FrozenProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: FrozenWeight, bias: Tensor | None) -> Tensor:
        ctx.weight = weight
        return weight.forward(inputs, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.weight.backward(gradient.contiguous()), None, None


class _AdaptedProduct(torch.autograd.Function):
    """y = x weightᵀ + bias + scaling (x downᵀ) upᵀ. All products run in the weight's type, as in the model itself."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight: FrozenWeight,
        bias: Tensor | None,
        down: Tensor,
        up: Tensor,
        scaling: float,
    ) -> Tensor:
        flat = inputs.flatten(0, -2)
        low = flat @ down.to(flat.dtype).t()
        outputs = weight.forward(flat, bias)
        outputs.addmm_(low, up.to(flat.dtype).t(), alpha=scaling)
        ctx.save_for_backward(flat, low, down, up)
        ctx.weight, ctx.scaling = weight, scaling
        return outputs.view(*inputs.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None, Tensor, Tensor, None]:
        flat, low, down, up = ctx.saved_tensors
        upper = gradient.flatten(0, -2).contiguous()
        # [n, r]: the gradient at `low`.
        lower = upper @ (up * ctx.scaling).to(upper.dtype)
        inputs = None
        if ctx.needs_input_grad[0]:
            inputs = ctx.weight.backward(upper).addmm_(lower, down.to(upper.dtype))
            inputs = inputs.view(*gradient.shape[:-1], -1)
        down_gradient = (lower.t() @ flat).to(down.dtype)
        up_gradient = (upper.t() @ low).to(up.dtype).mul_(ctx.scaling)
        return inputs, None, None, down_gradient, up_gradient, None
