from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from deedrl.types import (
    Action,
    Completion,
    Failure,
    Provenance,
    Step,
    TerminationReason,
    ToolOutput,
    Trajectory,
    Verdict,
)

TOOLS = Provenance(tool_versions={"look": "1", "act": "1"})


def build_step(action: Action | None = None, *, ok: bool = True, text: str = "", tokens: int = 0) -> Step:
    action = Action(tool_name="look") if action is None else action
    return Step(
        index=0,
        observation="",
        completion=Completion(text=text, token_ids=tuple(range(tokens))),
        action=action,
        tool_output=ToolOutput(text="", ok=ok) if action.valid else None,
    )


def build_run(solved: bool | None = True, steps: Sequence[Step] | int = 1, **fields: Any) -> Trajectory:
    verdict = None if solved is None else Verdict(solved=solved, progress=float(solved))
    made = tuple(build_step() for _ in range(steps)) if isinstance(steps, int) else tuple(steps)
    return Trajectory(
        **{"episode_id": "e", "task_id": "t", "provenance": TOOLS, "verdict": verdict, **fields}, steps=made
    )


def build_errored(task_id: str = "t") -> Trajectory:
    return build_run(
        None,
        0,
        task_id=task_id,
        termination=TerminationReason.ENVIRONMENT_ERROR,
        failure=Failure(kind="RuntimeError", phase="reset", message="no disk"),
    )


@pytest.fixture(scope="session")
def step() -> Callable[..., Step]:
    return build_step


@pytest.fixture(scope="session")
def run() -> Callable[..., Trajectory]:
    return build_run


@pytest.fixture(scope="session")
def errored() -> Callable[..., Trajectory]:
    return build_errored
