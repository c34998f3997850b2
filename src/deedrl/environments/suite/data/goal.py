"""What a data task asks for: an answer, and what must have been read before it is given."""

from __future__ import annotations

from typing import Any

import msgspec

from deedrl.errors import TaskError
from deedrl.rewards.answers import Expected, same_answer
from deedrl.types import Action, Record, Task


class Call(Record, frozen=True, kw_only=True):
    """One step of the demonstration."""

    tool_name: str
    parameters: dict[str, Any]
    reasoning: str = ""


class Goal(Record, frozen=True, kw_only=True):
    """The right end of a data task; stored as ``task.goal_state`` and never shown to an agent."""

    answer: Expected
    evidence: list[str] = []
    """What must have been read before the answer: ``table.column``, ``log:file`` or ``note``."""
    way: list[Call] = []
    """Calls that lead to the answer, the last one of `answer`; empty if nobody wrote them down."""

    def actions(self) -> list[Action]:
        """The demonstration."""
        return [
            Action(tool_name=call.tool_name, parameters=dict(call.parameters), reasoning=call.reasoning)
            for call in self.way
        ]


def read_goal(task: Task) -> Goal:
    """The goal of `task`; `TaskError` if ``goal_state`` is not one of this desk."""
    try:
        goal = msgspec.convert(task.goal_state, Goal)
        same_answer("", goal.answer)
    except (msgspec.ValidationError, TaskError) as error:
        raise TaskError(f"task {task.id}: goal_state is not a goal of the data desk: {error}") from error
    return goal
