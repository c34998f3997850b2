"""Credit: from what the siblings of a group earned to an advantage for each turn of theirs. Pure functions.

An estimator (`advantages`) compares one number per sibling. A turn has a number of its own, and `compared` asks the
estimator what it would say had the sibling earned that number while the others stand for themselves with their means.
So every sibling counts once in a baseline, however many turns it has (case C20), credit by outcome is the special case
of equal numbers, and with leave-one-out the baseline of a turn never depends on what its own episode did.

Source of `anchor_credit`: GiGPO, Feng et al. 2025 (arXiv 2505.10978) section 4. Departures: an episode that comes back
to a state counts once in that state's group, by the mean of its visits, where the paper counts each visit; states are
those of the environment together with what the policy has been told, see `anchors`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from deedrl.training.advantages import ZERO_VARIANCE, Estimator, Rewards
from deedrl.training.turn_rewards import discounted, turn_rewards, usable_reward
from deedrl.types import TerminationReason, Trajectory, TrajectoryGroup

Rows = Sequence[list[float]]
"""One row for each sibling, one number for each of its turns."""
Estimate = Callable[[Rewards], list[float]]
"""An estimator with its threshold."""
Credit = Callable[[Sequence[Trajectory], Rows, Estimate], list[list[float]]]
"""From scored siblings and the rewards of their turns to the advantage of each turn."""


def outcome_credit(siblings: Sequence[Trajectory], rewards: Rows, estimate: Estimate) -> list[list[float]]:
    """Every turn of an episode gets the same: what the estimator says of all the episode earned."""
    advantages = estimate([math.fsum(row) for row in rewards])
    return [[advantage] * len(row) for row, advantage in zip(rewards, advantages, strict=True)]


def return_credit(
    siblings: Sequence[Trajectory], rewards: Rows, estimate: Estimate, *, gamma: float
) -> list[list[float]]:
    """A turn gets what came from it on, discounted by `gamma` a turn, against the siblings' mean over their turns.

    Not compared are turns of one index: who is still there at turn t is the policy's own doing. See docs/grpo.md.
    """
    return compared([discounted(row, gamma) for row in rewards], estimate)


def anchor_credit(
    siblings: Sequence[Trajectory], rewards: Rows, estimate: Estimate, *, gamma: float, anchor_weight: float
) -> list[list[float]]:
    """By outcome, plus `anchor_weight` times what followed a turn against what followed where others were in its state.

    A turn in whose state no sibling has been gets the first part alone.
    """
    advantages = outcome_credit(siblings, rewards, estimate)
    returns = [discounted(row, gamma) for row in rewards]
    for visits in _visits(siblings).values():
        if len(visits) < 2:
            continue
        rows = [[returns[sibling][turn] for turn in turns] for sibling, turns in visits.items()]
        for (sibling, turns), row in zip(visits.items(), compared(rows, estimate), strict=True):
            for turn, advantage in zip(turns, row, strict=True):
                advantages[sibling][turn] += anchor_weight * advantage
    return advantages


def compared(rows: Rows, estimate: Estimate) -> list[list[float]]:
    """For each number of each row what `estimate` says of it among the means of the other rows."""
    means: list[float | None] = [math.fsum(row) / len(row) for row in rows]

    def among_others(place: int, value: float) -> float:
        return estimate([*means[:place], value, *means[place + 1 :]])[place]

    return [[among_others(place, value) for value in row] for place, row in enumerate(rows)]


# ---------------------------------------------------------------- a group


@dataclass(frozen=True)
class Comparison:
    """How the siblings of a group are compared; by default every turn of an episode gets the episode's outcome."""

    estimator: Estimator
    threshold: float = ZERO_VARIANCE
    """Standard deviation up to which what is compared counts as equal."""
    credit: Credit = outcome_credit
    rewards: Callable[[Trajectory], list[float]] = turn_rewards
    """The reward of each turn of a scored episode."""

    left_out: Collection[TerminationReason] = ()
    """Endings of episodes that are not compared."""
    penalties: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """By episode id what is taken from the reward of each turn, in groups that their rewards alone tell apart."""

    def compares(self, trajectory: Trajectory) -> bool:
        """Whether the episode is compared: it was scored, sampled freely and not ended by what is left out."""
        return usable_reward(trajectory) is not None and trajectory.termination not in self.left_out

    def advantages(self, group: TrajectoryGroup) -> list[list[float] | None]:
        """Of the turns of each episode; None of one that is not compared."""
        siblings = [trajectory for trajectory in group.trajectories if self.compares(trajectory)]
        rewards = [self.rewards(trajectory) for trajectory in siblings]
        found = self.credit(siblings, rewards, self._estimate)
        if self.penalties and has_signal(found):
            found = self.credit(siblings, list(map(self._less, siblings, rewards)), self._estimate)
        of_sibling = iter(found)
        return [next(of_sibling) if self.compares(trajectory) else None for trajectory in group.trajectories]

    def _less(self, trajectory: Trajectory, rewards: Sequence[float]) -> list[float]:
        taken = self.penalties.get(trajectory.episode_id, [0.0] * len(rewards))
        return [reward - less for reward, less in zip(rewards, taken, strict=True)]

    def _estimate(self, rewards: Rewards) -> list[float]:
        return self.estimator(rewards, self.threshold)


def has_signal(advantages: Sequence[list[float] | None]) -> bool:
    """Whether there is anything to learn from a group whose turns have these advantages."""
    return any(advantage for of_turns in advantages if of_turns for advantage in of_turns)


# ---------------------------------------------------------------- states


def anchors(trajectory: Trajectory) -> list[Hashable]:
    """The state in which each turn was sampled; equal for siblings in the same one.

    Where the environment gives a `state_hash`, it is that and the set of texts the policy has been shown: what it
    knows matters, not in which order it came to know it. Without a hash it is those texts in their order, the only
    trace of what has been done.
    """
    shown: list[str] = []
    states: list[Hashable] = []
    for step in trajectory.steps:
        shown.append(step.observation)
        known: Hashable = tuple(shown) if step.state_hash is None else frozenset(shown)
        states.append((step.state_hash, known))
    return states


class Company(NamedTuple):
    """Of turns but first ones, whose state siblings always share."""

    turns: int
    shared: int
    """In how many a sibling was in the same state at some time."""

    @property
    def share(self) -> float:
        return self.shared / self.turns if self.turns else 0.0


def anchored_turns(groups: Sequence[TrajectoryGroup]) -> Company:
    """How often there is something to compare in the states of a step's turns."""
    turns = shared = 0
    for group in groups:
        for visits in _visits(group.trajectories).values():
            later = sum(turn > 0 for visited in visits.values() for turn in visited)
            turns += later
            shared += later if len(visits) > 1 else 0
    return Company(turns, shared)


def _visits(siblings: Sequence[Trajectory]) -> dict[Hashable, dict[int, list[int]]]:
    """By state and sibling the turns that were sampled there."""
    visits: dict[Hashable, dict[int, list[int]]] = {}
    for place, trajectory in enumerate(siblings):
        for turn, state in enumerate(anchors(trajectory)):
            visits.setdefault(state, {}).setdefault(place, []).append(turn)
    return visits
