"""What reward models learn from and are held against: labels of pairs and turns, and the calibration set."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import fmean

import msgspec

from deedrl.training.preferences import Candidate, PreferencePair
from deedrl.training.rank_agreement import Comparison, Place, RankAgreement, rank_agreement
from deedrl.training.reward_model import Reading, StepLabel, readings
from deedrl.types import Record

COMPARED_PER_TASK = 64
"""Most pairs of labelled turns of one task that a process model is held against."""


class CalibrationSet(Record, frozen=True):
    """Comparisons that a reward model is held against for good, with the tokens of their episodes.

    It holds the tokens, so that it stays what it was whatever becomes of the stores.
    """

    comparisons: tuple[Comparison, ...]
    episodes: dict[str, tuple[Reading, ...]]

    @property
    def hash(self) -> str:
        """SHA-256 (64 hex digits) of the content."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()

    @property
    def places(self) -> list[Place]:
        return list(dict.fromkeys(place for one in self.comparisons for place in (one.better, one.worse)))

    @property
    def tasks(self) -> set[str]:
        return {one.task_id for one in self.comparisons}

    def agreement(self, scores: Mapping[Place, float]) -> RankAgreement:
        """Of scores of all `places`."""
        return rank_agreement(self.comparisons, scores)


def calibration_set(comparisons: Sequence[Comparison], episodes: Mapping[str, tuple[Reading, ...]]) -> CalibrationSet:
    """Of `comparisons`, with those of `episodes` that they name."""
    named = dict.fromkeys(place.episode_id for one in comparisons for place in (one.better, one.worse))
    return CalibrationSet(comparisons=tuple(comparisons), episodes={name: episodes[name] for name in named})


def comparison_of(pair: PreferencePair) -> Comparison:
    """Of the last turns of a pair's two episodes."""
    return Comparison(task_id=pair.task_id, better=Place(pair.chosen), worse=Place(pair.rejected))


# ---------------------------------------------------------------- turns


def sibling_labels(episodes: Sequence[Candidate]) -> list[StepLabel]:
    """Every turn of `episodes` labelled with how many of those that went the same way up to its end were solved.

    The soft estimate of Math-Shepherd (Wang et al. 2023, arXiv 2312.08935, eq. 4), with stored siblings in the place of
    continuations sampled for it: a turn that no sibling shares gets its own episode's outcome.
    """
    outcomes: dict[tuple[str, tuple[int, ...]], list[float]] = {}
    turns: list[tuple[str, Place, tuple[int, ...]]] = []
    for episode in episodes:
        for reading in readings(episode.samples):
            for end, step in zip(reading.ends, reading.steps, strict=True):
                way = reading.ids[: end + 1]
                turns.append((episode.task_id, Place(episode.episode_id, step), way))
                outcomes.setdefault((episode.task_id, way), []).append(float(episode.solved))
    return [StepLabel(task_id=task, place=place, label=fmean(outcomes[task, way])) for task, place, way in turns]


def compared_turns(labels: Sequence[StepLabel], seed: int) -> list[Comparison]:
    """Turns of one task with different labels, the larger label the better; at most `COMPARED_PER_TASK` by chance."""
    by_task: dict[str, list[StepLabel]] = {}
    for label in labels:
        by_task.setdefault(label.task_id, []).append(label)
    found: list[Comparison] = []
    for task, own in by_task.items():
        pairs = [(a, b) if a.label > b.label else (b, a) for a, b in combinations(own, 2) if a.label != b.label]
        drawn = random.Random(f"{seed} {task}").sample(pairs, min(len(pairs), COMPARED_PER_TASK))
        found += [Comparison(task_id=task, better=better.place, worse=worse.place) for better, worse in drawn]
    return found
