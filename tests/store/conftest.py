from collections.abc import Callable

import pytest

from deedrl.types import (
    Action,
    Completion,
    Provenance,
    RewardBreakdown,
    Step,
    TermScore,
    ToolOutput,
    Trajectory,
    Verdict,
)


def build(episode_id: str = "e1", *, reward: float | None = 0.5, observation: str = "Order 7?", **fields) -> Trajectory:
    step = Step(
        index=0,
        observation=observation,
        completion=Completion(text="{}", token_ids=(5, 6, 7), logprobs=(-0.5, -0.25, -0.125), prompt_ids=(1, 2)),
        action=Action(tool_name="search_order", parameters={"order_id": 7}, reasoning="look it up"),
        tool_output=ToolOutput(text="shipped"),
    )
    defaults = {
        "task_id": "t1",
        "steps": (step,),
        "verdict": Verdict(solved=True, progress=1.0),
        "breakdown": RewardBreakdown(total=reward, terms={"outcome": TermScore(value=reward, weight=1.0)}),
        "provenance": Provenance(run_id="r1", config_hash="c1"),
    }
    return Trajectory(episode_id=episode_id, **(defaults | fields))


@pytest.fixture
def make() -> Callable[..., Trajectory]:
    """Builds a one-step trajectory; keyword arguments replace its fields."""
    return build
