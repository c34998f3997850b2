"""A critic, which says what states are worth, and the two ways to build one.

`HeadCritic` reads the policy's own hidden states: one pass gives log-probabilities and values, and both losses shape
the trunk. `OwnCritic` has a trunk of its own, an adapter beside the policy's on the same frozen base or a second model,
and passes of its own. Both read the value of the state an action token was sampled in at the very slot that predicts
it, so values of tool tokens are never formed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from deedrl.errors import ModelError
from deedrl.policies.local.model import LoadedModel
from deedrl.training.backend import SharedPrefix
from deedrl.training.headed import (
    HeadedTrunk,
    StateValues,
    ValueHead,
    put_adapter_beside,
    states_under,
    values_under,
)
from deedrl.training.learner import Learner, Loss
from deedrl.training.optimiser import Optimiser, accumulate, step_together
from deedrl.training.packing import Batch

ADAPTER = "critic"
"""Name of the critic's adapter beside the policy's."""


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
        self.head = ValueHead(policy.loaded.model)
        self.optimiser = Optimiser(self.head.named)
        self._coefficient = coefficient

    def values(self, batches: Sequence[Batch]) -> list[StateValues]:
        return values_under(self.head, self.policy.module, batches)

    def update(self, batches: Sequence[Batch], policy_loss: Loss, value_loss: Loss, rates: Rates) -> StepStats:
        model = self.policy.module

        def both(batch: Batch, prefix: SharedPrefix) -> tuple[Tensor, Tensor]:
            hidden = model.states(batch, prefix)[batch.slots]
            return model.logprobs(hidden, batch)[0], self.head(hidden)[batch.predictions]

        def loss(batch: Batch, logprobs: Tensor, values: Tensor) -> Tensor:
            return policy_loss(batch, logprobs) + self._coefficient * value_loss(batch, values)

        self.policy.optimiser.clear()
        self.optimiser.clear()
        accumulate(model, batches, both, loss, self.optimiser.backward)
        each = [(self.policy.optimiser, rates.policy), (self.optimiser, rates.critic)]
        [policy_norm, critic_norm], taken = step_together(each, rates.max_grad_norm)
        return StepStats(policy_norm, critic_norm, skipped=not taken)

    def update_alone(self, batches: Sequence[Batch], value_loss: Loss, rates: Rates) -> StepStats:
        """The trunk takes no part, so nothing of its pass is kept."""
        self.optimiser.clear()
        for batch, hidden in states_under(self.policy.module, batches):
            self.optimiser.backward(value_loss(batch, self.head(hidden[batch.slots])[batch.predictions]))
        [norm], taken = step_together([(self.optimiser, rates.critic)], rates.max_grad_norm)
        return StepStats(0.0, norm, skipped=not taken)


class OwnCritic:
    """A value head on a trunk of its own.

    Its passes follow the policy's, so that activations of only one exist at a time.
    """

    def __init__(self, policy: Learner, trunk: HeadedTrunk) -> None:
        self.policy = policy
        self.head = trunk.head
        self.optimiser = trunk.optimiser
        self._trunk = trunk

    def values(self, batches: Sequence[Batch]) -> list[StateValues]:
        values = self._trunk.values(batches)
        self._trunk.rest()  # or its merged weights would exist beside those of the policy's passes
        return values

    def update(self, batches: Sequence[Batch], policy_loss: Loss, value_loss: Loss, rates: Rates) -> StepStats:
        learnt = self.policy.update(batches, policy_loss, learning_rate=rates.policy, max_grad_norm=rates.max_grad_norm)
        alone = self.update_alone(batches, value_loss, rates)
        return StepStats(learnt.grad_norm, alone.critic_norm, skipped=learnt.skipped or alone.skipped)

    def update_alone(self, batches: Sequence[Batch], value_loss: Loss, rates: Rates) -> StepStats:
        norm, taken = self._trunk.update(
            batches, lambda batch, values: value_loss(batch, values.actions), rates.critic, rates.max_grad_norm
        )
        return StepStats(0.0, norm, skipped=not taken)


@contextmanager
def adapter_critic(policy: Learner) -> Iterator[OwnCritic]:
    """Inside the block the policy's model holds a second adapter for the critic, at first a copy of the policy's.

    Raises ModelError where the policy has no adapter.
    """
    try:
        beside = put_adapter_beside(policy.loaded.model, ADAPTER, "a critic")
    except ModelError as error:
        remedy = "take a value head on the policy's trunk (critic: value_head), or train an adapter"
        raise ModelError(f"{error}; {remedy}") from None
    try:
        yield OwnCritic(policy, HeadedTrunk(beside.model, beside.trained, beside.active))
    finally:
        beside.remove()


def model_critic(policy: Learner, loaded: LoadedModel) -> OwnCritic:
    """A critic on a second model, whose trainable parameters are the critic's."""
    trained = {name: value for name, value in loaded.model.named_parameters() if value.requires_grad}
    return OwnCritic(policy, HeadedTrunk(loaded.model, trained))


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

    def restore(self, snapshot: Sequence[Tensor]) -> None:
        """Puts the values of a `snapshot` back."""
        self.policy.restore(snapshot)

    def tensors(self) -> dict[str, Tensor]:
        """Parameters and moments of both by name, for a safetensors file."""
        own = self.critic.optimiser.tensors()
        return self.policy.tensors() | {f"critic.{name}": value for name, value in own.items()}

    def load_tensors(self, state: dict[str, Tensor]) -> None:
        """Restores what `tensors` returned, bit for bit; a missing parameter is a KeyError naming it."""
        self.policy.load_tensors(state)
        own = {name.removeprefix("critic."): value for name, value in state.items() if name.startswith("critic.")}
        self.critic.optimiser.load_tensors(own)
