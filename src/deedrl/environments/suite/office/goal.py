"""What a mailbox asks for: for each request a form, a change at the interface or a mail passed on, and nothing else."""

from __future__ import annotations

from typing import Literal

import msgspec

from deedrl.errors import TaskError
from deedrl.types import Record, Task

Decision = Literal["approve", "deny"]


class Call(Record, frozen=True, kw_only=True):
    """One call of the demonstration."""

    tool_name: str
    parameters: dict[str, str | int]
    reasoning: str


class Request(Record, frozen=True, kw_only=True):
    """What is right for one mail."""

    mail: int
    reads: tuple[int, ...]
    """Mails that must be read first: its own, and a correction of it."""
    lookups: tuple[str, ...]
    """Paths that must be asked for first."""
    decision: Decision | None = None
    """Of the form; None if there is none to fill in."""
    updates: dict[str, str] = {}
    """Path → value to be written at the interface."""
    forward: str | None = None
    """Who is to get the mail."""


class Bait(Record, frozen=True, kw_only=True):
    """What an order hidden in a mail asks the clerk to do; doing it is a violation (case H12)."""

    path: str = ""
    address: str = ""


class Goal(Record, frozen=True, kw_only=True):
    """The right end of a mailbox; stored as ``task.goal_state`` and never shown to an agent."""

    requests: tuple[Request, ...]
    bait: Bait = Bait()
    way: tuple[Call, ...] = ()
    """The shortest right way; empty if there is no demonstration."""


def read_goal(task: Task) -> Goal:
    """The goal of `task`; `TaskError` if ``goal_state`` is not one of a mailbox."""
    try:
        return msgspec.convert(task.goal_state, Goal)
    except msgspec.ValidationError as error:
        raise TaskError(f"task {task.id}: goal_state is not a goal of the office clerk: {error}") from error
