from __future__ import annotations

from typing import Any

import pytest

from deedrl.pipeline.recipe import Recipe, recipe_from


def recipe_data(**changes: Any) -> dict[str, Any]:
    stages = [{"stage": "baseline"}, {"stage": "sft", "steps": 2}, {"stage": "grpo"}, {"stage": "evaluate"}]
    return {"name": "tiny", "seed": 3, "stages": stages, **changes}


@pytest.fixture
def recipe() -> Recipe:
    return recipe_from(recipe_data())
