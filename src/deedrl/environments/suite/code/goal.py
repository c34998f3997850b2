"""What a program asks for: hidden tests that pass, and for a rename names that are there and names that are gone."""

from __future__ import annotations

import msgspec

from deedrl.errors import TaskError
from deedrl.types import Record, Task


class Fix(Record, frozen=True, kw_only=True):
    """One line of the right program that differs from the one given."""

    path: str
    line: int
    """From 1."""
    text: str
    reasoning: str = ""
    look: str = ""
    """A test that has to be read to know it."""


class Goal(Record, frozen=True, kw_only=True):
    """The right end of a repair; stored as ``task.goal_state`` and never shown to an agent."""

    hidden: str
    """Text of the tests that run outside the agent's reach."""
    present: dict[str, tuple[str, ...]] = {}
    """File → names that it must define."""
    absent: dict[str, tuple[str, ...]] = {}
    """File → names that must not occur in it any more."""
    fixes: tuple[Fix, ...] = ()
    """The shortest right way; empty if there is no demonstration."""


def read_goal(task: Task) -> Goal:
    """The goal of `task`; `TaskError` if ``goal_state`` is not one of a repair."""
    try:
        return msgspec.convert(task.goal_state, Goal)
    except msgspec.ValidationError as error:
        raise TaskError(f"task {task.id}: goal_state is not a goal of a code repair: {error}") from error
