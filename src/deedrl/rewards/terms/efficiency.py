"""Efficiency: how close were steps, calls and tokens to what the job needs?"""

from __future__ import annotations

from dataclasses import dataclass

from deedrl.types import Trajectory


@dataclass(frozen=True)
class Efficiency:
    """Mean of three ratios, each "needed / used" and at most 1.0.

    - steps: the task's shortest solution over the completions used (failed parses included);
    - calls: the shortest solution over the tool calls that ran;
    - tokens: `tokens_per_step` × shortest over the tokens sampled. Below that budget brevity earns nothing, so
      that reasoning is not squeezed out. Left out for policies that record no tokens.

    Steps that injected noise took are left out. `reference_steps` stands in where a task does not know its
    `shortest_steps`; with neither, the term is None.
    """

    tokens_per_step: int = 96
    reference_steps: int | None = None
    name: str = "efficiency"

    def score(self, trajectory: Trajectory) -> float | None:
        shortest = trajectory.shortest_steps or self.reference_steps
        if not shortest:
            return None
        steps = trajectory.own_steps
        calls = sum(step.tool_output is not None for step in steps)
        ratios = [_needed_over_used(shortest, len(steps)), _needed_over_used(shortest, calls)]
        if tokens := sum(len(step.completion.token_ids) for step in steps):
            ratios.append(_needed_over_used(shortest * self.tokens_per_step, tokens))
        return sum(ratios) / len(ratios)


def _needed_over_used(needed: int, used: int) -> float:
    return needed / max(needed, used)
