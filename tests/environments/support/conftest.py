from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from deedrl.environments.suite.support.environment import SupportDesk
from deedrl.types import Action, Task, Verdict


@pytest.fixture
def desk() -> Iterator[SupportDesk]:
    environment = SupportDesk()
    yield environment
    environment.close()


@pytest.fixture
def play(desk: SupportDesk) -> Callable[[Task, Sequence[Action]], Verdict]:
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
def scarf() -> Task:
    """Mia's scarf (4821, 24.95) is lost; Leo's mug (7310, 12.45) was delivered 20 days ago; both may return 14 days."""
    return Task.create(
        prompt="Delivery trouble with order 4821. Refund the scarf.",
        initial_state={
            "desk": [["2024-03-21", "days"]],
            "customers": [[1, "Mia", "mia42@example.com", ""], [2, "Leo", "leo10@example.com", ""]],
            "orders": [["4821", 1, "clothing", ""], ["7310", 2, "kitchen", ""]],
            "order_items": [[1, "4821", "scarf", 2495], [2, "7310", "mug", 1245]],
            "shipments": [[1, "4821", None, "lost", "", None], [2, "7310", None, "delivered", "", "2024-03-01"]],
            "policies": [["clothing", 14, None], ["kitchen", 14, None]],
            "refunds": [],
            "tickets": [[1, 1, "open", None, None, None, None]],
        },
        goal_state={"decision": "refund", "order_id": "4821", "amount_cents": 2495, "cause": "lost"},
        family="status",
        shortest_steps=2,
    )
