"""Difficulty as measured: bands of tasks by how often the policy solves them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal, get_args

from msgspec import Meta

from deedrl.config import PositiveFloat, Settings, Share, require
from deedrl.tasks.experience import Experience, Ledger
from deedrl.types import Task

BandName = Literal["unknown", "never_solved", "hard", "middle", "easy", "always_solved"]
BANDS: tuple[BandName, ...] = get_args(BandName)


class Bands(Settings, frozen=True, kw_only=True):
    """Where the bands end, as estimated success rates."""

    easy_from: Share = 0.67
    """A task solved at least this often is easy."""
    hard_up_to: Share = 0.33
    """A task solved at most this often is hard; what is between is middle."""
    margin: Annotated[float, Meta(ge=0, lt=0.5)] = 0.02
    """A rate this near to 0 or 1 counts as never or always solved, which gives siblings nothing to compare; above 0,
    for what was solved long ago fades and is never quite gone."""
    least_episodes: PositiveFloat = 2.0
    """Scored episodes, faded ones in part, below which a task is unknown."""

    def validate(self, path: str) -> None:
        """Raises `ConfigError` if the bands overlap; `path` is the dotted path of these settings."""
        require(
            self.margin < self.hard_up_to < self.easy_from < 1 - self.margin,
            path,
            "expected margin < hard_up_to < easy_from < 1 - margin, got "
            f"margin={self.margin:g}, hard_up_to={self.hard_up_to:g}, easy_from={self.easy_from:g}",
        )

    def band(self, experience: Experience) -> BandName:
        """The band of a task of which this was seen."""
        rate = experience.success_rate
        if rate is None or experience.scored < self.least_episodes:
            return "unknown"
        if rate <= self.margin:
            return "never_solved"
        if rate >= 1 - self.margin:
            return "always_solved"
        if rate <= self.hard_up_to:
            return "hard"
        return "easy" if rate >= self.easy_from else "middle"


def tasks_by_band(tasks: Iterable[Task], ledger: Ledger, step: int, bands: Bands) -> Mapping[BandName, list[Task]]:
    """Every band, with its tasks as of `step` in their given order."""
    groups: dict[BandName, list[Task]] = {band: [] for band in BANDS}
    for task in tasks:
        groups[bands.band(ledger.of(task.id, step))].append(task)
    return groups
