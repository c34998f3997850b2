from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from deedrl.types import Action, Completion, Failure, Step, TerminationReason, ToolOutput, Trajectory, Verdict


def build_step(
    index: int, tool: str | None = "look", *, ok: bool = True, tier: str = "strict", tokens: int = 0, **fields: Any
) -> Step:
    """A call of `tool`, or with None a completion that was rejected."""
    if tool is None:
        action = Action(tier="reject", error="no action found")
    else:
        action = Action(tool_name=tool, tier=tier, **fields)
    return Step(
        index=index,
        observation="",
        completion=Completion(text="", token_ids=tuple(range(tokens))),
        action=action,
        tool_output=None if tool is None else ToolOutput(text="text", ok=ok),
    )


def build_episode(tools: Sequence[str | None] = ("look",), verdict: Verdict | None = None, **fields: Any) -> Trajectory:
    steps = fields.pop("steps", None) or tuple(build_step(index, tool) for index, tool in enumerate(tools))
    return Trajectory(episode_id="e", task_id="t", steps=steps, verdict=verdict, **fields)


@pytest.fixture(scope="session")
def step() -> Callable[..., Step]:
    return build_step


@pytest.fixture(scope="session")
def episode() -> Callable[..., Trajectory]:
    return build_episode


@pytest.fixture(scope="session")
def errored() -> Trajectory:
    return Trajectory(
        episode_id="lost",
        task_id="t",
        termination=TerminationReason.ENVIRONMENT_ERROR,
        failure=Failure(kind="RuntimeError", phase="reset", message="no disk"),
    )
