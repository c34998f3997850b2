"""Signs of instability: each alarm by hand, at the step that crosses its threshold, from a run's metrics alone."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from playing import play
from watching import Interruption, Watching

from deedrl.cli.main import main
from deedrl.config import dump_yaml
from deedrl.errors import ConfigError
from deedrl.pipeline.bounds import training_findings
from deedrl.pipeline.checkpoint import CheckpointFolder
from deedrl.pipeline.recipe import load_recipe, recipe_from
from deedrl.pipeline.stability import (
    entropy_alarm,
    gradient_alarm,
    ratio_alarm,
    skipped_alarm,
    stability_alarms,
)
from deedrl.tracking.jsonl import JsonlSink, read_metrics
from deedrl.tracking.tracker import Tracker
from deedrl.training.kl_control import controlled_coefficient

RECIPES = Path(__file__).resolve().parents[2] / "recipes"

# ---------------------------------------------------------------- alarms


@pytest.mark.parametrize(
    ("entropy", "said"),
    [
        ([1.0, 1.2, 0.8, 0.24], "siblings become alike"),
        ([1.0, 1.2, 0.8, 0.5, 0.26], None),
        ([1.0, 1.2, 0.8, 0.2, 0.1], None),  # said a step ago
        ([1.0, 1.2, 0.8, 3.1], "ever more at random"),
        ([1.0, 1.2, 0.8, 3.1, 3.2], None),
        ([1.0, 0.1], None),  # too early to tell
        ([1.0, 1.2, 0.1, 0.1], "siblings become alike"),
        ([0.0, 0.0, 0.0, 0.0], None),
    ],
)
def test_entropy_far_from_where_it_began(entropy: list[float], said: str | None) -> None:
    found = entropy_alarm(entropy)
    assert found is None if said is None else said in str(found)


def test_ratios_far_from_one() -> None:
    assert "3.0% of action tokens" in str(ratio_alarm([0.0, 0.03]))
    assert ratio_alarm([0.0, 0.02]) is None
    assert ratio_alarm([0.03, 0.03]) is None, "said a step ago"


def test_a_gradient_many_times_the_usual_one() -> None:
    usual = [0.5, 0.6, 0.4, 0.5, 0.5]
    assert "the gradient norm is 3, 6 times its median of the 5 steps before" in str(gradient_alarm([*usual, 3.0]))
    assert gradient_alarm([*usual, 2.4]) is None
    assert gradient_alarm([*usual[1:], 3.0]) is None, "four steps are too few to know what is usual"
    assert gradient_alarm([0.0] * 5 + [1.0]) is None
    assert gradient_alarm([9.0] * 9 + [0.5] * 20 + [3.0]) is not None, "what was long ago is not usual"


def test_updates_that_were_left_out() -> None:
    assert "2 updates of this step were left out" in str(skipped_alarm([0.0, 2.0]))
    assert skipped_alarm([2.0, 0.0]) is None


def test_alarms_read_the_runs_metrics_up_to_the_step(tmp_path: Path) -> None:
    tracker = Tracker([JsonlSink(tmp_path)])
    for step, entropy in enumerate([1.0, 1.0, 1.0, 0.5, 0.1], start=1):
        tracker.log({"entropy": entropy, "ratio_outside": 0.0, "grad_norm": math.nan}, step=step, stage="grpo")
    tracker.log({"entropy": 0.1}, step=5, stage="other")
    assert [text[:20] for text in stability_alarms(tmp_path, "grpo", 5)] == ["the policy's entropy"]
    assert stability_alarms(tmp_path, "grpo", 4) == [], "what an interrupted attempt logged later does not count"
    assert stability_alarms(tmp_path, "grpo", 6) == [], "a step without figures says nothing of an earlier one"
    assert stability_alarms(tmp_path, "other", 5) == []
    assert stability_alarms(tmp_path / "none", "grpo", 5) == []


# ---------------------------------------------------------------- bounds


def findings(*stages: dict[str, Any], **changes: Any) -> list[str]:
    return training_findings(recipe_from({"name": "tiny", "stages": list(stages), **changes}))


def test_rates_are_bounded_where_all_weights_are_trained() -> None:
    stages = [
        {"stage": "sft", "steps": 1, "learning_rate": 2e-5},
        {"stage": "grpo", "learning_rate": 1e-5},
        {"stage": "ppo", "learning_rate": 5e-6},
        {"stage": "dpo", "tasks": 4, "steps": 1, "learning_rate": 1e-4},
        {"stage": "mine", "learning_rate": 1e-3},
    ]
    found = findings(*stages, model={"adapter": None})
    assert [text.split(".")[1] for text in found] == ["grpo", "dpo", "mine"]
    assert found[0].startswith("stages.grpo.learning_rate is 1e-05, above 5e-06, with all weights trained")
    assert findings(*stages) == [], "such rates are usual for adapters"


@pytest.mark.parametrize("stage", ["grpo", "ppo"])
def test_a_small_weight_of_kl_is_said(stage: str) -> None:
    [text] = findings({"stage": stage, "kl_coefficient": 0.0})
    assert text.startswith(f"stages.{stage}.kl_coefficient is 0, below 0.01: hardly anything holds")
    assert findings({"stage": stage, "kl_coefficient": 0.009}) != []
    assert findings({"stage": stage, "kl_coefficient": 0.01}) == []


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_bundled_recipes_are_within_bounds(path: Path) -> None:
    assert training_findings(load_recipe(path)) == []


def test_a_dry_run_says_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stages = [{"stage": "grpo", "learning_rate": 1e-4}]
    data = {"name": "tiny", "model": {"path": "embedded", "adapter": None}, "stages": stages}
    (tmp_path / "recipe.yaml").write_text(dump_yaml(data))
    with pytest.raises(SystemExit) as end:
        main(["run", str(tmp_path / "recipe.yaml"), "--dry-run"])
    assert not end.value.code
    assert "# warning stages.grpo.learning_rate is 0.0001" in capsys.readouterr().out


# ---------------------------------------------------------------- the weight of KL


STEPS = 3
GRPO: dict[str, Any] = {
    "stage": "grpo",
    "steps": STEPS,
    "tasks_per_step": 4,
    "group_size": 4,
    "learning_rate": 1e-3,
    "validate_every": 2,
    "validation_tasks": 2,
    "kl_target": 1e-3,
    "kl_gain": 2.0,
    "reasoning_check_every": 2,
}


@pytest.mark.usefixtures("one_thread")
def test_C17_the_weight_follows_the_divergence_and_survives_an_interruption(
    taught: dict[str, Any], tmp_path: Path
) -> None:
    recipe = recipe_from(taught | {"stages": [GRPO]})
    watching = Watching()
    whole = play(tmp_path / "whole", recipe, watching)
    logged = read_metrics(whole)
    coefficient = 0.01
    for step in range(1, STEPS + 1):
        assert logged["grpo/kl_coefficient"][step] == coefficient
        kl = logged["grpo/kl"][step]
        assert kl is not None
        coefficient = controlled_coefficient(coefficient, kl, target=1e-3, gain=2.0)
    assert logged["grpo/kl"][1] == pytest.approx(0.0, abs=1e-6)
    assert logged["grpo/kl_coefficient"][2] == pytest.approx(0.006), "0.4 of it: the most a step may take at this gain"
    assert logged["grpo/kl_coefficient"][3] != logged["grpo/kl_coefficient"][2]
    # The model gives one reason whatever it is asked, under its two prompts.
    assert set(logged["grpo/reasoning_information"]) == {1, 3}
    assert all(abs(value or 0.0) <= math.log(2) for value in logged["grpo/reasoning_information"].values())
    assert set(logged["grpo/reasoning_retrieval"]) == {1, 2, 3}
    with pytest.raises(Interruption):
        play(tmp_path / "run", recipe, Watching("grpo", at=2))
    resumed = play(tmp_path / "run", recipe, Watching())
    assert read_metrics(resumed) == logged
    first, second = (CheckpointFolder(folder / "checkpoints" / "grpo").latest() for folder in (whole, resumed))
    assert first is not None
    assert second is not None
    assert float(first.tensors["kl_coefficient"]) == coefficient
    assert all((second.tensors[name] == value).all() for name, value in first.tensors.items())


def test_a_target_needs_a_weight_to_start_from() -> None:
    with pytest.raises(ConfigError, match=r"stages.grpo.kl_target: expected kl_coefficient above 0"):
        recipe_from({"name": "tiny", "stages": [{"stage": "grpo", "kl_coefficient": 0, "kl_target": 0.1}]})
