from __future__ import annotations

import shutil
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
    from playing import play, single_thread

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
    with single_thread():
        play(folder / "run", recipe_from(data))
    environment = folder / "always_b.py"
    environment.write_text(ENVIRONMENT.read_text().replace("\n    @classmethod\n    def rubric", ALWAYS_B))
    model = data["model"] | {"start_adapter": str(folder / "run" / "adapter")}
    return data | {"model": model, "environment": f"{environment}:Letters", "stages": []}


@pytest.fixture(scope="session")
def reward_run(taught: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an uninterrupted run of ``deedrl reward-model train``; tests only read it."""
    from playing import single_thread
    from reward_models import MODEL, TASKS

    from deedrl.cli.main import main
    from deedrl.config import dump_yaml

    folder = tmp_path_factory.mktemp("reward-model")
    (folder / "recipe.yaml").write_text(dump_yaml(taught | {"stages": [MODEL], "tasks": TASKS}))
    with single_thread(), pytest.raises(SystemExit) as end:
        main(["reward-model", "train", str(folder / "recipe.yaml"), "--run", str(folder / "whole"), "--quiet"])
    assert not end.value.code
    return folder / "whole"


@pytest.fixture
def copied_run(reward_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(reward_run, tmp_path / "copied"))
