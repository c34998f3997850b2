"""Log-probabilities of given tokens under an output head, without keeping logits for the backward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def chosen_logprobs(hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """log softmax(hidden · weightᵀ / temperature) at `targets`; differentiable in `hidden` and `weight`.

    hidden [N, D], weight [V, D], targets [N] → [N] float32.

    d logprob / d hidden = (weight[target] - softmax · weight) / temperature needs no gradient from above, so with a
    frozen head it is formed with the value, while the logits exist: two products with the head instead of three, and
    [N, D] kept instead of [N, V]. The gradient of a trained head does need it, and forms the logits once more.
    """
    if weight.requires_grad:
        trained: Tensor = _OfTrainedHead.apply(hidden, weight, targets, temperature)  # type: ignore[no-untyped-call]
        return trained
    result: Tensor = _ChosenLogprobs.apply(hidden, weight, targets, temperature)  # type: ignore[no-untyped-call]
    return result


class _ChosenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float) -> Tensor:
        logits = torch.nn.functional.linear(hidden, weight).float()
        if temperature != 1.0:
            logits /= temperature
        top = logits.amax(-1, keepdim=True)
        chosen = logits.gather(1, targets[:, None]) - top
        weights = logits.sub_(top).exp_()
        total = weights.sum(-1, keepdim=True)
        if ctx.needs_input_grad[0]:
            expected = (weights.to(weight.dtype) @ weight).float() / total
            jacobian = (weight[targets].float() - expected) / temperature
            ctx.save_for_backward(jacobian.to(hidden.dtype))
        return (chosen - total.log())[:, 0]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (jacobian,) = ctx.saved_tensors
        return (gradient[:, None] * jacobian).to(jacobian.dtype), None, None, None


class _OfTrainedHead(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float) -> Tensor:
        ctx.save_for_backward(hidden, weight, targets)
        ctx.temperature = temperature
        logits = torch.nn.functional.linear(hidden, weight).float() / temperature
        chosen: Tensor = logits.gather(1, targets[:, None])[:, 0] - logits.logsumexp(-1)
        return chosen

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        hidden, weight, targets = ctx.saved_tensors
        logits = torch.nn.functional.linear(hidden, weight).float() / ctx.temperature
        # By the logits: (1 at the target - softmax) · gradient / temperature.
        slopes = logits.softmax(-1).mul_(-gradient[:, None])
        slopes.scatter_add_(1, targets[:, None], gradient[:, None])
        slopes = slopes.div_(ctx.temperature).to(weight.dtype)
        return slopes @ weight, slopes.t() @ hidden, None, None
