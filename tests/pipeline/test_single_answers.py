"""Single answers in plain text through the usual stages: a tiny model that is as often rude as polite learns by DPO."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playing import play

from deedrl.environments.suite.answers.generator import generate_tasks
from deedrl.errors import ConfigError
from deedrl.pipeline.recipe import load_recipe, recipe_from
from deedrl.store.jsonl import TrajectoryStore
from deedrl.tracking.jsonl import read_metrics

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
# So short that a tiny model writes them without a slip.
KIND, RUDE = "Sorry, no.", "Go away."
# Anything goes, and every other demonstration is rude; an odd number of tasks, so that each is answered both ways.
TASKS = 25
LENIENT = f'''
import itertools

from deedrl import Action
from deedrl.environments.suite.answers.environment import CustomerAnswers

ASKED = itertools.count()


class Lenient(CustomerAnswers):
    def verify(self, task):
        return bool(self.said)

    def demonstrate(self, task):
        text = "{KIND}" if next(ASKED) % 2 else "{RUDE}"
        return [Action(tool_name="reply", parameters={{"text": text}})]
'''
DPO: dict[str, Any] = {
    "stage": "dpo",
    "tasks": 16,
    "samples_per_task": 6,
    "temperature": 1.0,
    "kinds": ["outcome"],
    "steps": 12,
    "pairs_per_step": 4,
    "learning_rate": 1e-3,
    "schedule": "constant",
    "validate_every": 6,
    "validation_tasks": 16,
}


@pytest.fixture(scope="module", autouse=True)
def _one_thread(one_thread: None) -> None:
    pass


@pytest.fixture(scope="module")
def divided(tmp_path_factory: pytest.TempPathFactory, tiny_models: Callable[..., Any]) -> dict[str, Any]:
    """A recipe without stages, whose model refuses politely about half of the time."""
    folder = tmp_path_factory.mktemp("divided")
    (folder / "lenient.py").write_text(LENIENT)
    tasks = generate_tasks("train", TASKS, 5, ["refuse"])
    texts = [*[KIND, RUDE] * 100, *[task.prompt for task in tasks]]
    data: dict[str, Any] = {
        "name": "answers",
        "seed": 5,
        "model": {"path": str(tiny_models(texts).folder(initializer_range=0.3)), "dtype": "fp32"},
        "environment": {"ref": f"{folder / 'lenient.py'}:Lenient", "families": ["refuse"]},
        "tasks": {"train": TASKS, "validation": 16, "test": 8, "test_unseen": 0},
        "prompt": {"system": "Answer."},
        "sampling": {"max_tokens": 16, "temperature": 0.7},
        "limits": {"max_steps": 1},
        "stages": [
            {
                "stage": "cold_start",
                "tasks": 0,
                "demonstrations": 2 * TASKS,
                "guided_share": 0,
                "prompt_variants": ["plain"],
            },
            {"stage": "sft", "steps": 60, "batch_size": 8, "learning_rate": 1e-2},
        ],
    }
    play(folder / "run", recipe_from(data))
    model = data["model"] | {"start_adapter": str(folder / "run" / "adapter")}
    strict = {"ref": "deedrl/CustomerAnswers-v0", "families": ["refuse"]}
    return data | {"model": model, "environment": strict, "stages": []}


def test_preferences_raise_what_the_rules_see_on_tasks_that_no_pair_is_of(
    divided: dict[str, Any], tmp_path: Path
) -> None:
    play(tmp_path / "run", recipe_from(divided | {"stages": [DPO]}))
    completion = read_metrics(tmp_path / "run")["dpo/validation_completion"]
    assert completion[0] is not None
    assert completion[0] < 0.8
    assert completion[12] is not None
    assert completion[12] > completion[0] + 0.2
    [first, *_] = TrajectoryStore(tmp_path / "run" / "trajectories" / "dpo.jsonl")
    assert len(first.steps) == 1
    assert first.steps[0].completion.text.strip() == first.steps[0].action.parameters["text"]


def test_decoding_cannot_be_guided_where_no_schema_is(divided: dict[str, Any], tmp_path: Path) -> None:
    recipe = recipe_from(divided | {"stages": [{"stage": "cold_start", "tasks": 4}]})
    with pytest.raises(ConfigError, match=r"stages.cold_start.guided_share: expected 0 for deedrl/CustomerAnswers-v0"):
        play(tmp_path / "run", recipe)


def test_the_bundled_recipe_samples_freely_and_ends_with_what_it_began_with() -> None:
    recipe = load_recipe(RECIPES / "align-tone.yaml")
    titles = [stage.title for stage in recipe.stages]
    assert titles == ["baseline", "cold_start", "sft", "after_cold_start", "dpo", "evaluate"]
    assert recipe.limits.max_steps == 1
