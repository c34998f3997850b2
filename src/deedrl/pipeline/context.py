"""What a stage is given, and the seams between stages, the command line and what shows their progress."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from deedrl.pipeline.recipe import Recipe
from deedrl.pipeline.run import Run
from deedrl.seeding import derive_seed

if TYPE_CHECKING:
    from deedrl.tracking.tracker import Tracker


class Bar(Protocol):
    """One running piece of work."""

    def advance(self, count: int = 1, **figures: float | int | str | None) -> None:
        """`count` more units are done; `figures` are the two or three live values worth seeing (None: not measured)."""
        ...


class Progress(Protocol):
    """Shows people what is going on; never changes what is going on."""

    def bar(self, title: str, total: int, unit: str, done: int = 0) -> AbstractContextManager[Bar]:
        """A bar over `total` units, `done` of which an earlier attempt finished; bars may nest."""
        ...

    def say(self, text: str) -> None:
        """One line that stays, e.g. that a stage is skipped because it is finished."""
        ...

    def warn(self, text: str) -> None:
        """One line about something wrong that did not stop the run."""
        ...


@dataclass(frozen=True)
class StageContext:
    """Everything a stage may touch."""

    recipe: Recipe
    run: Run
    tracker: Tracker
    progress: Progress

    def seed(self, *names: object) -> int:
        """The seed of the stream called `names` in this run."""
        return derive_seed(self.recipe.seed, *names)


class RecipeRunner(Protocol):
    """The shape of `deedrl.pipeline.stages.run_recipe`, which the command line calls.

    It runs the stages called `only` (None: all) in the recipe's order, skips those `run.finished` knows, resumes
    inside an interrupted one, and writes ``summary.json`` whenever an evaluation ends.
    """

    def __call__(
        self, recipe: Recipe, run: Run, progress: Progress, *, only: Collection[str] | None = None
    ) -> None: ...
