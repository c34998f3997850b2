"""A critic, which says what states are worth, and the two ways to build one.

`HeadCritic` reads the policy's own hidden states: one pass gives log-probabilities and values, and both losses shape
the trunk. `OwnCritic` has a trunk of its own, an adapter beside the policy's on the same frozen base or a second model,
and passes of its own. Both read the value of the state an action token was sampled in at the very slot that predicts
it, so values of tool tokens are never formed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from deedrl.errors import ModelError
from deedrl.policies.local.model import LoadedModel
from deedrl.training import processes
from deedrl.training.backend import LogprobModel, SharedPrefix
from deedrl.training.learner import Learner, Loss
from deedrl.training.optimiser import Optimiser, accumulate, step_together
from deedrl.training.packing import Batch

ADAPTER = "critic"
"""Name of the critic's adapter beside the policy's."""


class ValueHead(nn.Module):
    """Hidden states [..., hidden] to values [...] by one linear layer in float32; 0 everywhere at first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 1, dtype=torch.float32)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        values: Tensor = self.linear(hidden.float())
        return values[..., 0]

    @property
    def named(self) -> dict[str, nn.Parameter]:
        """Its parameters by the names they are saved under."""
        return {f"value_head.{name}": parameter for name, parameter in self.linear.named_parameters()}


@dataclass(frozen=True)
class StateValues:
    """What a critic says of one micro-batch."""

    actions: Tensor
    """[N]: of the states its action tokens were sampled in."""
    ends: Tensor
    """[E]: of the states after the last token of samples that a limit cut."""


@dataclass(frozen=True)
class Rates:
    """Of one update: learning rates, and what the gradient norms of policy and critic are each clipped to."""

    policy: float
    critic: float
    max_grad_norm: float


@dataclass(frozen=True)
class StepStats:
    """What one update did: gradient norms before clipping, and whether it was left out as one was not finite."""

    policy_norm: float
    critic_norm: float
    skipped: bool


class Critic(Protocol):
    """A critic and the policy it belongs to."""

    @property
    def policy(self) -> Learner: ...

    @property
    def optimiser(self) -> Optimiser:
        """Of what the critic alone has."""

    def values(self, batches: Sequence[Batch]) -> list[StateValues]:
        """Of each of `batches` (from one `pack`), without gradient."""

    def update(self, batches: Sequence[Batch], policy_loss: Loss, value_loss: Loss, rates: Rates) -> StepStats:
        """One step of policy and critic; losses take a batch and its log-probabilities or values [N]."""

    def update_alone(self, batches: Sequence[Batch], value_loss: Loss, rates: Rates) -> StepStats:
        """One step that leaves the policy as it is."""


class HeadCritic:
    """A value head on the hidden states of the policy.

    `coefficient` weighs the value loss against the policy's in what they share, the trunk; the head itself is scaled
    by AdamW and does not depend on it.
    """

    def __init__(self, policy: Learner, *, coefficient: float) -> None:
        self.policy = policy
        self.head = ValueHead(_width(policy.loaded))
        self.optimiser = Optimiser(self.head.named)
        self._coefficient = coefficient

    def values(self, batches: Sequence[Batch]) -> list[StateValues]:
        return values_under(self.head, self.policy.module, batches)

    def update(self, batches: Sequence[Batch], policy_loss: Loss, value_loss: Loss, rates: Rates) -> StepStats:
        model = self.policy.module

        def both(batch: Batch, prefix: SharedPrefix) -> Tensor:
            hidden = model.states(batch, prefix)[batch.slots]
            logprobs, _ = model.logprobs(hidden, batch)
            values = self.head(hidden)[batch.predictions]
            return policy_loss(batch, logprobs) + self._coefficient * value_loss(batch, values)

        self.policy.optimiser.clear()
        self.optimiser.clear()
        accumulate(model, batches, both, self.optimiser.backward)
        each = [(self.policy.optimiser, rates.policy), (self.optimiser, rates.critic)]
        [policy_norm, critic_norm], taken = step_together(each, rates.max_grad_norm)
        return StepStats(policy_norm, critic_norm, skipped=not taken)

    def update_alone(self, batches: Sequence[Batch], value_loss: Loss, rates: Rates) -> StepStats:
        """The trunk takes no part, so nothing of its pass is kept."""
        self.optimiser.clear()
        for batch, hidden in _states(self.policy.module, batches):
            self.optimiser.backward(value_loss(batch, self.head(hidden[batch.slots])[batch.predictions]))
        [norm], taken = step_together([(self.optimiser, rates.critic)], rates.max_grad_norm)
        return StepStats(0.0, norm, skipped=not taken)


class OwnCritic:
    """A value head on a trunk of its own: `trained` parameters of `model`, which is the critic inside `active()`.

    Its passes follow the policy's, so that activations of only one exist at a time.
    """

    def __init__(
        self,
        policy: Learner,
        model: Any,
        trained: dict[str, nn.Parameter],
        active: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.policy = policy
        self.head = ValueHead(_width(policy.loaded))
        self._model = LogprobModel(model)
        self._active = active
        self.optimiser = Optimiser(trained | self.head.named)

    def values(self, batches: Sequence[Batch]) -> list[StateValues]:
        with self._active():
            return values_under(self.head, self._model, batches)

    def update(self, batches: Sequence[Batch], policy_loss: Loss, value_loss: Loss, rates: Rates) -> StepStats:
        learnt = self.policy.update(batches, policy_loss, learning_rate=rates.policy, max_grad_norm=rates.max_grad_norm)
        alone = self.update_alone(batches, value_loss, rates)
        return StepStats(learnt.grad_norm, alone.critic_norm, skipped=learnt.skipped or alone.skipped)

    def update_alone(self, batches: Sequence[Batch], value_loss: Loss, rates: Rates) -> StepStats:
        def share(batch: Batch, prefix: SharedPrefix) -> Tensor:
            hidden = self._model.states(batch, prefix)[batch.slots]
            return value_loss(batch, self.head(hidden)[batch.predictions])

        self.optimiser.clear()
        with self._active():
            accumulate(self._model, batches, share, self.optimiser.backward)
            [norm], taken = step_together([(self.optimiser, rates.critic)], rates.max_grad_norm)
        return StepStats(0.0, norm, skipped=not taken)


@contextmanager
def adapter_critic(policy: Learner) -> Iterator[OwnCritic]:
    """Inside the block the policy's model holds a second adapter for the critic, at first a copy of the policy's.

    Raises ModelError where the policy has no adapter: then its trunk is trained too, and would have to be held twice.
    """
    model = policy.loaded.model
    if not hasattr(model, "peft_config"):
        raise ModelError(
            "a critic on an adapter of its own needs a policy with one, and here all weights are trained; take a value "
            "head on the policy's trunk (critic: value_head), or train an adapter"
        )
    [own] = model.active_adapters
    with torch.random.fork_rng():
        model.add_adapter(ADAPTER, copy.deepcopy(model.peft_config[own]))
    model.eval()
    parameters = dict(model.named_parameters())
    trained = {name.replace(f".{own}.", f".{ADAPTER}."): value for name, value in policy.parameters.items()}
    with torch.no_grad():
        for name, value in trained.items():
            parameters[name].copy_(value)

    @contextmanager
    def active() -> Iterator[None]:
        model.set_adapter(ADAPTER)
        try:
            yield
        finally:
            model.set_adapter(own)

    try:
        yield OwnCritic(policy, model, {name: parameters[name] for name in trained}, active)
    finally:
        model.delete_adapter(ADAPTER)


def model_critic(policy: Learner, loaded: LoadedModel) -> OwnCritic:
    """A critic on a second model, whose trainable parameters are the critic's."""
    return OwnCritic(policy, loaded.model, {n: p for n, p in loaded.model.named_parameters() if p.requires_grad})


class ActorCritic:
    """A policy and its critic as one thing to train, to save and to restore."""

    def __init__(self, critic: Critic) -> None:
        self.critic = critic
        self.policy = critic.policy

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The policy's, by name."""
        return self.policy.parameters

    def snapshot(self) -> list[Tensor]:
        """A copy of the policy's parameters, in the order of `parameters`."""
        return self.policy.snapshot()

    def tensors(self) -> dict[str, Tensor]:
        """Parameters and moments of both by name, for a safetensors file."""
        own = self.critic.optimiser.tensors()
        return self.policy.tensors() | {f"critic.{name}": value for name, value in own.items()}

    def load_tensors(self, state: dict[str, Tensor]) -> None:
        """Restores what `tensors` returned, bit for bit; a missing parameter is a KeyError naming it."""
        self.policy.load_tensors(state)
        own = {name.removeprefix("critic."): value for name, value in state.items() if name.startswith("critic.")}
        self.critic.optimiser.load_tensors(own)


def values_under(head: ValueHead, model: LogprobModel, batches: Sequence[Batch]) -> list[StateValues]:
    """Values of actions and of ends, without gradient."""
    own = []
    with torch.no_grad():
        for batch, hidden in _states(model, batches):
            own.append(StateValues(head(hidden[batch.slots])[batch.predictions], head(hidden[batch.end_slots])))
    actions = processes.whole([values.actions for values in own], [batch.action_tokens for batch in batches])
    ends = processes.whole([values.ends for values in own], [len(batch.end_slots) for batch in batches])
    return [StateValues(*both) for both in zip(actions, ends, strict=True)]


def _states(model: LogprobModel, batches: Sequence[Batch]) -> Iterator[tuple[Batch, Tensor]]:
    """This process's share of `batches` (from one `pack`), with hidden states of all their slots, without gradient."""
    with torch.no_grad():
        prefix = model.shared_prefix(batches[0].prefix_ids)
    for batch in processes.share(batches):
        with torch.no_grad():
            hidden = model.states(batch, prefix)
        yield batch, hidden


def _width(loaded: LoadedModel) -> int:
    return int(loaded.model.config.get_text_config().hidden_size)
