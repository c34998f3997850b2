"""Scalar heads on the hidden states of a model: what critics and reward models are made of.

A trunk of a head's own is an adapter beside the policy's on the same frozen base, so that no second model is held.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from deedrl.errors import ModelError
from deedrl.policies.local.device import own_random_streams
from deedrl.policies.local.source import check_adapter, in_short
from deedrl.training import processes
from deedrl.training.backend import LogprobModel, SharedPrefix
from deedrl.training.optimiser import Optimiser, accumulate, step_together
from deedrl.training.packing import Batch


class ValueHead(nn.Module):
    """Hidden states [..., hidden] of `model` to values [...] by one linear layer in float32; 0 everywhere at first.

    It is where the model is, and its values are on the processor, as `backend.LogprobModel`'s are.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(width_of(model), 1, dtype=torch.float32, device=model.device)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        values: Tensor = self.linear(hidden.float())
        return values[..., 0].cpu()

    @property
    def named(self) -> dict[str, nn.Parameter]:
        """Its parameters by the names they are saved under."""
        return {f"value_head.{name}": parameter for name, parameter in self.linear.named_parameters()}


@dataclass(frozen=True)
class StateValues:
    """What a head says of one micro-batch."""

    actions: Tensor
    """[N]: of the states its action tokens were sampled in."""
    ends: Tensor
    """[E]: of the states after the tokens it is to read, and after the last token of samples that a limit cut."""


def head_values(head: ValueHead, hidden: Tensor, batch: Batch) -> StateValues:
    """Of the hidden states of all slots of `batch`."""
    return StateValues(head(hidden[batch.slots])[batch.predictions], head(hidden[batch.end_slots]))


def values_under(head: ValueHead, model: LogprobModel, batches: Sequence[Batch]) -> list[StateValues]:
    """Values of actions and of ends, without gradient; `batches` are of one `pack`."""
    with torch.no_grad():
        own = [head_values(head, hidden, batch) for batch, hidden in states_under(model, batches)]
    actions = processes.whole([values.actions for values in own], [batch.action_tokens for batch in batches])
    ends = processes.whole([values.ends for values in own], [len(batch.end_slots) for batch in batches])
    return [StateValues(*both) for both in zip(actions, ends, strict=True)]


def states_under(model: LogprobModel, batches: Sequence[Batch]) -> Iterator[tuple[Batch, Tensor]]:
    """This process's share of `batches` (from one `pack`), with hidden states of all their slots, without gradient."""
    with torch.no_grad():
        prefix = model.shared_prefix(batches[0].prefix_ids)
    for batch, counts in processes.rounds(batches):
        with torch.no_grad():
            hidden = model.states(batch, prefix)
        if counts:
            yield batch, hidden


def width_of(model: Any) -> int:
    """Length of a hidden state."""
    return int(model.config.get_text_config().hidden_size)


class HeadedTrunk:
    """A head on a trunk whose `trained` parameters are its own; `model` is that trunk inside `active()`."""

    def __init__(
        self,
        model: Any,
        trained: dict[str, nn.Parameter],
        active: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.head = ValueHead(model)
        self.optimiser = Optimiser(trained | self.head.named)
        self._model = LogprobModel(model)
        self._active = active

    def values(self, batches: Sequence[Batch]) -> list[StateValues]:
        """Of each of `batches` (from one `pack`), without gradient."""
        with self._active():
            return values_under(self.head, self._model, batches)

    def update(
        self, batches: Sequence[Batch], loss: Callable[[Batch, StateValues], Tensor], rate: float, max_grad_norm: float
    ) -> tuple[float, bool]:
        """One step along the sum of the batches' `loss`: the gradient's norm before clipping, and if it was taken."""

        def states(batch: Batch, prefix: SharedPrefix) -> tuple[Tensor]:
            return (self._model.states(batch, prefix),)

        def of_states(batch: Batch, hidden: Tensor) -> Tensor:
            return loss(batch, head_values(self.head, hidden, batch))

        self.optimiser.clear()
        with self._active():
            accumulate(self._model, batches, states, of_states, self.optimiser.backward)
            [norm], taken = step_together([(self.optimiser, rate)], max_grad_norm)
        return norm, taken

    def rest(self) -> None:
        """Gives up what was made of the weights for passes."""
        self._model.rest()


# ---------------------------------------------------------------- an adapter of its own


@dataclass(frozen=True)
class AdapterBeside:
    """A second adapter on a model, which acts inside `active()` alone."""

    model: Any
    name: str
    own: str
    """Name of the adapter that acts outside."""
    trained: dict[str, nn.Parameter]

    @contextmanager
    def active(self) -> Iterator[None]:
        self.model.set_adapter(self.name)
        try:
            yield
        finally:
            self.model.set_adapter(self.own)

    def remove(self) -> None:
        """Takes the adapter off the model."""
        self.model.delete_adapter(self.name)


def put_adapter_beside(model: Any, name: str, whose: str, saved: Path | None = None) -> AdapterBeside:
    """Puts an adapter called `name` on `model`: the one in the PEFT folder `saved`, else a copy of the one that acts.

    `whose` says in messages what it is for. Raises ModelError where the model has no adapter, for then its trunk is
    trained too and would have to be held twice; and where `saved` is not of this model.
    """
    if not hasattr(model, "peft_config"):
        raise ModelError(f"{whose} on an adapter of its own needs a policy with one, and here all weights are trained")
    [own] = model.active_adapters
    acting = {n: p for n, p in model.named_parameters() if f".{own}." in n}
    with own_random_streams(model.device):
        if saved is None:
            model.add_adapter(name, copy.deepcopy(model.peft_config[own]))
        else:
            _load(model, name, saved)
    model.eval()
    beside = AdapterBeside(model, name, own, {n: p for n, p in model.named_parameters() if f".{name}." in n})
    if saved is None:
        with torch.no_grad():
            for key, value in acting.items():
                beside.trained[key.replace(f".{own}.", f".{name}.")].copy_(value)
    model.set_adapter(own)
    return beside


def _load(model: Any, name: str, folder: Path) -> None:
    check_adapter(folder)
    try:
        found = model.load_adapter(str(folder), adapter_name=name, is_trainable=False, torch_device=str(model.device))
    except Exception as error:
        # PEFT says what does not fit in exceptions of a dozen kinds.
        raise ModelError(f"{folder}: cannot put this adapter on the model: {in_short(error)}") from error
    if missing := [key for key in found.missing_keys if f".{name}." in key]:
        raise ModelError(
            f"{folder}: expected weights of every layer it names, {len(missing)} are missing: {missing[0]}"
        )
