"""How much of what policies read was found in their caches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from deedrl.evaluation.figures import Figure
from deedrl.types import Completion, Trajectory


def cache_hit_share(trajectories: Sequence[Trajectory]) -> Figure:
    """Context tokens that were cached over all context tokens, of the turns whose policy reports them (case I09).

    A turn's context is the whole conversation before it, so that an engine which computes it anew each turn shows a
    low share, however short its prompts are. Without an interval: the tokens of a turn are no independent trials.
    """
    cached = total = 0
    for trajectory in trajectories:
        for completion, context in _contexts(trajectory):
            if completion.cached_tokens is not None:
                cached += completion.cached_tokens
                total += context
    return Figure(value=cached / total if total else None, numerator=cached, denominator=total, low=None, high=None)


def _contexts(trajectory: Trajectory) -> Iterator[tuple[Completion, int]]:
    """Every completion with the number of tokens it was sampled after."""
    held = 0
    for step in trajectory.steps:
        completion = step.completion
        context = len(completion.prompt_ids) + (held if completion.extends_previous else 0)
        yield completion, context
        held = context + len(completion.token_ids)
