"""A new project: its tests pass at once, it keeps the contract, and its recipe can be priced."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deedrl.cli.init import FILES, write_project
from deedrl.cli.main import app
from deedrl.environments.checker import check_environment
from deedrl.environments.loading import load_environment
from deedrl.errors import ConfigError
from deedrl.pipeline.recipe import load_recipe


def test_the_command_says_what_it_wrote_and_what_comes_next(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["init", str(tmp_path / "lending_desk")])
    assert done.exit_code == 0
    assert "lending_desk.py, test_lending_desk.py, recipe.yaml, README.md, .gitignore" in done.stdout.replace("\n", "")
    assert len(list((tmp_path / "lending_desk").iterdir())) == len(FILES)


def test_the_tests_of_a_new_project_pass_at_once(tmp_path: Path) -> None:
    write_project(tmp_path / "my_job")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", "."]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COV"))}
    ended = subprocess.run(
        command, cwd=tmp_path / "my_job", env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "5 passed" in ended.stdout


def test_a_new_project_keeps_the_contract_on_all_levels(tmp_path: Path) -> None:
    [path, *_] = write_project(tmp_path / "other_job")
    cls = load_environment(f"{path}:OtherJob")
    assert [(result.name, result.ok) for result in check_environment(cls, tasks=12).results if result.ok is False] == []
    assert {task.difficulty for task in cls.generate_tasks("test", 12, 0)} == {"easy", "medium"}


def test_the_recipe_is_sound(tmp_path: Path) -> None:
    write_project(tmp_path / "my_job")
    recipe = load_recipe(tmp_path / "my_job" / "recipe.yaml")
    assert recipe.environment.ref == "my_job.py:MyJob"
    assert [stage.kind for stage in recipe.stages] == ["baseline", "cold_start", "sft", "evaluate", "grpo", "evaluate"]


@pytest.mark.parametrize("name", ["My-Job", "1job", "class", "a b", "deedrl", "", "job.py"])
def test_what_cannot_be_a_module_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="expected a name of small letters"):
        write_project(tmp_path / "x" / name if name else Path("/"))
    assert not (tmp_path / "x").exists()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "my_job").mkdir()
    (tmp_path / "my_job" / "README.md").write_text("mine")
    with pytest.raises(ConfigError, match=r"has README\.md already, and nothing is overwritten"):
        write_project(tmp_path / "my_job")
    assert [path.name for path in (tmp_path / "my_job").iterdir()] == ["README.md"]


def test_templates_ship_with_the_package() -> None:
    """The project's templates ship with the package."""
    folder = Path(__import__("deedrl").__file__).parent / "cli" / "project"
    assert {path.name for path in folder.iterdir()} == set(FILES)
