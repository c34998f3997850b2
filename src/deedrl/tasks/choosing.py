"""Tasks of a step in given shares of groups, and from where they come when a group runs out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from deedrl.tasks.bands import BandName
from deedrl.tasks.quotas import apportion, draw_in_turn
from deedrl.types import Task

FRONTIER, OFTEN_SOLVED, LEFT_OUT, ANY = "frontier", "often_solved", "left_out", "any"
"""Groups beside the bands: solvable but usually failed; solved more often; not let through by a filter; all tasks."""

QUOTA_FALLBACK: Mapping[str, tuple[BandName, ...]] = {
    "easy": ("unknown", "middle", "hard", "always_solved", "never_solved"),
    "middle": ("unknown", "hard", "easy", "never_solved", "always_solved"),
    "hard": ("unknown", "middle", "easy", "never_solved", "always_solved"),
    "unknown": ("middle", "hard", "easy", "never_solved", "always_solved"),
    "never_solved": ("unknown", "hard", "middle", "easy", "always_solved"),
    "always_solved": ("unknown", "easy", "middle", "hard", "never_solved"),
}
"""Bands that stand in for one that has run out, in this order: tasks that may teach before those that cannot."""
FRONTIER_FALLBACK: Mapping[str, tuple[str, ...]] = {
    FRONTIER: ("unknown", OFTEN_SOLVED, "never_solved", "always_solved"),
    "unknown": (FRONTIER, OFTEN_SOLVED, "never_solved", "always_solved"),
}


@dataclass(frozen=True)
class Choice:
    """A task of a step."""

    task: Task
    wanted: str
    """The group its place was for."""
    group: str
    """The group it came from."""

    @property
    def fell_back(self) -> bool:
        return self.group != self.wanted


@dataclass(frozen=True)
class Offer:
    """Disjoint groups of tasks, the shares they are wanted in, and what stands in for a group without tasks."""

    groups: Mapping[str, Sequence[Task]]
    shares: Mapping[str, float]
    fallback: Mapping[str, Sequence[str]]

    def choose(self, sizes: Sequence[int], rng: Random) -> list[Choice]:
        """Distinct tasks for batches of these `sizes`, one after the other, each in the shares (see `apportion`).

        Where rounding leaves a choice, chance decides which group has the task more. Within a group families and
        labelled difficulties take turns. In a batch every group gives to its own places before it stands in for
        another. There are fewer tasks than asked for only where all groups together have fewer.
        """
        left = {name: draw_in_turn(tasks, len(tasks), rng)[::-1] for name, tasks in self.groups.items()}
        chosen: list[Choice] = []
        for size in sizes:
            names = list(self.shares)
            rng.shuffle(names)
            wanted = apportion({name: self.shares[name] for name in names}, size)
            batch = [
                Choice(left[name].pop(), name, name)
                for name in names
                for _ in range(min(wanted[name], len(left[name])))
            ]
            for name in names:
                missing = wanted[name] - sum(choice.wanted == name for choice in batch)
                batch += _standing_in(left, name, self.fallback[name], missing)
            rng.shuffle(batch)
            chosen += batch
        return chosen


def _standing_in(left: Mapping[str, list[Task]], name: str, others: Sequence[str], missing: int) -> list[Choice]:
    found: list[Choice] = []
    for other in others:
        while len(found) < missing and left.get(other):
            found.append(Choice(left[other].pop(), name, other))
    return found


def uniform_choice(
    tasks: Sequence[Task], left_out: Sequence[Task], count: int, rng: Random, weights: Mapping[str, float]
) -> list[Choice]:
    """`count` distinct tasks as `draw_in_turn` gives them; what `tasks` lack comes from those `left_out`."""
    chosen = [Choice(task, ANY, ANY) for task in draw_in_turn(tasks, count, rng, weights)]
    spare = draw_in_turn(left_out, count - len(chosen), rng, weights) if len(chosen) < count else []
    return chosen + [Choice(task, ANY, LEFT_OUT) for task in spare]


def quota_offer(
    by_band: Mapping[BandName, Sequence[Task]], left_out: Sequence[Task], shares: Mapping[BandName, float]
) -> Offer:
    """Bands in proportion to `shares`."""
    groups: dict[str, Sequence[Task]] = {**{str(name): tasks for name, tasks in by_band.items()}, LEFT_OUT: left_out}
    wanted: dict[str, float] = {name: share for name, share in shares.items() if share > 0}
    return Offer(groups, wanted, {name: (*QUOTA_FALLBACK[name], LEFT_OUT) for name in wanted})


def frontier_offer(
    by_band: Mapping[BandName, Sequence[Task]],
    rates: Mapping[str, float],
    left_out: Sequence[Task],
    *,
    up_to: float,
    explore_share: float,
) -> Offer:
    """Tasks that are sometimes solved, up to the rate `up_to`, and a share of unknown ones. `rates` are by task id."""
    telling = [task for band in ("hard", "middle", "easy") for task in by_band[band]]
    groups: dict[str, Sequence[Task]] = {
        FRONTIER: [task for task in telling if rates[task.id] <= up_to],
        OFTEN_SOLVED: [task for task in telling if rates[task.id] > up_to],
        **{band: by_band[band] for band in ("unknown", "never_solved", "always_solved")},
        LEFT_OUT: left_out,
    }
    shares = {FRONTIER: 1 - explore_share, "unknown": explore_share}
    wanted = {name: share for name, share in shares.items() if share > 0}
    return Offer(groups, wanted, {name: (*FRONTIER_FALLBACK[name], LEFT_OUT) for name in wanted})
