from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deedrl.pipeline.recipe import load_recipe
from deedrl.pipeline.run import EVENTS

Command = Callable[..., int]


def test_profile_stages_of_the_recipe_run_in_its_folder(command: Command, stages: Any, recipe_file: Path) -> None:
    recipe_file.write_text(recipe_file.read_text() + "  - {stage: profile, name: again}\n  - stage: profile\n")
    assert command("profile", recipe_file, "--run", "r", "--stage", "again", "-q") == 0
    assert stages.ran == ["again"]
    assert command("profile", "--run", "r", "-q") == 0
    assert stages.ran == ["again", "profile"]


def test_a_recipe_without_one_is_profiled_beside_its_run(
    command: Command, stages: Any, recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("profile", recipe_file, "stages.profile.attempts=8", "seed=5", "-q") == 0
    assert stages.ran == ["profile"]
    recipe = load_recipe(tmp_path / "runs" / "tiny-profile-base" / "recipe.yaml")
    assert [(stage.kind, stage.attempts) for stage in recipe.stages] == [("profile", 8)]
    assert (recipe.seed, recipe.model.start_adapter) == (5, None)
    assert "Profile: runs/tiny-profile-base" in capsys.readouterr().out


def test_the_policy_of_a_run_is_profiled_in_a_folder_named_after_it(
    command: Command, stages: Any, recipe_file: Path, tmp_path: Path
) -> None:
    command("run", recipe_file, "-o", "r", "-q")
    (tmp_path / "r" / "adapter").mkdir()
    with (tmp_path / "r" / EVENTS).open("a") as events:
        for version in ("sft:2", "grpo:10"):
            result = {"event": "stage_finished", "time": 0, "stage": version, "seconds": 1, "attempt": 1}
            events.write(json.dumps(result | {"metrics": {"policy_version": version}}) + "\n")
    assert command("profile", "--run", "r", "-q") == 0
    recipe = load_recipe(tmp_path / "r-profile-grpo-10" / "recipe.yaml")
    assert recipe.model.start_adapter == str(tmp_path / "r" / "adapter")
    assert command("profile", "--run", "r", "--adapter", "other", "-q") == 0
    assert load_recipe(tmp_path / "r-profile-base" / "recipe.yaml").model.start_adapter == "other"


def test_neither_recipe_nor_run_is_code_2(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("profile") == 2
    assert "expected a recipe or --run" in capsys.readouterr().err
