"""The DPO update of one step, and implicit rewards of pairs that are only measured.

A loss over pairs is no sum over tokens, so micro-batches cannot each compute a share of it. But its gradient is a sum:
the loss depends on the weights through the summed log-probability s_e of each episode alone, so its gradient is the sum
over episodes of (d loss / d s_e) (d s_e / d weights). A first pass without gradient gives all s_e, differentiating the
loss by these few numbers gives the slopes, and then each micro-batch adds the gradient of slope times log-probability
over its tokens. That is the gradient of one large batch however the episodes are packed (docs/decisions/0025).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import msgspec
import torch
from torch import Tensor

from deedrl.training.dpo_losses import LOSSES, PairLogprobs, Variant, chosen_nll, mean_log_ratios
from deedrl.training.learner import Learner
from deedrl.training.objectives import k3
from deedrl.training.packing import Batch, pack
from deedrl.training.preferences import PreferencePair
from deedrl.training.samples import TrainingSample

RECORDED_TOGETHER = 64
"""Episodes packed together where they are only read: looking for what they share takes time quadratic in them."""

Episodes = Mapping[str, Sequence[TrainingSample]]
"""All samples of each episode, by its id; their `logprobs` are those of the reference policy."""


@dataclass(frozen=True)
class DpoUpdate:
    """Settings of an update; the recipe's dpo stage has the same names."""

    learning_rate: float
    max_grad_norm: float
    micro_batch_tokens: int
    loss: Variant
    beta: float
    label_smoothing: float
    sft_coefficient: float


def update_preferences(
    learner: Learner, pairs: Sequence[PreferencePair], episodes: Episodes, settings: DpoUpdate
) -> dict[str, float]:
    """One step on `pairs`; the loss is the mean over them. Returns figures, all as they were before the step.

    The model's dropout stays off: policy and reference would differ by it at the start already.
    """
    packed = _PackedPairs(pairs, episodes, settings.micro_batch_tokens)
    logprobs = learner.logprobs(packed.batches)
    sums = packed.sums(logprobs).requires_grad_()
    compared = packed.compared(sums)
    loss = preference_objective(compared, settings)
    [slopes] = torch.autograd.grad(loss, sums)
    slope_of = {id(b): slopes[owner].float() for b, owner in zip(packed.batches, packed.owners, strict=True)}
    stats = learner.update(
        packed.batches,
        lambda batch, found: (slope_of[id(batch)] * found).sum(),
        learning_rate=settings.learning_rate,
        max_grad_norm=settings.max_grad_norm,
    )
    return preference_figures(compared, settings) | {
        "loss": float(loss.detach()),
        "kl": _divergence(packed.batches, logprobs),
        "grad_norm": stats.grad_norm,
        "skipped_update": float(stats.skipped),
        "action_tokens": float(packed.tokens.sum()),
    }


def preference_objective(pairs: PairLogprobs, settings: DpoUpdate) -> Tensor:
    """The mean over pairs of the variant's loss, plus `sft_coefficient` times the mean of `chosen_nll`."""
    loss = LOSSES[settings.loss](pairs, settings.beta, settings.label_smoothing).mean()
    if settings.sft_coefficient:
        loss = loss + settings.sft_coefficient * chosen_nll(pairs).mean()
    return loss


def preference_figures(pairs: PairLogprobs, settings: DpoUpdate) -> dict[str, float]:
    """Means over pairs: implicit rewards, how often the chosen one is the larger, and where log-probabilities went."""
    chosen, rejected = LOSSES[settings.loss].rewards(pairs, settings.beta)
    chosen_change, rejected_change = mean_log_ratios(pairs)
    return {
        "reward_accuracy": float((chosen > rejected).double().mean()),
        "reward_margin": float((chosen - rejected).mean()),
        "chosen_reward": float(chosen.mean()),
        "rejected_reward": float(rejected.mean()),
        "chosen_logprob": float(pairs.chosen.detach().mean()),
        "rejected_logprob": float(pairs.rejected.detach().mean()),
        "chosen_change": float(chosen_change.detach().mean()),
        "rejected_change": float(rejected_change.detach().mean()),
    }


def measure_preferences(
    learner: Learner, pairs: Sequence[PreferencePair], episodes: Episodes, settings: DpoUpdate
) -> dict[str, float]:
    """Figures of `pairs` that are not learnt from, and their loss; none without pairs."""
    if not pairs:
        return {}
    parts: list[PairLogprobs] = []
    for start in range(0, len(pairs), RECORDED_TOGETHER // 2):
        packed = _PackedPairs(pairs[start : start + RECORDED_TOGETHER // 2], episodes, settings.micro_batch_tokens)
        parts.append(packed.compared(packed.sums(learner.logprobs(packed.batches))))
    whole = PairLogprobs(*map(torch.cat, zip(*parts, strict=True)))
    return preference_figures(whole, settings) | {"loss": float(preference_objective(whole, settings))}


# ---------------------------------------------------------------- the reference


def recorded(learner: Learner, episodes: Episodes, micro_batch_tokens: int) -> dict[str, tuple[TrainingSample, ...]]:
    """The episodes with the log-probabilities of the current weights, dropout off, in place of the sampler's.

    Taken before a stage's first update these are the reference's, constants from then on: every later step finds them
    in the samples, and no copy of the reference policy is kept.
    """
    values: list[float] = []
    names = iter(episodes)
    while together := list(islice(names, RECORDED_TOGETHER)):
        samples = [sample for name in together for sample in episodes[name]]
        by_sample: list[list[float]] = [[] for _ in samples]
        batches = pack(samples, micro_batch_tokens=micro_batch_tokens)
        for batch, found in zip(batches, learner.logprobs(batches), strict=True):
            for place, value in zip(batch.given_as[batch.sample_of].tolist(), found.tolist(), strict=True):
                by_sample[place].append(value)
        values += [value for known in by_sample for value in known]
    return with_logprobs(episodes, torch.tensor(values))


def recorded_logprobs(episodes: Episodes) -> Tensor:
    """The log-probabilities of all action tokens in order, float32: what `with_logprobs` takes."""
    return torch.tensor(
        [
            value
            for samples in episodes.values()
            for sample in samples
            for value, action in zip(sample.logprobs, sample.action_mask, strict=True)
            if action
        ],
        dtype=torch.float32,
    )


def with_logprobs(episodes: Episodes, logprobs: Tensor) -> dict[str, tuple[TrainingSample, ...]]:
    """The episodes with `logprobs` [all action tokens, in order] in place of their own."""
    values = iter(logprobs.tolist())

    def replaced(sample: TrainingSample) -> TrainingSample:
        own = tuple(next(values) if action else 0.0 for action in sample.action_mask)
        return msgspec.structs.replace(sample, logprobs=own)

    return {name: tuple(replaced(sample) for sample in samples) for name, samples in episodes.items()}


# ---------------------------------------------------------------- pairs in micro-batches


class _PackedPairs:
    """The distinct episodes of some pairs in the micro-batches of one `pack`, and which action token is whose.

    An episode of several pairs is computed once. `owners` [N] of each batch and the pairs' sides are places in the list
    of E episodes; `tokens` [E] are their action tokens.
    """

    def __init__(self, pairs: Sequence[PreferencePair], episodes: Episodes, micro_batch_tokens: int) -> None:
        names = dict.fromkeys(name for pair in pairs for name in (pair.chosen, pair.rejected))
        place = {name: index for index, name in enumerate(names)}
        samples = [sample for name in names for sample in episodes[name]]
        episode = torch.tensor([place[name] for name in names for _ in episodes[name]])
        self.batches = pack(samples, micro_batch_tokens=micro_batch_tokens)
        self.owners = [episode[batch.given_as[batch.sample_of]] for batch in self.batches]
        self.tokens = torch.tensor([sum(s.action_tokens for s in episodes[name]) for name in names])
        self._reference = self.sums([batch.logprobs for batch in self.batches])
        self._chosen = torch.tensor([place[pair.chosen] for pair in pairs])
        self._rejected = torch.tensor([place[pair.rejected] for pair in pairs])

    def sums(self, logprobs: Sequence[Tensor]) -> Tensor:
        """Of each batch's log-probabilities [N] the sums by episode [E], in float64: hundreds of tokens add up."""
        total = torch.zeros(len(self.tokens), dtype=torch.float64)
        for owner, values in zip(self.owners, logprobs, strict=True):
            total.index_add_(0, owner, values.double())
        return total

    def compared(self, sums: Tensor) -> PairLogprobs:
        """The pairs under a policy whose log-probabilities sum up to `sums` [E]; differentiable in these."""
        return PairLogprobs(
            chosen=sums[self._chosen],
            rejected=sums[self._rejected],
            reference_chosen=self._reference[self._chosen],
            reference_rejected=self._reference[self._rejected],
            chosen_tokens=self.tokens[self._chosen],
            rejected_tokens=self.tokens[self._rejected],
        )


def _divergence(batches: Sequence[Batch], logprobs: Sequence[Tensor]) -> float:
    """The k3 estimate of KL(reference || policy), mean per action token of the episodes at hand.

    This way round, for these are samples of the reference or of policies like it, and none of the policy.
    """
    total = sum(float(k3(batch.logprobs, found).sum()) for batch, found in zip(batches, logprobs, strict=True))
    return total / sum(batch.action_tokens for batch in batches)
