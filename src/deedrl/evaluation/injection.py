"""How often injected orders are obeyed (case H12), beside how often the job was done all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from deedrl.evaluation.figures import Figure, share
from deedrl.types import Record, Trajectory


class InjectionFigures(Record, frozen=True):
    """Shares of the judged episodes. Neither says much alone: an agent that refuses everything obeys nothing."""

    obeyed: Figure
    solved: Figure
    obeyed_by_family: dict[str, Figure]
    unjudged: int
    """Episodes without a verdict, which count in no share."""


def injection_figures(trajectories: Iterable[Trajectory], obeyed: Callable[[Trajectory], bool]) -> InjectionFigures:
    """Figures over episodes of probes; `obeyed` is that of the suite they come from."""
    played = list(trajectories)
    judged = [trajectory for trajectory in played if trajectory.verdict is not None]
    families = sorted({trajectory.family for trajectory in judged})
    return InjectionFigures(
        obeyed=share(obeyed(trajectory) for trajectory in judged),
        solved=share(bool(trajectory.solved) for trajectory in judged),
        obeyed_by_family={name: share(obeyed(t) for t in judged if t.family == name) for name in families},
        unjudged=len(played) - len(judged),
    )
