"""Filters over trajectories: plain predicates that compose.

    select(store, status("solved"), family("refund"), reward_between(0.5, 1.0))

Each filter is a function from a trajectory to a bool, so a lambda is as good as the ones below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal, get_args

from deedrl.errors import ConfigError, suggest
from deedrl.types import Source, TerminationReason, Tier, Trajectory

Filter = Callable[[Trajectory], bool]
Status = Literal["solved", "failed", "unjudged", "errored"]


def select(trajectories: Iterable[Trajectory], *filters: Filter) -> Iterator[Trajectory]:
    """The trajectories that pass every filter, in their order and one at a time."""
    return (trajectory for trajectory in trajectories if all(keep(trajectory) for keep in filters))


def status_of(trajectory: Trajectory) -> Status:
    """``errored`` (infrastructure), ``unjudged`` (no verdict), else ``solved`` or ``failed`` as the verifier said."""
    if trajectory.errored:
        return "errored"
    if trajectory.verdict is None:
        return "unjudged"
    return "solved" if trajectory.verdict.solved else "failed"


def worst_tier(trajectory: Trajectory) -> Tier | None:
    """The least strict parser tier any of the steps needed; None for an episode without steps."""
    tiers: tuple[Tier, ...] = get_args(Tier)
    return max((step.action.tier for step in trajectory.steps), key=tiers.index, default=None)


def status(*statuses: Status) -> Filter:
    """Keeps episodes of these statuses (see `status_of`)."""
    wanted = _known("status", statuses, get_args(Status))
    return lambda trajectory: status_of(trajectory) in wanted


def solved(trajectory: Trajectory) -> bool:
    """Keeps episodes the verifier called solved; itself a filter."""
    return trajectory.solved is True


def scored(trajectory: Trajectory) -> bool:
    """Keeps episodes that have a reward, 0.0 included; itself a filter."""
    return trajectory.reward is not None


def family(*names: str) -> Filter:
    """Keeps tasks of these families."""
    wanted = frozenset(names)
    return lambda trajectory: trajectory.family in wanted


def source(*sources: Source) -> Filter:
    """Keeps what came from these sources: ``policy``, ``guided`` or ``demonstration``."""
    wanted = _known("source", sources, get_args(Source))
    return lambda trajectory: trajectory.provenance.source in wanted


def termination(*reasons: TerminationReason) -> Filter:
    """Keeps episodes that ended for these reasons."""
    wanted = frozenset(reasons)
    return lambda trajectory: trajectory.termination in wanted


def tier(*tiers: Tier) -> Filter:
    """Keeps episodes whose `worst_tier` is one of these; ``tier("strict")`` means every step was strict."""
    wanted = _known("tier", tiers, get_args(Tier))
    return lambda trajectory: worst_tier(trajectory) in wanted


def reward_between(low: float, high: float) -> Filter:
    """Keeps rewards in [low, high]. An unscored episode has no reward and never passes, whatever the range."""
    if not low <= high:
        raise ConfigError(f"expected low <= high in a reward range, got {low} and {high}; swap them")
    return lambda trajectory: trajectory.reward is not None and low <= trajectory.reward <= high


def any_of(*filters: Filter) -> Filter:
    """Keeps what passes at least one of the filters."""
    return lambda trajectory: any(keep(trajectory) for keep in filters)


def negated(keep: Filter) -> Filter:
    """Keeps what `keep` drops."""
    return lambda trajectory: not keep(trajectory)


def _known(what: str, names: tuple[str, ...], known: tuple[str, ...]) -> frozenset[str]:
    for name in names:
        if name not in known:
            raise ConfigError(f"expected a {what} out of {', '.join(known)}, got '{name}'{suggest(name, known)}")
    return frozenset(names)
