"""The optimiser around a model: one `update` from micro-batches, and state that can be saved and restored exactly."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from deedrl.errors import ModelError
from deedrl.memory import give_back
from deedrl.policies.local.model import LoadedModel
from deedrl.training.backend import LogprobModel
from deedrl.training.packing import Batch

Loss = Callable[[Batch, Tensor], Tensor]
"""From a micro-batch and its action log-probabilities [N] to its share of the loss."""


class Learner:
    """AdamW over the trainable parameters of one model, in float32, through accelerate."""

    def __init__(self, loaded: LoadedModel, *, temperature: float = 1.0, weight_decay: float = 0.0) -> None:
        from accelerate import Accelerator

        self.loaded = loaded
        self.parameters = {n: p for n, p in loaded.model.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise ValueError("the model has no trainable parameters; add an adapter or unfreeze it")
        if low := sorted({str(p.dtype) for p in self.parameters.values() if p.dtype != torch.float32}):
            raise ModelError(
                f"expected trainable parameters in float32, got {', '.join(low)}, in which small updates round to "
                "nothing; set model.dtype to fp32, or train an adapter"
            )
        # Engine and batches live on the CPU in this version; accelerate would move the model to a visible GPU.
        self._accelerator = Accelerator(cpu=True)
        optimizer = torch.optim.AdamW(self.parameters.values(), lr=0.0, weight_decay=weight_decay)
        self._module = LogprobModel(loaded.model, temperature=temperature)
        self._logprobs, self._optimizer = self._accelerator.prepare(self._module, optimizer)

    def update(
        self,
        batches: Sequence[Batch],
        loss: Loss,
        *,
        learning_rate: float,
        max_grad_norm: float,
        dropout: bool = False,
    ) -> UpdateStats:
        """One optimiser step over the micro-batches of one `pack`; without action tokens nothing changes (`empty`).

        Gradients add up over micro-batches, so `loss` must already carry the normalisation of the whole update.
        `dropout` switches the model's dropout on; it makes no sense where importance ratios are taken.
        """
        if not any(batch.action_tokens for batch in batches):
            return UpdateStats(loss=0.0, grad_norm=0.0, empty=True)
        total = 0.0
        self._optimizer.zero_grad(set_to_none=True)
        with self._dropout() if dropout else nullcontext():
            prefix = self._module.shared_prefix(batches[0].prefix_ids)
            for batch in batches:
                logprobs, _ = self._logprobs(batch, prefix)
                value = loss(batch, logprobs)
                self._accelerator.backward(value)
                total += float(value.detach())
                # Micro-batches differ in shape and so leave holes the next cannot use: 0.6 GB each was seen.
                del logprobs, value
                give_back()
            prefix.backward()
        norm = float(self._accelerator.clip_grad_norm_(list(self.parameters.values()), max_grad_norm))
        if not math.isfinite(norm):
            self._optimizer.zero_grad(set_to_none=True)
            return UpdateStats(loss=total, grad_norm=norm, empty=False, skipped=True)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return UpdateStats(loss=total, grad_norm=norm, empty=False)

    @property
    def updates(self) -> int:
        """Optimiser steps taken, those before a resume included."""
        first = self._moments(next(iter(self.parameters.values())))
        return int(first["step"]) if first else 0

    @torch.no_grad()
    def logprobs(self, batches: Sequence[Batch]) -> list[Tensor]:
        """Action log-probabilities [N] of each of `batches` (from one `pack`) under the current parameters."""
        prefix = self._module.shared_prefix(batches[0].prefix_ids)
        return [self._module(batch, prefix)[0] for batch in batches]

    @contextmanager
    def _dropout(self) -> Iterator[None]:
        """Training mode, with a random stream that depends only on the optimiser's step and so survives a resume."""
        with torch.random.fork_rng():
            torch.manual_seed(self.updates)
            self.loaded.model.train()
            try:
                yield
            finally:
                self.loaded.model.eval()

    def snapshot(self) -> list[Tensor]:
        """A copy of the trainable parameters, in the order of `parameters`."""
        return [parameter.detach().clone() for parameter in self.parameters.values()]

    def restore(self, snapshot: Sequence[Tensor]) -> None:
        """Puts a snapshot's values back."""
        with torch.no_grad():
            for parameter, value in zip(self.parameters.values(), snapshot, strict=True):
                parameter.copy_(value)

    # ------------------------------------------------------------ exact state

    def tensors(self) -> dict[str, Tensor]:
        """Parameters and optimiser moments by name, for a safetensors file."""
        state: dict[str, Tensor] = {}
        for name, parameter in self.parameters.items():
            state[f"parameter.{name}"] = parameter.detach().clone()
            for key, value in self._moments(parameter).items():
                state[f"{key}.{name}"] = value.detach().clone()
        return state

    def load_tensors(self, state: dict[str, Tensor]) -> None:
        """Restores what `tensors` returned, bit for bit; a missing parameter is a KeyError naming it."""
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(state[f"parameter.{name}"])
                moments = {k: state[f"{k}.{name}"].clone() for k in _MOMENTS if f"{k}.{name}" in state}
                self._optimizer.state.pop(parameter, None)
                if moments:
                    self._optimizer.state[parameter] = moments

    def _moments(self, parameter: Tensor) -> dict[str, Tensor]:
        held: dict[str, Any] = self._optimizer.state.get(parameter, {})
        return {key: held[key] for key in _MOMENTS if key in held}


_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


class UpdateStats:
    """What one update did."""

    def __init__(self, *, loss: float, grad_norm: float, empty: bool, skipped: bool = False) -> None:
        self.loss = loss
        self.grad_norm = grad_norm
        """Before clipping."""
        self.empty = empty
        """No action token was in the batch: parameters and optimiser state are untouched."""
        self.skipped = skipped
        """The gradient was not finite: parameters and optimiser state are untouched."""


def scheduled_rate(step: int, steps: int, *, peak: float, final: float, schedule: str, warmup: int = 0) -> float:
    """Rate of update `step` (from 0) of `steps`: linear warm-up from 0, then ``constant``, ``linear`` or ``cosine``."""
    if step < warmup:
        return peak * (step + 1) / warmup
    if schedule == "constant":
        return peak
    progress = (step - warmup) / max(steps - warmup - 1, 1)
    share = 1 - min(progress, 1.0) if schedule == "linear" else 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
    return final + (peak - final) * share
