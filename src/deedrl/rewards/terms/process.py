"""Process: which milestones on the way to the goal were passed?"""

from __future__ import annotations

from dataclasses import dataclass

from deedrl.types import Trajectory


@dataclass(frozen=True)
class Process:
    """Share of the verdict's milestones that were reached.

    A milestone counts once however often it is passed, so calls cannot be farmed (case F16). None when the verifier
    names no milestones.
    """

    name: str = "process"

    def score(self, trajectory: Trajectory) -> float | None:
        if trajectory.verdict is None or not trajectory.verdict.milestones:
            return None
        milestones = trajectory.verdict.milestones
        return sum(milestones.values()) / len(milestones)
