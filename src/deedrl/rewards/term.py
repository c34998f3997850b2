"""What a reward term, a gate and a veto are, and the one place where their results are checked.

All three read a finished `Trajectory` and nothing else: never the environment, and never a place the agent can
write to (case F13), so that stored runs can be scored again.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from deedrl.errors import EnvironmentAuthorError
from deedrl.tasks.outcomes import completed, succeeded_calls
from deedrl.types import Trajectory

Aspect = Literal["outcome", "process", "efficiency", "format"]
ASPECTS: tuple[Aspect, ...] = ("outcome", "process", "efficiency", "format")

Scorer = Callable[[Trajectory], float | None]

ROUNDING = 1e-9
"""How far outside [0, 1] a value may lie and still be taken for a rounding error."""


class RewardTerm(Protocol):
    """Scores one aspect of an episode."""

    @property
    def name(self) -> str:
        """Key of this term in a breakdown; unique within a rubric."""

    def score(self, trajectory: Trajectory) -> float | None:
        """A value in [0, 1], or None when this episode gives the term nothing to score (that is not 0.0)."""


@dataclass(frozen=True)
class FunctionTerm:
    """A plain function as a reward term; made by `term`."""

    name: str
    function: Scorer

    def score(self, trajectory: Trajectory) -> float | None:
        return self.function(trajectory)


def term(name: str) -> Callable[[Scorer], FunctionTerm]:
    """Turns a function of a trajectory into a reward term called `name`.

    ```python
    @term("short_reply")
    def short_reply(trajectory: Trajectory) -> float | None:
        return None if not trajectory.steps else float(len(trajectory.steps[-1].completion.text) < 200)
    ```
    """
    return lambda function: FunctionTerm(name, function)


Gate = Callable[[Trajectory], float | None]
"""Factor in [0, 1] on a term's value; None when it cannot be known, which leaves the term unscored."""


def by_progress(trajectory: Trajectory) -> float | None:
    """The share of the job that the agent got done: 1.0 when solved, else the verdict's progress.

    It is 0.0 when no tool call was accepted: what already held at the start is not the agent's progress, so an
    empty episode earns nothing even from a verifier that gives credit for the initial state (case F15).
    """
    outcome = completed(trajectory)
    if outcome is None:
        return None
    if outcome:
        return 1.0
    if trajectory.verdict is None or not succeeded_calls(trajectory):
        return 0.0
    return trajectory.verdict.progress


def ungated(trajectory: Trajectory) -> float | None:
    """Always 1.0; right for the outcome, whose value is progress already."""
    return 1.0


class Veto(Protocol):
    """A hard requirement: when broken, the whole reward is 0.0."""

    @property
    def name(self) -> str:
        """Short name for messages."""

    def reason(self, trajectory: Trajectory) -> str | None:
        """Why this episode breaks the requirement, in words for the report; None when it keeps it."""


def checked_share(value: object, source: str, trajectory: Trajectory) -> float | None:
    """`value` as a float in [0, 1], or None; anything else is an `EnvironmentAuthorError` that names `source`."""
    if value is None:
        return None
    number = float(value) if isinstance(value, numbers.Real) else math.nan
    if not (-ROUNDING <= number <= 1.0 + ROUNDING):
        raise EnvironmentAuthorError(
            f"{source} must give a number in [0, 1] or None (could not score), got {value!r} "
            f"for episode '{trajectory.episode_id}'; scale it into the range or return None"
        )
    return min(max(number, 0.0), 1.0)


def score_term(term: RewardTerm, trajectory: Trajectory) -> float | None:
    """Runs an author's term and checks what it gives; the boundary where its exceptions get the term's name."""
    try:
        value: object = term.score(trajectory)
    except Exception as error:
        raise EnvironmentAuthorError(
            f"reward term '{term.name}' raised {type(error).__name__}: {error} for episode "
            f"'{trajectory.episode_id}'; return None where a term has nothing to score"
        ) from error
    return checked_share(value, f"reward term '{term.name}'", trajectory)
