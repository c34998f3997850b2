"""Outcome: did the verifier find the goal reached?"""

from __future__ import annotations

from dataclasses import dataclass

from deedrl.tasks.outcomes import completed
from deedrl.types import Trajectory


@dataclass(frozen=True)
class Outcome:
    """1.0 when the verifier found the goal reached, 0.0 when not, None when it never judged.

    There is no partial credit here: it comes from the gated terms. What the model says counts for nothing.
    """

    name: str = "outcome"

    def score(self, trajectory: Trajectory) -> float | None:
        outcome = completed(trajectory)
        return None if outcome is None else float(outcome)
