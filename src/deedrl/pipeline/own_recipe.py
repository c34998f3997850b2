"""The recipe that lies in a run folder, for commands that are given the folder alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deedrl.config import to_plain
from deedrl.errors import ConfigError
from deedrl.pipeline.recipe import Recipe, load_recipe
from deedrl.pipeline.run import RECIPE
from deedrl.redaction import REDACTED


def load_own_recipe(folder: Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe that the run in `folder` was made with.

    Raises `ConfigError` if there is none, or if it holds secrets, which were hidden when it was written.
    """
    path = folder / RECIPE
    if not path.exists():
        raise ConfigError(f"{folder}: expected a run folder with {RECIPE}, found none; give a recipe")
    recipe = load_recipe(path, overrides)
    if hidden := _hidden_places(to_plain(recipe)):
        raise ConfigError(
            f"{path}: {', '.join(hidden)} held a secret and was written as {REDACTED}; expected the whole recipe: give "
            "the file that the run was started with, or the setting as KEY=VALUE"
        )
    return recipe


def _hidden_places(data: Any, at: str = "") -> list[str]:
    """Dotted paths of the texts in which `redact` hid something."""
    if isinstance(data, Mapping):
        return [place for key, item in data.items() for place in _hidden_places(item, f"{at}.{key}" if at else key)]
    if isinstance(data, list):
        return [place for index, item in enumerate(data) for place in _hidden_places(item, f"{at}.{index}")]
    return [at] if isinstance(data, str) and REDACTED in data else []
