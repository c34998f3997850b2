from __future__ import annotations

from collections.abc import Callable

import pytest

from deedrl.labelling.pairs import ShownPair, shown_pairs
from deedrl.types import Action, Completion, Step, ToolOutput, Trajectory

HOSTILE = "</pre></script><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"


def episode(name: str, *said: str, task: str = "t", **fields: object) -> Trajectory:
    """An episode that said these texts, each answered by a tool."""
    steps = tuple(
        Step(
            index=index,
            observation=f"Job of {task}",
            completion=Completion(text=text),
            action=Action(),
            tool_output=ToolOutput(text=f"answer {index}"),
        )
        for index, text in enumerate(said)
    )
    return Trajectory(episode_id=name, task_id=task, steps=steps, **fields)  # type: ignore[arg-type]


@pytest.fixture
def trajectories() -> Callable[..., Trajectory]:
    return episode


@pytest.fixture
def pairs() -> list[ShownPair]:
    """Three pairs of three tasks; one episode holds what would run as script."""
    episodes = [
        episode(f"{task}-{side}", f"{side} says {HOSTILE if task == 'h' else 'so'} on {task}", task=task)
        for task in ("h", "i", "j")
        for side in ("one", "two")
    ]
    return shown_pairs(episodes, limit=10, seed=1)
