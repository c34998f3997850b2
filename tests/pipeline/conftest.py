from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deedrl.pipeline.recipe import Recipe, recipe_from

ENVIRONMENT = Path(__file__).with_name("letters.py")
# Every task wants B, which the policy seldom says.
ALWAYS_B = """
    @classmethod
    def generate_tasks(cls, split: Split, count: int, seed: int) -> list[Task]:
        return [
            Task.create(
                f"Take {'AB'[number % 2]}.",
                initial_state={"split": split, "number": number},
                goal_state={"letter": "B"},
                split=split,
                shortest_steps=1,
            )
            for number in range(count)
        ]

    @classmethod
    def rubric"""


def recipe_data(**changes: Any) -> dict[str, Any]:
    stages = [{"stage": "baseline"}, {"stage": "sft", "steps": 2}, {"stage": "grpo"}, {"stage": "evaluate"}]
    return {"name": "tiny", "seed": 3, "stages": stages, **changes}


@pytest.fixture
def recipe() -> Recipe:
    return recipe_from(recipe_data())


@pytest.fixture(scope="session")
def taught(tmp_path_factory: pytest.TempPathFactory, tiny_models: Callable[..., Any]) -> dict[str, Any]:
    """A recipe without stages, whose model has learnt the format of an answer and mostly takes A."""
    import torch

    from deedrl.pipeline.run import Run
    from deedrl.pipeline.stages import run_recipe
    from deedrl.reports.progress import make_progress

    texts = ["Call choose with the letter.", "Answer every turn with one JSON object and nothing else:"]
    texts += ['{"reasoning":"I choose.","tool_name":"choose","parameters":{"letter":"A"}}'] * 20
    data = {
        "name": "letters",
        "seed": 5,
        "model": {"path": str(tiny_models(texts).folder(initializer_range=0.3)), "dtype": "fp32"},
        "environment": f"{ENVIRONMENT}:Letters",
        "tasks": {"train": 16, "validation": 4, "test": 4, "test_unseen": 3},
        "sampling": {"max_tokens": 32},
        "limits": {"max_steps": 2},
        "checkpoints": {"every_steps": 1},
        "stages": [
            {"stage": "cold_start", "tasks": 0, "demonstrations": 16},
            {"stage": "sft", "steps": 60, "batch_size": 8, "learning_rate": 1e-2},
        ],
    }
    folder = tmp_path_factory.mktemp("taught")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # fixtures of a module come after those of the session
    with Run.open(folder / "run", recipe_from(data)) as run:
        run_recipe(run.recipe, run, make_progress("quiet"))
    torch.set_num_threads(threads)
    environment = folder / "always_b.py"
    environment.write_text(ENVIRONMENT.read_text().replace("\n    @classmethod\n    def rubric", ALWAYS_B))
    model = data["model"] | {"start_adapter": str(folder / "run" / "adapter")}
    return data | {"model": model, "environment": f"{environment}:Letters", "stages": []}
