"""Reward models: a scalar at the last action token of a turn, from a head on an adapter of its own.

One reading, two lessons. An outcome model is read at the last turn of an episode and learns from pairs: the
log-likelihood of Bradley and Terry (1952) that the better one wins, as in Ouyang et al. 2022 (arXiv 2203.02155, eq. 1).
A process model is read at every turn and learns from labels of turns by cross-entropy, as in Lightman et al. 2023
(arXiv 2305.20050). What tools and users said is context: it is read and never scored.

Departures: a tie counts as half a win of either side; a term of weight `centre` holds scores near 0 (Eisenstein et al.
2023, arXiv 2312.09244). Pairs tie episodes together, so each update first looks at all scores and then weighs them
(docs/decisions/0025); the model's dropout stays off for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from deedrl.training.headed import HeadedTrunk
from deedrl.training.packing import Batch, pack
from deedrl.training.rank_agreement import Comparison, Place
from deedrl.training.samples import TrainingSample
from deedrl.types import Record

READ_TOGETHER = 64
"""Samples packed together where they are only read: looking for what they share takes time quadratic in them."""


class Reading(Record, frozen=True):
    """One token sequence of an episode, and where a reward model reads it."""

    ids: tuple[int, ...]
    """Up to the last token that was sampled."""
    ends: tuple[int, ...]
    """Position of the last sampled token of each turn in it, ascending."""
    steps: tuple[int, ...]
    """Index of the step of each of these turns."""


Episodes = Mapping[str, Sequence[Reading]]
"""All readings of each episode in order, by its id; several where its conversation was rendered anew."""


def readings(samples: Sequence[TrainingSample]) -> tuple[Reading, ...]:
    """Of an episode's samples, each with its `turns`; without what was not sampled there is nothing to read."""
    found = []
    for sample in samples:
        actions = [position for position, action in enumerate(sample.action_mask) if action]
        turns = [(step, count) for step, count in sample.turns if count]
        if not turns:
            continue
        ends = tuple(actions[total - 1] for total in accumulate(count for _, count in turns))
        found.append(Reading(ids=sample.ids[: ends[-1] + 1], ends=ends, steps=tuple(step for step, _ in turns)))
    return tuple(found)


@dataclass(frozen=True)
class Lesson:
    """What one update learns from."""

    places: tuple[Place, ...]
    """Distinct; scores come in this order."""
    loss: Callable[[Tensor], Tensor]
    """From scores [places], float64, to a scalar."""
    figures: Callable[[Tensor], dict[str, float]]


def pairs_lesson(comparisons: Sequence[Comparison], *, smoothing: float, centre: float) -> Lesson:
    """The mean over `comparisons` of -log σ(better - worse), and `centre` times the mean of (better + worse)².

    `smoothing` is the share of comparisons believed to be the wrong way round. A tie asks for 1/2.
    """
    places = tuple(dict.fromkeys(place for one in comparisons for place in (one.better, one.worse)))
    at = {place: index for index, place in enumerate(places)}
    better = torch.tensor([at[one.better] for one in comparisons])
    worse = torch.tensor([at[one.worse] for one in comparisons])
    tied = torch.tensor([one.tie for one in comparisons])
    wins = torch.where(tied, 0.5, 1.0 - smoothing).double()

    def loss(scores: Tensor) -> Tensor:
        margins, sums = scores[better] - scores[worse], scores[better] + scores[worse]
        likelihood = wins * logsigmoid(margins) + (1 - wins) * logsigmoid(-margins)
        return centre * sums.square().mean() - likelihood.mean()

    def figures(scores: Tensor) -> dict[str, float]:
        margins = (scores[better] - scores[worse])[~tied]
        if not len(margins):
            return {}
        agreeing = (margins.sign() + 1) / 2
        return {"pair_accuracy": float(agreeing.mean()), "margin": float(margins.mean())}

    return Lesson(places, loss, figures)


class StepLabel(Record, frozen=True):
    """How good a turn is, in [0, 1]: 1 is right, or the share of continuations that reached the goal."""

    task_id: str
    place: Place
    label: float


def steps_lesson(labels: Sequence[StepLabel]) -> Lesson:
    """The mean cross-entropy of `labels` under σ(score); each place once."""
    wanted = torch.tensor([one.label for one in labels], dtype=torch.float64)

    def figures(scores: Tensor) -> dict[str, float]:
        return {"step_accuracy": float(((scores > 0) == (wanted > 0.5)).double().mean())}

    return Lesson(
        tuple(one.place for one in labels), lambda scores: binary_cross_entropy_with_logits(scores, wanted), figures
    )


class RewardModel:
    """Scores places and learns to; `micro_batch_tokens` bounds a pass and changes no result."""

    def __init__(self, trunk: HeadedTrunk, *, micro_batch_tokens: int) -> None:
        self.trunk = trunk
        self._limit = micro_batch_tokens

    def scores(self, episodes: Episodes, places: Sequence[Place]) -> dict[Place, float]:
        """Raw scores (logits) of distinct `places`, without gradient; every episode they name has a reading."""
        found: dict[Place, float] = {}
        try:
            groups = iter(_by_reading(episodes, places).items())
            while together := dict(islice(groups, READ_TOGETHER)):
                packed = _Packed(together, self._limit)
                values = torch.cat([values.ends for values in self.trunk.values(packed.batches)]).tolist()
                found |= zip(packed.order, values, strict=True)
        finally:
            self.trunk.rest()
        return {place: found[place] for place in places}

    def update(self, episodes: Episodes, lesson: Lesson, *, rate: float, max_grad_norm: float) -> dict[str, float]:
        """One step on `lesson`; returns figures, all as they were before it."""
        packed = _Packed(_by_reading(episodes, lesson.places), self._limit)
        values = torch.cat([values.ends for values in self.trunk.values(packed.batches)])
        at = {place: index for index, place in enumerate(packed.order)}
        scores = values[torch.tensor([at[place] for place in lesson.places])].double().requires_grad_()
        loss = lesson.loss(scores)
        [by_place] = torch.autograd.grad(loss, scores)
        slope_of = dict(zip(lesson.places, by_place.tolist(), strict=True))
        slopes = iter(torch.split(torch.tensor([slope_of[place] for place in packed.order]), packed.reads))
        weights = {id(batch): next(slopes) for batch in packed.batches}
        norm, taken = self.trunk.update(
            packed.batches, lambda batch, found: (weights[id(batch)] * found.ends).sum(), rate, max_grad_norm
        )
        return lesson.figures(scores.detach()) | {
            "loss": float(loss.detach()),
            "score_mean": float(scores.detach().mean()),
            "grad_norm": norm,
            "skipped_update": float(not taken),
        }

    def tensors(self) -> dict[str, Tensor]:
        """Parameters and moments by name, for a safetensors file."""
        return self.trunk.optimiser.tensors()

    def load_tensors(self, state: Mapping[str, Tensor]) -> None:
        """Restores what `tensors` returned, bit for bit."""
        self.trunk.optimiser.load_tensors(state)


def turn_places(episode_id: str, read: Sequence[Reading]) -> list[Place]:
    """The places of all turns of an episode, in order."""
    return [Place(episode_id, step) for reading in read for step in reading.steps]


# ---------------------------------------------------------------- packing


def _by_reading(episodes: Episodes, places: Sequence[Place]) -> dict[tuple[str, int], tuple[Reading, list[Place]]]:
    """The readings that hold `places`, and for each the places in it in the order of their positions."""
    found: dict[tuple[str, int], tuple[Reading, list[tuple[int, Place]]]] = {}
    for place in places:
        number, position = _position(episodes[place.episode_id], place)
        reading = episodes[place.episode_id][number]
        found.setdefault((place.episode_id, number), (reading, []))[1].append((position, place))
    in_order = {key: sorted(reads, key=lambda read: read[0]) for key, (_, reads) in found.items()}
    return {key: (reading, [place for _, place in in_order[key]]) for key, (reading, _) in found.items()}


def _position(read: Sequence[Reading], place: Place) -> tuple[int, int]:
    """The number of the reading a place is in, and the position in it."""
    if place.step is None:
        return len(read) - 1, read[-1].ends[-1]
    for number, reading in enumerate(read):
        if place.step in reading.steps:
            return number, reading.ends[reading.steps.index(place.step)]
    raise ValueError(f"expected a step of episode {place.episode_id} that was sampled, got {place.step}")


class _Packed:
    """Readings in the micro-batches of one `pack`; `order` holds the places as the batches read them."""

    def __init__(self, found: Mapping[tuple[str, int], tuple[Reading, list[Place]]], limit: int) -> None:
        places = [places for _, places in found.values()]
        samples = [_sample(reading, places) for reading, places in found.values()]
        self.batches: list[Batch] = pack(samples, micro_batch_tokens=limit)
        self.reads = [len(batch.end_of) for batch in self.batches]
        self.order: list[Place] = []
        waiting: list[Iterator[Place]] = [iter(some) for some in places]
        for batch in self.batches:
            self.order += [next(waiting[number]) for number in batch.given_as[batch.end_of].tolist()]


def _sample(reading: Reading, places: Sequence[Place]) -> TrainingSample:
    """The tokens up to the last place; what is read counts as the actions that `pack` looks for."""
    ends = [_position([reading], place)[1] for place in places]
    length = ends[-1] + 1
    at = set(ends)
    return TrainingSample(
        episode_id=places[0].episode_id,
        ids=reading.ids[:length],
        action_mask=tuple(position in at for position in range(length)),
        logprobs=(0.0,) * length,
        read_at=tuple(sorted(at)),
    )
