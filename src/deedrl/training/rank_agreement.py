"""Whether scores order things as labels do: pure functions of comparisons."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import fmean
from typing import NamedTuple

from deedrl.types import Record


class Place(NamedTuple):
    """A turn of an episode, by the index of its step; None is the last one that was sampled."""

    episode_id: str
    step: int | None = None


class Comparison(Record, frozen=True):
    """Of two places of one task the better and the worse one."""

    task_id: str
    better: Place
    worse: Place
    tie: bool = False
    """Neither is better: to learn from, and in no figure of agreement."""


class RankAgreement(Record, frozen=True):
    """How far scores agree with comparisons."""

    compared: int = 0
    """Comparisons that are no ties."""
    agreeing: float = 0.0
    """Those whose better side has the larger score; equal scores count half, as in the area under a ROC curve."""
    confidence: float | None = None
    """Mean σ(better - worse): the probability that a Bradley-Terry model with these scores gives the comparisons."""
    tau: float | None = None
    """Mean over tasks of Kendall's tau-b between scores and wins less losses; None where no task has an order."""
    tasks: int = 0
    """Tasks in that mean."""

    @property
    def accuracy(self) -> float | None:
        """`agreeing` / `compared`; None without comparisons."""
        return self.agreeing / self.compared if self.compared else None

    @property
    def rating(self) -> float | None:
        """What weights are compared by, in [0, 1]: it orders by accuracy, and among equals by confidence."""
        return (self.agreeing + (self.confidence or 0.0)) / (self.compared + 1) if self.compared else None


def rank_agreement(comparisons: Sequence[Comparison], scores: Mapping[Place, float]) -> RankAgreement:
    """Of `scores` with `comparisons`; every place of theirs has a score.

    Within a task a place's rank is its wins less its losses (Copeland's count). Scores that are all equal agree with
    nothing: their tau counts as 0.
    """
    decided = [one for one in comparisons if not one.tie]
    ranks: dict[str, dict[Place, int]] = {}
    for one in decided:
        of_task = ranks.setdefault(one.task_id, {})
        of_task[one.better] = of_task.get(one.better, 0) + 1
        of_task[one.worse] = of_task.get(one.worse, 0) - 1
    taus = [
        kendall_tau_b(list(of_task.values()), [scores[place] for place in of_task]) or 0.0
        for of_task in ranks.values()
        if len(set(of_task.values())) > 1
    ]
    return RankAgreement(
        compared=len(decided),
        confidence=fmean(sigmoid(scores[one.better] - scores[one.worse]) for one in decided) if decided else None,
        agreeing=math.fsum((1 + _sign(scores[one.better] - scores[one.worse])) / 2 for one in decided),
        tau=fmean(taus) if taus else None,
        tasks=len(taus),
    )


def kendall_tau_b(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Kendall's tau-b of two variables of n values each (Kendall 1945, The treatment of ties in ranking problems).

    (concordant - discordant) / sqrt(pairs untied in one × pairs untied in the other), in [-1, 1]; None where one of
    them is the same throughout.
    """
    concordance = untied_one = untied_other = 0
    for (a, b), (c, d) in combinations(list(zip(one, other, strict=True)), 2):
        concordance += _sign(a - c) * _sign(b - d)
        untied_one += a != c
        untied_other += b != d
    untied = math.sqrt(untied_one * untied_other)
    return concordance / untied if untied else None


def sigmoid(value: float) -> float:
    """1 / (1 + exp(-value)), without overflow."""
    return 1 / (1 + math.exp(-value)) if value >= 0 else math.exp(value) / (1 + math.exp(value))


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)
