"""The PPO updates of one step: values recorded once, advantages over action tokens, then several passes.

Schulman et al. 2017 (arXiv 1707.06347) with GAE. Departures: the KL divergence to a reference is a term of the loss, as
in GRPO, not part of the reward; the critic's loss is clipped at its recorded values; policy and critic are clipped to a
gradient norm each of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import fmean

import msgspec
from torch import Tensor

from deedrl.training import processes
from deedrl.training.critic import ActorCritic, Rates, StepStats
from deedrl.training.episodes import RewardedEpisode, credited
from deedrl.training.gae import explained_variance, gae, moments, whitened
from deedrl.training.losses import ValueLoss, value_loss
from deedrl.training.packing import Batch, pack
from deedrl.training.policy_gradient import PolicyObjective, PolicyUpdate, mini_batches, packed, reference_logprobs
from deedrl.training.samples import TrainingSample

Pieces = list[list[Batch]]
"""The micro-batches of each mini-batch."""


@dataclass(frozen=True)
class PpoUpdate:
    """Settings of an update; the recipe's ppo stage has the same names."""

    policy: PolicyUpdate
    critic_learning_rate: float
    gamma: float
    gae_lambda: float
    value_clip: float | None
    whiten_advantages: bool

    @property
    def rates(self) -> Rates:
        return Rates(self.policy.learning_rate, self.critic_learning_rate, self.policy.max_grad_norm)


def update_actor_critic(
    learner: ActorCritic,
    episodes: Sequence[RewardedEpisode],
    settings: PpoUpdate,
    reference: Sequence[Tensor] | None,
    order: Random,
    *,
    at_reference: bool = False,
) -> dict[str, float]:
    """Updates policy and critic once on each of `mini_batches` pieces of the episodes, `updates_per_batch` times over.

    Tasks are dealt to pieces and pieces take turns in an order drawn from `order`; siblings stay together, so that what
    they share is computed once. `reference` is a snapshot of the policy that KL is measured to (None: no KL), and
    `at_reference` says that it is the policy that sampled. Returns figures: means over action tokens of all passes,
    losses and gradient norms over updates.
    """
    if not episodes:
        return {"empty_batch": 1.0}
    samples, figures = credited_samples(learner, episodes, settings)
    pieces = _cut(episodes, samples, settings, order)
    references = reference_logprobs(learner.policy, pieces, reference, at_reference=at_reference)
    objective, values = PolicyObjective(settings.policy, references), _ValueObjective(settings.value_clip)
    played = list(_passes(pieces, settings, order))
    updates = [learner.critic.update(batches, objective, values, settings.rates) for batches in played]
    return (
        figures
        | values.figures(len(updates))
        | objective.figures(first=played[0])
        | _update_figures(updates, pieces)
        | {"loss": objective.total / len(updates), "grad_norm": fmean(update.policy_norm for update in updates)}
    )


def warm_up_critic(
    learner: ActorCritic, episodes: Sequence[RewardedEpisode], settings: PpoUpdate, order: Random
) -> dict[str, float]:
    """As `update_actor_critic`, but the policy stays as it is: first the critic learns what this policy earns."""
    if not episodes:
        return {"empty_batch": 1.0}
    samples, figures = credited_samples(learner, episodes, settings)
    pieces = _cut(episodes, samples, settings, order)
    values = _ValueObjective(settings.value_clip)
    played = _passes(pieces, settings, order)
    updates = [learner.critic.update_alone(batches, values, settings.rates) for batches in played]
    return figures | values.figures(len(updates)) | _update_figures(updates, pieces)


# ---------------------------------------------------------------- before the passes


def credited_samples(
    learner: ActorCritic, episodes: Sequence[RewardedEpisode], settings: PpoUpdate
) -> tuple[list[list[TrainingSample]], dict[str, float]]:
    """Of each episode the samples with values as they are now, returns and advantages; and figures of them."""
    values, ends = recorded_values(learner, episodes, settings.policy.micro_batch_tokens)
    credits = [
        gae(episode.rewards, known, end_value=end, gamma=settings.gamma, lam=settings.gae_lambda)
        for episode, known, end in zip(episodes, values, ends, strict=True)
    ]
    advantages = [credit.advantages for credit in credits]
    used = whitened(advantages) if settings.whiten_advantages else advantages
    samples = [credited(*each) for each in zip(episodes, values, credits, used, strict=True)]
    flat_values = [value for known in values for value in known]
    flat_returns = [value for credit in credits for value in credit.returns]
    figures = {
        "value_mean": moments(flat_values)[0],
        "return_mean": moments(flat_returns)[0],
        "advantage_std": moments([value for known in advantages for value in known])[1],
    }
    explained = explained_variance(flat_values, flat_returns)
    return samples, figures | ({} if explained is None else {"explained_variance": explained})


def recorded_values(
    learner: ActorCritic, episodes: Sequence[RewardedEpisode], micro_batch_tokens: int
) -> tuple[list[list[float]], list[float | None]]:
    """The critic's values of each episode's action tokens, and of the state after the last one where it was cut."""
    samples = [sample for episode in episodes for sample in episode.samples]
    by_sample: list[list[float]] = [[] for _ in samples]
    end_of: list[float | None] = [None] * len(samples)
    batches = pack(samples, micro_batch_tokens=micro_batch_tokens)
    for batch, found in zip(batches, learner.critic.values(batches), strict=True):
        for place, value in zip(batch.given_as[batch.sample_of].tolist(), found.actions.tolist(), strict=True):
            by_sample[place].append(value)
        for place, value in zip(batch.given_as[batch.end_of].tolist(), found.ends.tolist(), strict=True):
            end_of[place] = value
    values: list[list[float]] = []
    ends: list[float | None] = []
    first = 0
    for episode in episodes:
        after = first + len(episode.samples)
        values.append([value for known in by_sample[first:after] for value in known])
        ends.append(end_of[after - 1])
        first = after
    return values, ends


def _cut(
    episodes: Sequence[RewardedEpisode], samples: Sequence[list[TrainingSample]], settings: PpoUpdate, order: Random
) -> Pieces:
    """Packed mini-batches; tasks are in an order drawn from `order`, the episodes of one following each other."""
    by_task: dict[str, list[TrainingSample]] = {}
    for episode, found in zip(episodes, samples, strict=True):
        by_task.setdefault(episode.task_id, []).extend(found)
    tasks = list(by_task.values())
    order.shuffle(tasks)
    # What followed the last action was of use to the recorded values alone.
    dealt = [msgspec.structs.replace(sample, cut=False) for task in tasks for sample in task]
    return [packed(piece, settings.policy) for piece in mini_batches(dealt, settings.policy.mini_batches)]


def _passes(pieces: Pieces, settings: PpoUpdate, order: Random) -> Iterator[list[Batch]]:
    for _ in range(settings.policy.updates_per_batch):
        yield from order.sample(pieces, len(pieces))


# ---------------------------------------------------------------- the critic's loss, and the log


class _ValueObjective:
    """The critic's loss of one step's batches, and what it saw."""

    def __init__(self, clip: float | None) -> None:
        self._clip = clip
        self._parts: list[ValueLoss] = []
        self._tokens = 0

    def __call__(self, batch: Batch, values: Tensor) -> Tensor:
        weights = batch.weights[batch.sample_of]
        part = value_loss(values, batch.values, batch.returns, weights, clip=self._clip)
        self._parts.append(replace(part, loss=part.loss.detach()))
        self._tokens += batch.action_tokens
        return part.loss

    def figures(self, updates: int) -> dict[str, float]:
        loss, clipped = (sum(float(getattr(part, name)) for part in self._parts) for name in ("loss", "clipped"))
        loss, clipped, tokens = processes.summed([loss, clipped, float(self._tokens)])
        return {"value_loss": loss / updates, "value_clip_fraction": clipped / tokens}


def _update_figures(updates: Sequence[StepStats], pieces: Pieces) -> dict[str, float]:
    return {
        "critic_grad_norm": fmean(update.critic_norm for update in updates),
        "skipped_update": float(sum(update.skipped for update in updates)),
        "empty_batch": 0.0,
        "action_tokens": float(sum(batch.action_tokens for batches in pieces for batch in batches)),
    }
