"""The KL divergence to a reference as a part of rewards: what each turn of sampled episodes is to give up for it."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from deedrl.training.learner import Learner
from deedrl.training.objectives import Divergence
from deedrl.training.packing import pack
from deedrl.training.policy_gradient import reference_logprobs
from deedrl.training.samples import collect_samples
from deedrl.types import Trajectory


def turn_divergences(
    learner: Learner,
    trajectories: Sequence[Trajectory],
    reference: Sequence[Tensor],
    divergence: Divergence,
    *,
    max_tokens: int,
    micro_batch_tokens: int,
) -> dict[str, list[float]]:
    """By episode id the sum of `divergence` over each turn's tokens, as sampled, to the snapshot `reference`.

    Turns without recorded tokens, or in a sample over `max_tokens`, have 0.0. The learner stays as it is.
    """
    found = {t.episode_id: [0.0] * max(len(t.steps), 1) for t in trajectories}
    samples = [sample for of_one in collect_samples(trajectories, max_tokens=max_tokens)[0] for sample in of_one]
    batches = pack(samples, micro_batch_tokens=micro_batch_tokens)
    if not batches:
        return found
    references = reference_logprobs(learner, [batches], reference)
    turn_of = [[turn for turn, tokens in sample.turns for _ in range(tokens)] for sample in samples]
    for batch in batches:
        estimates = divergence(batch.logprobs, references[id(batch)]).tolist()
        for place, turns in zip(batch.given_as.tolist(), _split(estimates, batch.sample_of.tolist()), strict=True):
            for turn, estimate in zip(turn_of[place], turns, strict=True):
                found[samples[place].episode_id][turn] += estimate
    return found


def _split(values: Sequence[float], rows: Sequence[int]) -> list[list[float]]:
    """`values` by the row each belongs to."""
    split: list[list[float]] = [[] for _ in range(max(rows) + 1)]
    for value, row in zip(values, rows, strict=True):
        split[row].append(value)
    return split
