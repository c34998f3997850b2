"""An environment that counts, for tests."""

from __future__ import annotations

import random
from typing import Any

from deedrl.environments.environment import Environment
from deedrl.errors import ToolError
from deedrl.tools.tool import tool
from deedrl.types import Action, Split, Task


class Counter(Environment):
    """Counts to the task's number; no tool ends the episode, so the goal does."""

    max_steps = 4

    def setup(self, task: Task) -> None:
        self.count = task.initial_state.get("start", 0)

    @tool
    def add(self, amount: int) -> Any:
        """Adds to the count."""
        if amount < 0:
            raise ToolError("amounts go up only")
        self.count += amount
        return self.count

    @tool
    def crash(self) -> str:
        raise RuntimeError("broken")

    @tool
    def flood(self) -> bytes:
        return b"\xff" * 10_000_000

    def verify(self, task: Task) -> bool:
        return bool(self.count == task.goal_state.get("count", 3))

    @classmethod
    def generate_tasks(cls, split: Split, count: int, seed: int) -> list[Task]:
        source = random.Random(f"{split}{seed}")
        goals = [source.randrange(2, 10**6) for _ in range(count)]
        return [Task.create(f"Count to {goal}", goal_state={"count": goal}, split=split) for goal in goals]


class Finisher(Counter):
    """The same with a tool that ends the episode."""

    @tool(ends_episode=True)
    def finish(self, sure: bool = True) -> str:
        if not sure:
            raise ToolError("come back when you are")
        return "bye"


THREE = Task.create(prompt="Count to 3", goal_state={"count": 3})


def add(amount: Any) -> Action:
    return Action(tool_name="add", parameters={"amount": amount})


def started(cls: type[Environment], task: Task = THREE) -> Environment:
    environment = cls()
    environment.reset(seed=1, options={"task": task})
    return environment
