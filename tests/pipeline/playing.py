"""Runs of recipes for tests."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from deedrl.pipeline.recipe import Recipe
from deedrl.pipeline.run import Run
from deedrl.pipeline.stages import run_recipe
from deedrl.reports.progress import make_progress


def play(folder: Path, recipe: Recipe, progress: Any = None, only: Collection[str] | None = None) -> Path:
    """The folder of a run of all stages, or of those called `only`; quiet unless `progress` is given."""
    with Run.open(folder, recipe) as run:
        run_recipe(recipe, run, progress or make_progress("quiet"), only=only)
    return folder


@contextmanager
def single_thread() -> Iterator[None]:
    """One thread for torch in fixtures of the session, which come before a module's `one_thread`."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
