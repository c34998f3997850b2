"""What an incident asks for, beside a healthy graph: the causes that may be named when it is closed."""

from __future__ import annotations

import msgspec

from deedrl.environments.suite.ops.graph import Cause
from deedrl.errors import TaskError
from deedrl.types import Record, Task


class Goal(Record, frozen=True, kw_only=True):
    """The right end of an incident; stored as ``task.goal_state`` and never shown to an agent."""

    alert: str
    """The service that the alert names."""
    roots: tuple[str, ...] = ()
    """Services at fault, in the order in which a search from the alert finds them; none in a false alarm."""
    causes: tuple[Cause, ...]
    """What was wrong; any of them may be named."""


def read_goal(task: Task) -> Goal:
    """The goal of `task`; `TaskError` if ``goal_state`` is not one of an incident."""
    try:
        return msgspec.convert(task.goal_state, Goal)
    except msgspec.ValidationError as error:
        raise TaskError(f"task {task.id}: goal_state is not a goal of the ops room: {error}") from error
