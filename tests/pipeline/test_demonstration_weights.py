"""How often each family is demonstrated, and who is told of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playing import play

from deedrl.errors import ConfigError
from deedrl.pipeline.recipe import recipe_from
from deedrl.pipeline.run import EVENTS, finished_stages, read_events
from deedrl.reports.data import report_data


def collected(taught: dict[str, Any], folder: Path, **settings: Any) -> dict[str, Any]:
    data = taught | {
        "environment": {"ref": "deedrl/SupportDesk-v0", "difficulties": ["easy"]},
        "tasks": {"train": 140, "validation": 7, "test": 7, "test_unseen": 0},
        "limits": {"max_steps": 4},
        "stages": [{"stage": "cold_start", "tasks": 0, **settings}],
    }
    play(folder, recipe_from(data))
    events, _ = read_events(folder / EVENTS)
    return dict(finished_stages(events)["cold_start"].metrics)


def test_a_family_is_demonstrated_as_often_as_its_weight_says(taught: dict[str, Any], tmp_path: Path) -> None:
    found = collected(taught, tmp_path / "run", demonstrations=50, demonstration_weights={"window": 0.25})
    assert found["families"].pop("window") == 2
    assert set(found["families"].values()) == {8}
    assert dict(report_data(tmp_path / "run").taught) == found["families"] | {"window": 2}


def test_without_weights_all_families_are_demonstrated_alike(taught: dict[str, Any], tmp_path: Path) -> None:
    assert set(collected(taught, tmp_path / "run", demonstrations=49)["families"].values()) == {7}


def test_a_family_that_is_not_there_is_an_error_that_names_those_that_are(
    taught: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"demonstration_weights: expected families .*status.*; got windows"):
        collected(taught, tmp_path / "run", demonstrations=7, demonstration_weights={"windows": 0.25})
