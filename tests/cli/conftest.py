from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from deedrl.cli.main import main
from deedrl.pipeline.context import Progress
from deedrl.pipeline.recipe import Recipe
from deedrl.pipeline.run import Run

RECIPE = """
name: tiny
seed: 3
stages:
  - stage: baseline
  - {stage: sft, steps: 2}
  - stage: evaluate
"""
FIGURE = {"value": 0.5, "numerator": 5, "denominator": 10, "low": 0.24, "high": 0.76}
METRICS: dict[str, Any] = {
    "completion_rate": FIGURE,
    "mean_steps": {**FIGURE, "value": 2.5},
    "tool_call_accuracy": FIGURE,
    "format_compliance": FIGURE,
    "episodes": 10,
    "unscored": 0,
    "errored": 0,
}


class Stages:
    """Stands in for the stage bodies: notes what ran, finishes each stage, and fails where a test says so."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.before: Callable[[str], None] = lambda name: None

    def run_recipe(self, recipe: Recipe, run: Run, progress: Progress, *, only: Collection[str] | None = None) -> None:
        for stage in recipe.stages:
            if run.finished(stage.title) or (only is not None and stage.title not in only):
                continue
            run.start_stage(stage.title)
            with progress.bar(stage.title, total=2, unit="episodes") as bar:
                self.before(stage.title)
                bar.advance(2, completion=0.5)
            run.finish_stage(stage.title, 0.1, {"episodes": 2})
            self.ran.append(stage.title)
            run.write_json("summary.json", {"before": METRICS, "after": METRICS, "stages": []})


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> Stages:
    fake = Stages()
    module = ModuleType("deedrl.pipeline.stages")
    module.run_recipe = fake.run_recipe  # type: ignore[attr-defined]
    module.export_policy = lambda run, to, merge: (to.mkdir(), (to / f"merged-{merge}").touch())  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "deedrl.pipeline.stages", module)
    return fake


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(RECIPE)
    return path


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., int]:
    """Runs the command line in an empty folder and returns its exit code."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> int:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        code = ended.value.code
        return code if isinstance(code, int) else 0 if code is None else 1

    return call
