"""Format: were the completions well-formed actions?"""

from __future__ import annotations

import math
from dataclasses import dataclass

from deedrl.parsing import format_score
from deedrl.types import Trajectory


@dataclass(frozen=True)
class Format:
    """Product of the completions' format scores: 1.0 only when each was one lone strict action.

    A product rather than a mean, because a mean could be raised by adding well-formed calls that do nothing
    (case F16). An episode without completions scores 0.0: it showed no format.
    """

    name: str = "format"

    def score(self, trajectory: Trajectory) -> float | None:
        if not trajectory.steps:
            return 0.0
        return math.prod(format_score(step.action) for step in trajectory.steps)
