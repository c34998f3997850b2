"""A shelf, for tests of noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from deedrl import Environment, ToolError, tool
from deedrl.environments.noise import Noise, NoisyEnvironment
from deedrl.types import Action, Task


class Shelf(Environment):
    """Puts things on a shelf; looking shows one a line."""

    max_steps = 6

    def setup(self, task: Task) -> None:
        self.things = ["cup 1", "jug 2", "pot 3", "pan 4"]
        self.looks = 0

    @tool(read_only=True)
    def look(self, order: str = "up") -> str:
        """Lists things."""
        self.looks += 1
        return "\n".join(self.things)

    @tool
    def put(self, thing: str) -> str:
        """Puts a thing on the shelf."""
        if not thing:
            raise ToolError("name a thing")
        self.things.append(thing)
        return f"{thing} is on the shelf"

    @tool(ends_episode=True, timeout_s=0.4)
    def finish(self) -> str:
        """Ends the job."""
        return "done"

    def state_hash(self) -> str:
        return ",".join(self.things)

    def verify(self, task: Task) -> bool:
        return "bowl" in self.things


TASK = Task.create(prompt="Put a bowl on the shelf.", goal_state={"thing": "bowl"})
LOOK, FINISH = Action(tool_name="look"), Action(tool_name="finish")


def put(thing: str) -> Action:
    return Action(tool_name="put", parameters={"thing": thing})


def started(seed: int = 1, sleep: Callable[[float], object] = lambda _: None, **kinds: Any) -> NoisyEnvironment:
    environment = NoisyEnvironment(Shelf(), Noise(**kinds), sleep)
    environment.reset(seed=seed, options={"task": TASK})
    return environment
