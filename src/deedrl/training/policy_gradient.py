"""One policy-gradient update (GRPO and its relatives) from selected samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from deedrl.training.backend import frozen_at
from deedrl.training.learner import Learner
from deedrl.training.losses import Normalisation, PolicyLoss, policy_loss, sample_weights
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
    updates_per_batch: int = 1


def update_policy(
    learner: Learner, samples: Sequence[TrainingSample], settings: PolicyUpdate, reference: Sequence[Tensor] | None
) -> dict[str, float]:
    """Updates the policy `updates_per_batch` times on `samples` and returns figures (means over action tokens).

    `reference` is a `Learner.snapshot` of the policy that KL is measured to; None leaves KL out of loss and log.
    """
    if not any(sample.action_tokens for sample in samples):
        return {"empty_batch": 1.0}
    weights = sample_weights(samples, settings.normalisation, settings.normalisation_tokens)
    batches = pack(weighted(samples, weights), micro_batch_tokens=settings.micro_batch_tokens)
    references = _reference_logprobs(learner, batches, reference)
    parts: list[PolicyLoss] = []

    def loss(batch: Batch, logprobs: Tensor) -> Tensor:
        part = policy_loss(
            logprobs,
            batch.logprobs,
            batch.advantages,
            batch.weights[batch.sample_of],
            clip_low=settings.clip_low,
            clip_high=settings.clip_high,
            reference=references.get(id(batch)),
            kl_coefficient=settings.kl_coefficient,
        )
        parts.append(part)
        return part.loss

    for _ in range(settings.updates_per_batch):
        stats = learner.update(
            batches, loss, learning_rate=settings.learning_rate, max_grad_norm=settings.max_grad_norm
        )
    tokens = sum(batch.action_tokens for batch in batches)
    means = {name: _mean(parts, name, tokens * settings.updates_per_batch) for name in ("clipped", "clamped", "kl")}
    return {
        "loss": stats.loss,
        "grad_norm": stats.grad_norm,
        "skipped_update": float(stats.skipped),
        "empty_batch": float(stats.empty),
        "clip_fraction": means["clipped"],
        "clamped_fraction": means["clamped"],
        # The gap between sampler and trainer is that of the first pass; later passes differ on purpose.
        "logprob_gap": _mean(parts[: len(batches)], "logprob_gap", tokens),
        "action_tokens": float(tokens),
    } | ({"kl": means["kl"]} if reference is not None else {})


def _mean(parts: Sequence[PolicyLoss], name: str, tokens: int) -> float:
    return sum(float(getattr(part, name)) for part in parts) / tokens


def _reference_logprobs(
    learner: Learner, batches: Sequence[Batch], reference: Sequence[Tensor] | None
) -> dict[int, Tensor]:
    if reference is None:
        return {}
    parameters = list(learner.parameters.values())
    with frozen_at(parameters, list(reference)):
        return {id(batch): logprobs for batch, logprobs in zip(batches, learner.logprobs(batches), strict=True)}
