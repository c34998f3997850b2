"""A counter to be set to a goal: the smallest job that has state, a read tool, a write tool and an end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from deedrl.environments.environment import Environment
from deedrl.errors import ToolError
from deedrl.policies.policy import Policy
from deedrl.policies.scripted import Line, ScriptedPolicy
from deedrl.rewards.rubric import Rubric, default_rubric
from deedrl.rollouts.runner import EpisodeSpec, FailurePolicy, Limits, run_episodes_sync
from deedrl.tools.tool import tool
from deedrl.types import Action, Task, Trajectory, Verdict


class CounterDesk(Environment):
    """Set the counter to the number the task asks for, then finish."""

    instructions = "You keep a counter."
    max_steps = 8
    blocking = False

    def setup(self, task: Task) -> None:
        self.value = int(task.initial_state.get("value", 0))
        self.crash = bool(task.initial_state.get("crash"))

    def verify(self, task: Task) -> Verdict:
        solved = self.value == task.goal_state.get("value", 3)
        return Verdict(solved=solved, progress=float(solved))

    def state_hash(self) -> str:
        return str(self.value)

    def demonstrate(self, task: Task) -> Sequence[Action]:
        goal = task.goal_state["value"]
        return (
            Action(tool_name="set_value", parameters={"value": goal}, reasoning="The task says so."),
            Action(tool_name="finish", reasoning="Done."),
        )

    @tool
    def read_value(self, label: str = "", unit: str = "") -> str:
        """Reads the counter. It changes nothing."""
        return f"the value is {self.value}"

    @tool
    def set_value(self, value: int) -> str:
        """Sets the counter."""
        if self.crash:
            raise RuntimeError("the disk is on fire")
        if value < 0:
            raise ToolError("value must not be negative")
        self.value = value
        return f"value set to {value}"

    @tool(ends_episode=True)
    def finish(self) -> str:
        """Ends the job."""
        return "finished"


class HangingDesk(CounterDesk):
    """Has tools that do not come back in time, each in another way."""

    blocking = True

    @tool(timeout_s=0.05)
    def spin(self) -> str:
        """Never returns, in Python."""
        while True:
            time.sleep(0.005)

    @tool(timeout_s=0.05)
    async def sleep_async(self) -> str:
        """Never returns, as a coroutine."""
        import asyncio

        await asyncio.sleep(3600)
        return "never"

    @tool(timeout_s=0.05)
    def stubborn(self) -> str:
        """Ignores every attempt to stop it, for a while."""
        end = time.monotonic() + 2.0
        while time.monotonic() < end:
            try:
                time.sleep(0.005)
            except BaseException:  # noqa: BLE001
                continue
        return "at last"

    @tool(timeout_s=5.0)
    def slow(self, seconds: float) -> str:
        """Takes its time."""
        time.sleep(seconds)
        return "done"


def call(tool_name: str, **parameters: Any) -> Action:
    return Action(tool_name=tool_name, parameters=parameters)


SOLUTION: tuple[Action, ...] = (call("set_value", value=3), call("finish"))


def make_task(name: str = "task", **initial_state: Any) -> Task:
    return Task.create(f"Set the counter to 3. ({name})", goal_state={"value": 3}, initial_state=initial_state)


def make_specs(count: int, **fields: Any) -> list[EpisodeSpec]:
    """`count` siblings of one task unless a task is given."""
    fields.setdefault("task", make_task())
    return [EpisodeSpec(episode_id=f"e{index}", seed=index, **fields) for index in range(count)]


def environment_threads() -> list[str]:
    """Names of the environment threads alive after those that were told to end had half a second to do so."""
    names: list[str] = []
    for _ in range(50):
        names = [thread.name for thread in threading.enumerate() if thread.name.startswith("deedrl-")]
        if not names:
            break
        time.sleep(0.01)
    return names


def play_many(
    specs: Sequence[EpisodeSpec],
    script: Policy | Sequence[Line] | Callable[..., Line] = SOLUTION,
    environment: Callable[[], Environment] = CounterDesk,
    limits: Limits | None = None,
    failures: FailurePolicy | None = None,
    rubric: Rubric | None = None,
    **options: Any,
) -> list[Trajectory]:
    policy = script if hasattr(script, "complete") else ScriptedPolicy(script)  # type: ignore[arg-type]
    return run_episodes_sync(
        specs,
        environment=environment,
        policy=policy,  # type: ignore[arg-type]
        rubric=rubric or default_rubric(),
        limits=limits or Limits(),
        failures=failures or FailurePolicy(),
        **options,
    )


def play_one(script: Any = SOLUTION, *, task: Task | None = None, **options: Any) -> Trajectory:
    [trajectory] = play_many(make_specs(1, task=task or make_task()), script, **options)
    return trajectory


class Kit:
    """What the tests of this folder share."""

    CounterDesk = CounterDesk
    HangingDesk = HangingDesk
    SOLUTION = SOLUTION
    lenient = FailurePolicy(retries=0, max_failure_share=1.0)
    tool = staticmethod(tool)
    call = staticmethod(call)
    make_task = staticmethod(make_task)
    make_specs = staticmethod(make_specs)
    play_many = staticmethod(play_many)
    play_one = staticmethod(play_one)
    environment_threads = staticmethod(environment_threads)


@pytest.fixture(scope="session")
def kit() -> type[Kit]:
    return Kit
