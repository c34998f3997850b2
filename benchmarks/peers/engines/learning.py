"""What the engines that learn share: DeedRL's session for the workload's recipe, and a clock on a part of a step."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

# A peer's environment has what DeedRL needs, not DeedRL.
sys.path.append(str(Path(__file__).resolve().parents[3] / "src"))

from deedrl.pipeline.context import StageContext
from deedrl.pipeline.grpo_settings import Grpo
from deedrl.pipeline.recipe import recipe_from
from deedrl.pipeline.run import Run
from deedrl.pipeline.session import Session
from deedrl.tracking.tracker import Tracker

T = TypeVar("T")


class Quiet:
    """A progress that shows nothing but what is wrong."""

    def bar(self, title: str, total: int, unit: str, done: int = 0) -> AbstractContextManager[Quiet]:
        return nullcontext(self)

    def advance(self, count: int = 1, **figures: object) -> None: ...

    def say(self, text: str) -> None: ...

    def warn(self, text: str) -> None:
        print(text, file=sys.stderr)


@contextmanager
def session_of(work: dict[str, Any], adapter: str) -> Iterator[tuple[Session, Grpo]]:
    """A session that begins with `adapter`, and the recipe's only stage; what it writes is removed at the end."""
    recipe = recipe_from(work["recipe"], [f"model.start_adapter={adapter}"])
    (stage,) = recipe.stages
    assert isinstance(stage, Grpo)
    with tempfile.TemporaryDirectory(prefix="peer-") as folder, Run.open(Path(folder) / "run", recipe) as run:
        yield Session(StageContext(recipe=recipe, run=run, tracker=Tracker([]), progress=Quiet())), stage


class Clock:
    """Adds up the wall time of the functions it is put on."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def on(self, function: Callable[..., T]) -> Callable[..., T]:
        def timed(*args: Any, **kwargs: Any) -> T:
            began = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self._seconds += time.perf_counter() - began

        return timed

    def take(self) -> float:
        """Seconds since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds
