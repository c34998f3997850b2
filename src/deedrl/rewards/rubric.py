"""Composes reward terms into one reward with a breakdown.

The total of an episode is the sum over terms of value × gate × weight, where values and gates lie in [0, 1] and
weights are shares of 1, so the total lies in [0, 1] too. Four rules decide the rest, in this order:

1. an errored episode has no reward (case D02): total None;
2. a broken hard requirement makes the total 0.0, whatever the terms say, and its reason is recorded;
3. a term that cannot score makes the total None, because absence is not zero; unless the rubric marks the term
   `optional` (or gives it weight 0): then the weights of the others are scaled up to sum to 1 again;
4. a value that is not a number in [0, 1] is the author's bug and raises `EnvironmentAuthorError`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from deedrl.errors import ConfigError, EnvironmentAuthorError, suggest
from deedrl.rewards.term import ASPECTS, Aspect, Gate, RewardTerm, Veto, by_progress, checked_share, score_term, ungated
from deedrl.rewards.terms import Efficiency, Format, Outcome, Process
from deedrl.types import RewardBreakdown, TermScore, Trajectory


@dataclass(frozen=True)
class WeightedTerm:
    """A term with its weight, its gate and what it is about.

    `aspect` None means the aspect of the term's name, or "process" for any other name: what an author adds is
    mostly something done on the way. It is used by the lint only.
    """

    term: RewardTerm
    weight: float
    gate: Gate = by_progress
    optional: bool = False
    aspect: Aspect | None = None

    def about(self) -> Aspect:
        """The aspect given, or the one the name tells."""
        named: dict[str, Aspect] = {aspect: aspect for aspect in ASPECTS}
        return self.aspect or named.get(self.term.name, "process")


@dataclass(frozen=True)
class Rubric:
    """Weighted terms and vetoes. Weights are taken as shares of their sum; the verdict's violations always veto."""

    terms: Sequence[WeightedTerm]
    vetoes: Sequence[Veto] = ()

    def __post_init__(self) -> None:
        names = [weighted.term.name for weighted in self.terms]
        if len(set(names)) != len(names):
            raise EnvironmentAuthorError(f"reward terms need names of their own, got {names}; rename one of the equal")
        for weighted in self.terms:
            if not (math.isfinite(weighted.weight) and weighted.weight >= 0):
                raise EnvironmentAuthorError(
                    f"weight of reward term '{weighted.term.name}' must be a finite number of at least 0, "
                    f"got {weighted.weight!r}; gates and vetoes take reward away, weights cannot"
                )
        if not sum(weighted.weight for weighted in self.terms) > 0:
            raise EnvironmentAuthorError("a rubric needs a term with a weight above 0; start from default_rubric()")

    @property
    def shares(self) -> dict[str, float]:
        """Weight of each term as a share of 1."""
        whole = math.fsum(weighted.weight for weighted in self.terms)
        return {weighted.term.name: weighted.weight / whole for weighted in self.terms}

    def reweighted(self, weights: Mapping[str, float]) -> Rubric:
        """The same terms with other weights; terms not named keep theirs, an unknown name is a `ConfigError`."""
        names = [weighted.term.name for weighted in self.terms]
        for name in weights:
            if name not in names:
                raise ConfigError(f"no reward term is called '{name}'{suggest(name, names)}")
        terms = [replace(weighted, weight=weights.get(weighted.term.name, weighted.weight)) for weighted in self.terms]
        return replace(self, terms=tuple(terms))

    def score(self, trajectory: Trajectory) -> RewardBreakdown:
        """The reward of `trajectory` per term; pure, see the rules at the top of this file.

        In the breakdown, the weights of scored terms are those that were applied, so their contributions sum to the
        total unless a veto fell; an unscored term shows its nominal share.
        """
        if trajectory.errored:
            return RewardBreakdown(total=None)
        scores = _scaled_to_one({weighted.term.name: self._score_one(weighted, trajectory) for weighted in self.terms})
        vetoes = self._broken(trajectory)
        if vetoes:
            return RewardBreakdown(total=0.0, terms=scores, vetoes=vetoes)
        needed = [weighted.term.name for weighted in self.terms if weighted.weight > 0 and not weighted.optional]
        paying = [score for score in scores.values() if score.weight > 0]
        contributions = [score.contribution for score in paying if score.contribution is not None]
        if not contributions or any(scores[name].value is None for name in needed):
            return RewardBreakdown(total=None, terms=scores)
        return RewardBreakdown(total=min(math.fsum(contributions), 1.0), terms=scores)

    def _score_one(self, weighted: WeightedTerm, trajectory: Trajectory) -> TermScore:
        value = score_term(weighted.term, trajectory)
        gate = checked_share(weighted.gate(trajectory), f"the gate of reward term '{weighted.term.name}'", trajectory)
        share = self.shares[weighted.term.name]
        return TermScore(value=None, weight=share) if gate is None else TermScore(value=value, weight=share, gate=gate)

    def _broken(self, trajectory: Trajectory) -> tuple[str, ...]:
        violations = () if trajectory.verdict is None else trajectory.verdict.violations
        reasons = (veto.reason(trajectory) for veto in self.vetoes)
        return (*violations, *(reason for reason in reasons if reason is not None))


def _scaled_to_one(scores: dict[str, TermScore]) -> dict[str, TermScore]:
    """Scales the weights of the terms that scored so that they sum to 1."""
    scored = math.fsum(score.weight for score in scores.values() if score.value is not None)
    if scored == 0:
        return scores
    return {
        name: score if score.value is None else msgspec.structs.replace(score, weight=score.weight / scored)
        for name, score in scores.items()
    }


def default_rubric() -> Rubric:
    """Outcome 55 %, process 25 %, efficiency 10 %, format 10 %; all but the outcome gated by progress.

    Process and efficiency are optional: an environment without milestones or shortest solutions does without them.
    The outcome holds more than half, so that no failure, however neat, earns as much as a success.
    """
    return Rubric(
        (
            WeightedTerm(Outcome(), 0.55, gate=ungated),
            WeightedTerm(Process(), 0.25, optional=True),
            WeightedTerm(Efficiency(), 0.10, optional=True),
            WeightedTerm(Format(), 0.10),
        )
    )


def rescore(trajectory: Trajectory, rubric: Rubric) -> Trajectory:
    """A new record with the reward of `rubric`; the trajectory given stays as it is."""
    return msgspec.structs.replace(trajectory, breakdown=rubric.score(trajectory))
