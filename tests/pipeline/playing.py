"""Runs of recipes for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deedrl.pipeline.recipe import Recipe
from deedrl.pipeline.run import Run
from deedrl.pipeline.stages import run_recipe
from deedrl.reports.progress import make_progress


def play(folder: Path, recipe: Recipe, progress: Any = None) -> Path:
    """The folder of a run of all stages, quiet unless `progress` is given."""
    with Run.open(folder, recipe) as run:
        run_recipe(recipe, run, progress or make_progress("quiet"))
    return folder
