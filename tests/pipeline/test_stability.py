"""Signs of instability: each alarm by hand, at the step that crosses its threshold, from a run's metrics alone."""

from __future__ import annotations

import math
from collections.abc import Callable
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
    MOST_KL,
    collapse_alarm,
    divergence_alarm,
    entropy_alarm,
    gradient_alarm,
    ratio_alarm,
    reward_alarm,
    skipped_alarm,
    stability_alarms,
)
from deedrl.pipeline.stage_figures import StageFigures
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
    assert "the gradient norm is 6, 12 times its median of the 5 steps before" in str(gradient_alarm([*usual, 6.0]))
    assert gradient_alarm([*usual, 3.9]) is None
    assert gradient_alarm([*usual[1:], 6.0]) is None, "four steps are too few to know what is usual"
    assert gradient_alarm([0.0] * 5 + [1.0]) is None
    assert gradient_alarm([9.0] * 9 + [0.5] * 20 + [6.0]) is not None, "what was long ago is not usual"


def test_updates_that_were_left_out() -> None:
    assert "2 updates of this step were left out" in str(skipped_alarm([0.0, 2.0]))
    assert skipped_alarm([2.0, 0.0]) is None


def test_a_reward_that_falls_by_more_than_tasks_explain() -> None:
    fallen = [0.62, 0.62, 0.56, 0.44]
    text = str(reward_alarm(fallen, [0.77, 0.69], 40))
    assert "fell to 0.44, 0.60 in the first ones: more than 40 other tasks explain" in text
    assert "validations went from 77.0% to 69.0%" in text
    assert reward_alarm(fallen, [], 40) is not None, "a stage may validate at its end only"
    assert "validations" not in str(reward_alarm(fallen, [0.77], 40))
    assert reward_alarm(fallen, [0.77, 0.69, 0.77], 40) is None, "families drawn for their failures are harder"
    assert reward_alarm(fallen, [], 10) is None, "of ten tasks it may be chance"
    assert reward_alarm([*fallen, 0.42], [], 40) is None, "said a step ago"
    assert reward_alarm([0.5, 0.2], [], 40) is not None, "one step is compared with one"
    assert reward_alarm([0.5], [], 40) is None
    assert reward_alarm([1.0, 1.0, 1.0, 1.0], [], 40) is None
    assert reward_alarm([0.0, 0.0, 0.0, 0.0], [], 40) is None


def test_the_error_of_a_fall_by_hand() -> None:
    """Two steps of 50 tasks at a mean of 0.5: the error of their difference is sqrt(0.25 × 2 / 50) = 0.1."""
    assert reward_alarm([0.5 + 0.0749, 0.5 - 0.0749], [], 50) is None
    assert reward_alarm([0.5 + 0.0751, 0.5 - 0.0751], [], 50) is not None


def test_divergence_from_the_start() -> None:
    assert "the policy is 0.3 nats a token from the one it started from" in str(divergence_alarm([0.0, 0.05, 0.4, 0.3]))
    assert divergence_alarm([0.0, MOST_KL, MOST_KL, MOST_KL]) is None
    assert divergence_alarm([0.0, 0.05, 1.4]) is None, "one token may carry a step"
    assert divergence_alarm([0.0, 0.05, 1.4, 0.05]) is None
    assert divergence_alarm([0.3]) is not None
    assert divergence_alarm([0.3, 0.3]) is None, "said a step ago"
    assert divergence_alarm([]) is None


def test_every_alarm_says_what_was_seen_what_was_expected_and_what_to_do() -> None:
    said = [
        reward_alarm([0.6, 0.6, 0.6, 0.2], [], 40),
        entropy_alarm([1.0, 1.0, 1.0, 0.01]),
        entropy_alarm([1.0, 1.0, 1.0, 9.0]),
        divergence_alarm([0.0, 1.0, 1.0]),
        ratio_alarm([0.0, 0.5]),
        gradient_alarm([0.1] * 9 + [9.0]),
    ]
    for text in said:
        assert text is not None
        assert "expected" in text or "in the first ones" in text
        assert "learning_rate" in text
        assert "\n" not in text


def logged(folder: Path, stage: str, step: int) -> list[str]:
    """What a stage that goes on after `step` would have said there."""
    newest = {name.removeprefix(f"{stage}/"): values.get(step) for name, values in read_metrics(folder).items()}
    return stability_alarms(StageFigures.logged(folder, stage, step), newest, 8)


def test_alarms_read_the_runs_metrics_up_to_the_step(tmp_path: Path) -> None:
    tracker = Tracker([JsonlSink(tmp_path)])
    for step, entropy in enumerate([1.0, 1.0, 1.0, 0.5, 0.01], start=1):
        tracker.log({"entropy": entropy, "ratio_outside": 0.0, "grad_norm": math.nan}, step=step, stage="grpo")
    tracker.log({"entropy": 0.01}, step=5, stage="other")
    assert [text[:20] for text in logged(tmp_path, "grpo", 5)] == ["the policy's entropy"]
    assert logged(tmp_path, "grpo", 4) == [], "what an interrupted attempt logged later does not count"
    assert logged(tmp_path, "grpo", 6) == [], "a step without figures says nothing of an earlier one"
    assert logged(tmp_path, "other", 5) == []
    assert logged(tmp_path / "none", "grpo", 5) == []


def test_figures_in_memory_are_those_a_resume_reads(tmp_path: Path) -> None:
    sink, kept = JsonlSink(tmp_path), StageFigures()
    rows = [{"reward": 0.5, "kl": math.nan}, {"reward": math.inf, "kl": 0.1}, {"reward": None}, {"reward": 0.25}]
    for step, row in enumerate(rows, start=1):
        sink.log({f"grpo/{name}": value for name, value in row.items()}, step=step, stage="grpo")
        kept.add(row)
    read = StageFigures.logged(tmp_path, "grpo", 4)
    for name in ("reward", "kl", "entropy"):
        assert list(read[name]) == list(kept[name])
    assert list(kept["reward"]) == [0.5, 0.25]
    assert list(StageFigures.logged(tmp_path, "grpo", 3)["reward"]) == [0.5]
    assert list(StageFigures.logged(tmp_path, "grpo", 0)["reward"]) == [], "a stage that starts afresh"


class Counting(list[float]):
    """Counts the values that are looked at."""

    looked = 0

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        self.looked += len(found) if isinstance(at, slice) else 1
        return found

    def __iter__(self) -> Any:
        raise AssertionError("an alarm went through all values")


def test_a_step_costs_the_same_however_long_the_run() -> None:
    alarms: list[Callable[[Any], str | None]] = [
        lambda values: reward_alarm(values, [], 40),
        entropy_alarm,
        divergence_alarm,
        ratio_alarm,
        gradient_alarm,
        skipped_alarm,
        lambda values: collapse_alarm(values, values),
    ]
    for alarm in alarms:
        counts = []
        for length in (100, 10_000):
            values = Counting([0.5] * length)
            alarm(values)
            counts.append(values.looked)
        assert counts[0] == counts[1] > 0


def test_a_stage_reads_its_metrics_once_when_it_goes_on_and_never_afresh(
    taught: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[Path] = []

    def counted(folder: Path) -> Any:
        reads.append(folder)
        return read_metrics(folder)

    monkeypatch.setattr("deedrl.pipeline.stage_figures.read_metrics", counted)
    recipe = recipe_from(taught | {"stages": [GRPO | {"steps": 4}]})
    with pytest.raises(Interruption):
        play(tmp_path / "run", recipe, Watching("grpo", at=2))
    assert reads == []
    play(tmp_path / "run", recipe, Watching())
    assert reads == [tmp_path / "run"]


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
    [text] = findings(*stages)
    assert text.startswith("stages.mine.learning_rate is 0.001, above 0.00015: updates of an adapter")
    assert findings({"stage": "grpo", "learning_rate": 1.5e-4}) == []
    assert findings({"stage": "grpo"}) == [], "the default"


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
