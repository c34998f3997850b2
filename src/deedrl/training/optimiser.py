"""AdamW over named parameters: gradients of micro-batches, one step, and state that is saved and restored exactly."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from deedrl.errors import ModelError
from deedrl.memory import give_back
from deedrl.training import processes
from deedrl.training.backend import LogprobModel, SharedPrefix
from deedrl.training.packing import Batch
from deedrl.training.sharding import Piece, own_value, whole_value

_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


class Optimiser:
    """AdamW over `parameters` in float32, through accelerate.

    With `processes.shards_optimiser` each process holds the moments of its pieces of the parameters, steps these, and
    gets the others' (stage 1 of ZeRO, Rajbhandari et al. 2020, arXiv 1910.02054). AdamW works element by element, so
    the step is the same. A parameter may also be a `Piece`, with a gradient that is summed already (stage 3). `clip`,
    `step` and `tensors` are then to be called in all processes alike.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], *, weight_decay: float = 0.0) -> None:
        from accelerate import Accelerator

        self.parameters = dict(parameters)
        if not self.parameters:
            raise ValueError("the model has no trainable parameters; add an adapter or unfreeze it")
        if low := sorted({str(p.dtype) for p in self.parameters.values() if p.dtype != torch.float32}):
            raise ModelError(
                f"expected trainable parameters in float32, got {', '.join(low)}, in which small updates round to "
                "nothing; set model.dtype to fp32, or train an adapter"
            )
        # Whatever this says, parameters and moments are where the model is; accelerate is to move nothing.
        self._accelerator = Accelerator(cpu=True)
        self._sharded = processes.shards_optimiser()
        self._stepped = {name: self._own(parameter) for name, parameter in self.parameters.items()}
        optimizer = torch.optim.AdamW(self._stepped.values(), lr=0.0, weight_decay=weight_decay)
        self._optimizer = self._accelerator.prepare(optimizer)

    def clear(self) -> None:
        """Drops gradients."""
        for held in (*self.parameters.values(), *self._stepped.values()):
            held.grad = None

    def backward(self, loss: Tensor) -> None:
        """Adds the gradient of `loss` to those that are there."""
        self._accelerator.backward(loss)

    def sum_gradients(self) -> None:
        """Adds up the gradients of all processes; to be called once, after the last `backward` of an update."""
        processes.sum_gradients([p for p in self.parameters.values() if not isinstance(p, Piece)])

    def clip(self, max_grad_norm: float) -> float:
        """Clips the gradient's norm and returns what it was."""
        parameters = list(self.parameters.values())
        if not any(isinstance(parameter, Piece) for parameter in parameters):
            return float(self._accelerator.clip_grad_norm_(parameters, max_grad_norm))
        own, same = (
            float(
                get_total_norm([p.grad for p in parameters if p.grad is not None and isinstance(p, Piece) == in_pieces])
            )
            for in_pieces in (True, False)
        )
        [of_pieces] = processes.summed([own**2])
        norm = math.sqrt(of_pieces + same**2)
        clip_grads_with_norm_(parameters, max_grad_norm, torch.tensor(norm))
        return norm

    def step(self, learning_rate: float) -> None:
        """One step along the gradients, which are dropped then."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        cut = {name: p for name, p in self.parameters.items() if self._stepped[name] is not p}
        for name, parameter in cut.items():
            gradient = parameter.grad
            self._stepped[name].grad = None if gradient is None else processes.piece(gradient.contiguous())
        self._optimizer.step()
        self.clear()
        processes.share_pieces([parameter.detach() for parameter in cut.values()])

    @property
    def updates(self) -> int:
        """Steps taken, those before a resume included."""
        first = self._moments(next(iter(self._stepped.values())))
        return int(first["step"]) if first else 0

    # ------------------------------------------------------------ exact state

    def snapshot(self) -> list[Tensor]:
        """A copy of the parameters, in the order of `parameters`."""
        return [parameter.detach().clone() for parameter in self.parameters.values()]

    def restore(self, snapshot: Sequence[Tensor]) -> None:
        """Puts a snapshot's values back."""
        with torch.no_grad():
            for parameter, value in zip(self.parameters.values(), snapshot, strict=True):
                parameter.copy_(value)

    def tensors(self) -> dict[str, Tensor]:
        """Whole parameters and moments by name, on the processor, for a safetensors file.

        They are the same for any number of processes. Where states are sharded only the first process, which writes,
        has the moments, and what is in pieces; the others help to gather them.
        """
        state: dict[str, Tensor] = {}
        for name, parameter in self.parameters.items():
            of_parameter = whole_value(parameter.detach(), parameter)
            if processes.is_first() or not isinstance(parameter, Piece):
                state[f"parameter.{name}"] = of_parameter.to("cpu", copy=True)
            for key, value in self._moments(self._stepped[name]).items():
                whole = self._gathered(key, value, parameter)
                if not self._sharded or processes.is_first():
                    state[f"{key}.{name}"] = whole
        return state

    def state_elements(self) -> int:
        """Elements of the moments that this process holds."""
        moments = [self._moments(stepped) for stepped in self._stepped.values()]
        return sum(value.numel() for held in moments for key, value in held.items() if key != "step")

    def load_tensors(self, state: Mapping[str, Tensor]) -> None:
        """Restores what `tensors` returned, bit for bit; a missing parameter is a KeyError naming it."""
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(own_value(state[f"parameter.{name}"], parameter))
                stepped = self._stepped[name]
                moments = {k: self._cut(k, state[f"{k}.{name}"], stepped) for k in _MOMENTS if f"{k}.{name}" in state}
                self._optimizer.state.pop(stepped, None)
                if moments:
                    self._optimizer.state[stepped] = moments

    def _own(self, parameter: nn.Parameter) -> nn.Parameter:
        """What this process steps of `parameter`, in the same memory."""
        if not self._sharded or isinstance(parameter, Piece):
            return parameter
        return nn.Parameter(processes.piece(parameter.detach()))

    def _cut(self, key: str, whole: Tensor, stepped: Tensor) -> Tensor:
        """What this process keeps of a saved state: a copy beside what it steps, but for torch's count of steps."""
        if key == "step":  # stays on the processor, where torch keeps it
            return whole.clone()
        if isinstance(stepped, Piece):
            return own_value(whole, stepped).to(stepped.device)
        return (processes.piece(whole) if self._sharded else whole).to(stepped.device, copy=True)

    def _gathered(self, key: str, held: Tensor, parameter: Tensor) -> Tensor:
        """A copy, on the processor, of one state of a whole parameter."""
        if not self._sharded or key == "step":
            return held.detach().to("cpu", copy=True)
        if isinstance(parameter, Piece):
            return whole_value(held, parameter)
        # Pieces meet on the processor: a device may have no room for whole moments.
        whole = torch.zeros(parameter.shape)
        processes.piece(whole).copy_(held)
        processes.share_pieces([whole])
        return whole

    def _moments(self, parameter: Tensor) -> dict[str, Tensor]:
        held: dict[str, Any] = self._optimizer.state.get(parameter, {})
        return {key: held[key] for key in _MOMENTS if key in held}


def accumulate(
    model: LogprobModel,
    batches: Sequence[Batch],
    compute: Callable[[Batch, SharedPrefix], tuple[Tensor, ...]],
    loss: Callable[..., Tensor],
    backward: Callable[[Tensor], None],
) -> float:
    """Adds up the gradients of each micro-batch's share of the loss, and returns the loss.

    What the model says of a batch comes from `compute`; `loss` takes the batch and that. `batches` are of one `pack`;
    what all of them begin with is computed once, here, and gets its gradient at the end. Of several processes each
    takes its share of the micro-batches and has their gradients; the loss is that of all.
    """
    total = 0.0
    prefix = model.shared_prefix(batches[0].prefix_ids)
    for index, (batch, counts) in enumerate(processes.rounds(batches)):
        if index:
            # Micro-batches differ in shape and so leave holes the next cannot use: 0.6 GB each was seen.
            give_back()
        found = compute(batch, prefix)
        value = loss(batch, *found) if counts else 0.0 * torch.stack([part.sum() for part in found]).sum()
        backward(value)
        total += float(value.detach())
        del found, value
    prefix.backward()
    model.rest()
    return processes.summed([total])[0]


def step_together(rates: Sequence[tuple[Optimiser, float]], max_grad_norm: float) -> tuple[list[float], bool]:
    """One step of every optimiser at its learning rate, along the gradients of all processes, each norm clipped.

    Returns the norms before clipping, and whether the steps were taken: if a norm is not finite nothing changes.
    """
    for optimiser, _ in rates:
        optimiser.sum_gradients()
    norms = [optimiser.clip(max_grad_norm) for optimiser, _ in rates]
    sound = all(map(math.isfinite, norms))
    for optimiser, rate in rates:
        if sound:
            optimiser.step(rate)
        else:
            optimiser.clear()
    return norms, sound
