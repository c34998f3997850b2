"""A policy that learns: one `update` from micro-batches, and state that can be saved and restored exactly."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from deedrl.policies.local.device import own_random_streams
from deedrl.policies.local.model import LoadedModel
from deedrl.seeding import derive_seed
from deedrl.training import processes
from deedrl.training.backend import LogprobModel, SharedPrefix
from deedrl.training.optimiser import Optimiser, accumulate, step_together
from deedrl.training.packing import Batch
from deedrl.training.sharding import release, trained_parameters

Loss = Callable[[Batch, Tensor], Tensor]
"""From a micro-batch and its action log-probabilities [N] to its share of the loss."""


class Learner:
    """The trainable parameters of one model and their optimiser."""

    def __init__(self, loaded: LoadedModel, *, temperature: float = 1.0, weight_decay: float = 0.0) -> None:
        self.loaded = loaded
        self.optimiser = Optimiser(trained_parameters(loaded.model), weight_decay=weight_decay)
        self.module = LogprobModel(loaded.model, temperature=temperature)

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """What is trained, by name."""
        return self.optimiser.parameters

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
        self.optimiser.clear()
        place = {id(batch): index for index, batch in enumerate(batches)}

        def logprobs(batch: Batch, prefix: SharedPrefix) -> tuple[Tensor]:
            if dropout:
                self._seed_dropout(place[id(batch)])
            return (self.module(batch, prefix)[0],)

        with self._dropout() if dropout else nullcontext():
            total = accumulate(self.module, batches, logprobs, loss, self.optimiser.backward)
        [norm], taken = step_together([(self.optimiser, learning_rate)], max_grad_norm)
        return UpdateStats(loss=total, grad_norm=norm, empty=False, skipped=not taken)

    @property
    def updates(self) -> int:
        """Optimiser steps taken, those before a resume included."""
        return self.optimiser.updates

    @torch.no_grad()
    def logprobs(self, batches: Sequence[Batch]) -> list[Tensor]:
        """Action log-probabilities [N] of each of `batches` (from one `pack`) under the current parameters."""
        prefix = self.module.shared_prefix(batches[0].prefix_ids)
        passes = [(self.module(batch, prefix)[0], counts) for batch, counts in processes.rounds(batches)]
        return processes.whole([of for of, counts in passes if counts], [batch.action_tokens for batch in batches])

    @contextmanager
    def _dropout(self) -> Iterator[None]:
        """Training mode, with random streams that depend only on the optimiser's step and so survive a resume."""
        with own_random_streams(self.loaded.model.device):
            self._seed_dropout("prefix")
            self.loaded.model.train()
            try:
                yield
            finally:
                self.loaded.model.eval()

    def _seed_dropout(self, part: int | str) -> None:
        """A stream for each part of an update, so that it does not matter which process computes it."""
        torch.manual_seed(derive_seed(self.updates, "dropout", part))

    def snapshot(self) -> list[Tensor]:
        """A copy of the trainable parameters, in the order of `parameters`."""
        return self.optimiser.snapshot()

    def restore(self, snapshot: Sequence[Tensor]) -> None:
        """Puts a snapshot's values back."""
        self.optimiser.restore(snapshot)
        release(self.loaded.model)

    def tensors(self) -> dict[str, Tensor]:
        """Parameters and optimiser moments by name, for a safetensors file."""
        return self.optimiser.tensors()

    def load_tensors(self, state: dict[str, Tensor]) -> None:
        """Restores what `tensors` returned, bit for bit; a missing parameter is a KeyError naming it."""
        self.optimiser.load_tensors(state)
        release(self.loaded.model)


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
