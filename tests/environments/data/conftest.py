from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from deedrl.environments.suite.data.environment import DataDesk
from deedrl.types import Action, Task, Verdict


@pytest.fixture
def desk() -> Iterator[DataDesk]:
    environment = DataDesk()
    yield environment
    environment.close()


@pytest.fixture
def play(desk: DataDesk) -> Callable[[Task, Sequence[Action]], Verdict]:
    """Plays actions from a fresh episode until it ends or they run out; returns the verdict then."""

    def play_actions(task: Task, actions: Sequence[Action]) -> Verdict:
        desk.reset(options={"task": task})
        for action in actions:
            _, _, terminated, truncated, _ = desk.step(action)
            if terminated or truncated:
                break
        return desk.current_verdict()

    return play_actions


@pytest.fixture
def act() -> Callable[..., Action]:
    def make(tool_name: str, **parameters: Any) -> Action:
        return Action(tool_name=tool_name, parameters=parameters)

    return make


@pytest.fixture
def towns() -> Task:
    """Orders from Bonn bring 31.50 euros together; the note, the table and the log must be read."""
    return Task.create(
        prompt="How much did orders from Bonn bring? Mind the note.",
        initial_state={
            "tables": {
                "orders": {
                    "columns": ["id", "city", "euros"],
                    "rows": [[1, "Bonn", 20.25], [2, "Kiel", 7.0], [3, "Bonn", 11.25], [4, None, None]],
                }
            },
            "logs": {"shop.log": ["1 ERROR basket", "2 INFO basket", "3 ERROR login"]},
            "note": "All is well.",
        },
        goal_state={
            "answer": {"kind": "number", "value": "31.50", "units": {"EUR": 1, "cents": 0.01}},
            "evidence": ["note", "orders.city", "orders.euros", "log:shop.log"],
        },
        family="total",
    )
