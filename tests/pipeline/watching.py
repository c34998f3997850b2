"""Progress for tests: quiet, keeps what it is told, and can interrupt a run."""

from __future__ import annotations

from typing import Any

from deedrl.reports.progress import make_progress


class Interruption(Exception):
    """What `Watching` raises."""


class Watching:
    """Keeps what is said and warned of; raises when `at` units of the bar `title` are done."""

    def __init__(self, title: str = "", at: int = 0) -> None:
        self._quiet = make_progress("quiet")
        self._title, self._left = title, at
        self.said: list[str] = []
        self.warnings: list[str] = []

    def bar(self, title: str, total: int, unit: str, done: int = 0) -> Any:
        return self if title == self._title else self._quiet.bar(title, total, unit, done)

    def __enter__(self) -> Watching:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def advance(self, count: int = 1, **figures: object) -> None:
        self._left -= count
        if self._left == 0:
            raise Interruption

    def say(self, text: str) -> None:
        self.said.append(text)

    def warn(self, text: str) -> None:
        self.warnings.append(text)
