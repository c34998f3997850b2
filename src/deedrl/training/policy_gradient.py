"""The policy-gradient updates of one step (GRPO and its relatives) from selected samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean

import torch
from torch import Tensor

from deedrl.training.backend import frozen_at
from deedrl.training.learner import Learner
from deedrl.training.losses import NONE_SILENT, Normalisation, PolicyLoss, Silent, policy_loss, sample_weights
from deedrl.training.objectives import DIVERGENCES, OBJECTIVES, DivergenceName, ObjectiveName, sampler_weights
from deedrl.training.packing import Batch, pack
from deedrl.training.samples import TrainingSample
from deedrl.training.weighting import weighted


@dataclass(frozen=True)
class PolicyUpdate:
    """Settings of `update_policy`; the recipe's grpo stage has the same names."""

    learning_rate: float
    max_grad_norm: float
    micro_batch_tokens: int
    clip_low: float
    clip_high: float
    kl_coefficient: float
    normalisation: Normalisation
    normalisation_tokens: int
    mini_batches: int = 1
    updates_per_batch: int = 1
    objective: ObjectiveName = "clipped"
    kl_estimator: DivergenceName = "k3"
    sampler_cap: float | None = None
    """Corrects for a sampler that is not the trainer's policy, with weights up to this; None does not."""
    sampler_band: tuple[float, float] | None = None
    """Tokens whose weight lies outside are left out; None leaves out none."""


def update_policy(
    learner: Learner,
    samples: Sequence[TrainingSample],
    settings: PolicyUpdate,
    reference: Sequence[Tensor] | None,
    silent: Silent = NONE_SILENT,
    at_reference: bool = False,
) -> dict[str, float]:
    """Updates the policy once on each of `mini_batches` pieces of `samples`, and passes over them `updates_per_batch`
    times; returns figures (means over action tokens, loss and gradient norm over updates).

    `reference` is a `Learner.snapshot` of the policy that KL is measured to; None leaves KL out of loss and log. Where
    it is the policy that sampled (`at_reference`), its log-probabilities are those of the samples: a pass is saved.
    `silent` are the episodes of the step that are not among the samples because they have no signal.
    """
    if not any(sample.action_tokens for sample in samples):
        return {"empty_batch": 1.0}
    cut = mini_batches(samples, settings.mini_batches)
    pieces = [packed(piece, settings, silent * (1 / len(cut))) for piece in cut]
    references = reference_logprobs(learner, pieces, reference, at_reference=at_reference)
    objective = PolicyObjective(
        settings, references, None if settings.sampler_cap is None else logprobs_before(learner, pieces)
    )
    updates = [
        learner.update(batches, objective, learning_rate=settings.learning_rate, max_grad_norm=settings.max_grad_norm)
        for _ in range(settings.updates_per_batch)
        for batches in pieces
    ]
    return {
        "loss": fmean(update.loss for update in updates),
        "grad_norm": fmean(update.grad_norm for update in updates),
        "skipped_update": float(sum(update.skipped for update in updates)),
        "empty_batch": 0.0,
        "action_tokens": float(sum(batch.action_tokens for batches in pieces for batch in batches)),
    } | objective.figures(first_batches=len(pieces[0]))


class PolicyObjective:
    """The loss of one step's batches, and means over the action tokens of all passes for the log.

    `references` are the reference policy's log-probabilities by a batch's `id`; empty without one. `before` are those
    of the policy before the first update, where the sampler's are not to be taken for them; what is missing there is
    noted when it is computed first.
    """

    def __init__(
        self, settings: PolicyUpdate, references: Mapping[int, Tensor], before: dict[int, Tensor] | None = None
    ) -> None:
        self._settings = settings
        self._references = references
        self._before = before
        self._parts: list[PolicyLoss] = []
        self._tokens: list[int] = []
        self._corrections: list[Tensor] = []

    def __call__(self, batch: Batch, logprobs: Tensor) -> Tensor:
        settings, correction = self._settings, None
        start = None if self._before is None else self._before.setdefault(id(batch), logprobs.detach())
        if start is not None and settings.sampler_cap is not None:
            correction = sampler_weights(start, batch.logprobs, cap=settings.sampler_cap, band=settings.sampler_band)
            self._corrections.append(correction)
        part = policy_loss(
            logprobs,
            batch.logprobs,
            batch.advantages,
            batch.weights[batch.sample_of],
            clip_low=settings.clip_low,
            clip_high=settings.clip_high,
            reference=self._references.get(id(batch)),
            kl_coefficient=settings.kl_coefficient,
            objective=OBJECTIVES[settings.objective],
            divergence=DIVERGENCES[settings.kl_estimator],
            sample_of=batch.sample_of,
            before=start,
            correction=correction,
        )
        self._parts.append(replace(part, loss=part.loss.detach()))  # the graph must not outlive its micro-batch
        self._tokens.append(batch.action_tokens)
        return part.loss

    @property
    def total(self) -> float:
        """Sum of all losses; a pass over the step's batches adds as many as it has updates."""
        return sum(float(part.loss) for part in self._parts)

    def figures(self, first_batches: int) -> dict[str, float]:
        """What was seen so far; `first_batches` is the number of micro-batches of the first update."""
        figures = {
            "clip_fraction": self._mean("clipped"),
            "clamped_fraction": self._mean("clamped"),
            "approx_kl": self._mean("approx_kl"),
            "ratio_outside": self._mean("ratio_outside"),
            "ratio_max": max(float(part.ratio_max) for part in self._parts),
            # The gap between sampler and trainer is that before the first update; later the two differ on purpose.
            "logprob_gap": self._mean("logprob_gap", first_batches),
        }
        if self._references:
            figures["kl"] = self._mean("kl")
        if self._corrections:
            weights = torch.cat(self._corrections)
            figures["sampler_weight"] = float(weights.mean())
            figures["sampler_masked_fraction"] = float((weights == 0).float().mean())
        return figures

    def _mean(self, name: str, batches: int | None = None) -> float:
        return sum(float(getattr(part, name)) for part in self._parts[:batches]) / sum(self._tokens[:batches])


def logprobs_before(learner: Learner, pieces: Sequence[Sequence[Batch]]) -> dict[int, Tensor]:
    """Log-probabilities [N] as they are now by each batch's `id`, but for the first piece: its update computes them."""
    return {
        id(batch): logprobs
        for batches in pieces[1:]
        for batch, logprobs in zip(batches, learner.logprobs(batches), strict=True)
    }


def mini_batches(samples: Sequence[TrainingSample], count: int) -> list[list[TrainingSample]]:
    """`samples` with action tokens in at most `count` pieces of about as many episodes each, in their order.

    Samples of an episode stay together. Those of a group follow each other, so that most groups stay whole; with the
    families of tasks taking turns, so do the pieces' groups.
    """
    episodes: dict[str, list[TrainingSample]] = {}
    for sample in samples:
        if sample.action_tokens:
            episodes.setdefault(sample.episode_id, []).append(sample)
    each = list(episodes.values())
    ends = [round(len(each) * part / count) for part in range(count + 1)]
    pieces = [[sample for episode in each[a:b] for sample in episode] for a, b in pairwise(ends)]
    return [piece for piece in pieces if piece]


def packed(samples: Sequence[TrainingSample], settings: PolicyUpdate, silent: Silent = NONE_SILENT) -> list[Batch]:
    """Micro-batches of one update on `samples`, weighted as the settings say."""
    weights = sample_weights(samples, settings.normalisation, settings.normalisation_tokens, silent)
    return pack(weighted(samples, weights), micro_batch_tokens=settings.micro_batch_tokens)


def reference_logprobs(
    learner: Learner,
    pieces: Sequence[Sequence[Batch]],
    reference: Sequence[Tensor] | None,
    *,
    at_reference: bool = False,
) -> dict[int, Tensor]:
    """Log-probabilities [N] under the snapshot `reference` by each batch's `id`; none without a reference.

    `at_reference`: the samples are the reference's own, and so are their log-probabilities.
    """
    if reference is None:
        return {}
    if at_reference:
        return {id(batch): batch.logprobs for batches in pieces for batch in batches}
    parameters = list(learner.parameters.values())
    with frozen_at(parameters, list(reference)):
        return {
            id(batch): logprobs
            for batches in pieces
            for batch, logprobs in zip(batches, learner.logprobs(batches), strict=True)
        }
