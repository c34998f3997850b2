"""The stage `reward_model` on a tiny model: it ranks, is saved whole, and resumes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from playing import play
from reward_models import GRPO, MODEL, STEPS, TASKS, data_of, made, model_folder, opened, stored
from safetensors.torch import load_file
from watching import Interruption, Watching

from deedrl.errors import ConfigError, ModelError
from deedrl.pipeline.cost import estimate
from deedrl.pipeline.recipe import recipe_from
from deedrl.pipeline.reward_model_folder import newest_version, open_version, place, placed_for
from deedrl.pipeline.reward_model_scoring import scored_episodes
from deedrl.pipeline.reward_model_stage import agreements
from deedrl.planning.machine import GIB, Machine
from deedrl.tracking.jsonl import read_metrics
from deedrl.training.rank_agreement import Place


@pytest.fixture(scope="module", autouse=True)
def _one_thread(one_thread: None) -> None:
    pass


# ---------------------------------------------------------------- learning


def test_solved_episodes_are_ranked_above_failed_ones_of_tasks_that_were_not_learnt_from(reward_run: Path) -> None:
    logged = read_metrics(reward_run)
    accuracy = logged["reward_model/calibration_accuracy"]
    assert set(accuracy) == {0, 4, 8, 12}
    assert accuracy[0] == 0.5, "a fresh head tells nothing apart"
    assert max(value or 0.0 for value in accuracy.values()) > 0.9
    assert max(value or 0.0 for value in logged["reward_model/calibration_tau"].values()) > 0.8
    for name in ("loss", "pair_accuracy", "margin", "score_mean", "grad_norm", "learning_rate"):
        assert set(logged[f"reward_model/{name}"]) == set(range(1, STEPS + 1)), name


def test_the_policy_stays_as_it_is(reward_run: Path) -> None:
    assert not (reward_run / "adapter").exists()


def test_labels_add_up_and_calibration_tasks_are_not_learnt_from(reward_run: Path) -> None:
    data, episodes = data_of(reward_run), stored(reward_run)
    assert data.stores == {"reward_model": 16 * 8}
    assert data.comparisons
    assert data.held_out
    assert {one.task_id for one in data.comparisons}.isdisjoint({one.task_id for one in data.held_out})
    for one in (*data.comparisons, *data.held_out):
        assert (episodes[one.better.episode_id].solved, episodes[one.worse.episode_id].solved) == (True, False)


def test_turns_labelled_by_their_siblings_teach_a_process_model(taught: dict[str, Any], tmp_path: Path) -> None:
    folder = play(tmp_path / "run", made(taught, reads="process", learning_rate=1e-2, pairs_per_step=24))
    data = data_of(folder)
    assert data.turns
    assert not data.comparisons
    accuracy = read_metrics(folder)["reward_model/calibration_accuracy"]
    assert max(value or 0.0 for value in accuracy.values()) > 0.9
    with opened(folder) as (session, stage):
        saved = newest_version(model_folder(folder))
        assert saved is not None
        found = list(scored_episodes(session, stage, saved, []))
    assert found
    assert all(len(one.turns) >= 1 and one.score == pytest.approx(one.turns[-1], abs=1e-4) for one in found)
    right = [
        good.value > bad.value
        for good in found
        for bad in found
        if (good.task_id, good.solved, bad.solved) == (bad.task_id, True, False)
    ]
    assert sum(right) > 0.9 * len(right) > 0


# ---------------------------------------------------------------- saved and loaded


def test_H10_what_is_saved_is_peft_safetensors_and_json_alone(reward_run: Path) -> None:
    names = {path.name for path in (model_folder(reward_run) / "v0001").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "head.safetensors", "reward_model.json"} <= names
    assert {Path(name).suffix for name in names} <= {".json", ".safetensors", ".md"}


def test_a_saved_model_scores_as_the_one_that_was_trained(reward_run: Path) -> None:
    saved = newest_version(model_folder(reward_run))
    assert saved is not None
    [part] = saved.info.calibration
    assert part.hash == saved.calibration[0].hash
    with opened(reward_run) as (session, stage), placed_for(session.loaded, "again", 4096, saved) as placed:
        *found, _ = agreements(placed.model, saved.calibration)
        assert found == [part.agreement]
        scored = {one.episode_id: one for one in scored_episodes(session, stage, saved, [])}
        held = [Place(name) for name in saved.calibration[0].episodes]
        for end, score in placed.model.scores(saved.calibration[0].episodes, held).items():
            assert scored[end.episode_id].score == pytest.approx(score, abs=1e-5)
            assert 0 < scored[end.episode_id].value < 1
    values = [scored[name].value for name in saved.calibration[0].episodes]
    assert 0.35 < sum(values) / len(values) < 0.65, "1/2 is what calibration episodes have on average"


def test_another_base_model_is_refused(reward_run: Path, tiny_models: Any) -> None:
    from deedrl.policies.local.model import add_adapter

    saved = newest_version(model_folder(reward_run))
    other = tiny_models(["Other words altogether."] * 20).load(initializer_range=0.1)
    adapted = add_adapter(other, rank=4, alpha=8, dropout=0.0, target="all-linear", seed=0)
    with pytest.raises(ModelError, match=r"this reward model was trained on .* take the same model"):
        place(adapted, "x", 4096, saved)


def test_H10_a_pickled_file_and_a_changed_calibration_set_are_refused(copied_run: Path) -> None:
    version = model_folder(copied_run) / "v0001"
    content = json.loads((version / "calibration.json").read_text())
    content[0]["comparisons"] = content[0]["comparisons"][1:]
    (version / "calibration.json").write_text(json.dumps(content))
    with pytest.raises(ModelError, match="it was changed since"):
        open_version(version)
    (version / "head.pt").write_bytes(b"\x80\x04")
    with pytest.raises(ModelError, match=r"head\.pt: refused"):
        open_version(version)


def test_an_unfinished_version_does_not_count(copied_run: Path) -> None:
    (model_folder(copied_run) / ".v0002").mkdir()
    found = newest_version(model_folder(copied_run))
    assert found is not None
    assert found.info.version == 1
    (model_folder(copied_run) / "v0002").mkdir()
    with pytest.raises(ModelError, match="no reward model at"):
        newest_version(model_folder(copied_run))


@pytest.mark.parametrize("at", [4, 6], ids=["after_a_calibration", "halfway"])
def test_C17_an_interrupted_stage_resumes_to_the_same_model_and_figures(
    reward_run: Path, taught: dict[str, Any], tmp_path: Path, at: int
) -> None:
    with pytest.raises(Interruption):
        play(tmp_path / "run", made(taught), Watching("reward_model", at=at))
    play(tmp_path / "run", made(taught))
    assert read_metrics(reward_run) == read_metrics(tmp_path / "run")
    for name in ("adapter_model.safetensors", "head.safetensors"):
        one, other = (load_file(model_folder(run) / "v0001" / name) for run in (reward_run, tmp_path / "run"))
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)


# ---------------------------------------------------------------- settings and cost


def problem(taught: dict[str, Any], *stages: dict[str, Any], **changes: Any) -> str:
    with pytest.raises(ConfigError) as error:
        recipe_from(taught | {"stages": list(stages), "tasks": TASKS} | changes)
    return str(error.value)


def test_settings_that_do_not_go_together_are_refused_by_name(taught: dict[str, Any]) -> None:
    assert "expected exactly one of steps and epochs" in problem(taught, MODEL | {"epochs": 1})
    smoothed = problem(taught, MODEL | {"reads": "process", "label_smoothing": 0.1})
    assert "label_smoothing: expected 0 with reads: process" in smoothed
    assert "labels: expected each file once" in problem(taught, MODEL | {"labels": ["a", "a"]})
    assert "stages.reward_model.tasks: expected above 0" in problem(taught, MODEL | {"tasks": 0})
    full = taught["model"] | {"adapter": None, "start_adapter": None}
    assert "model.adapter: expected an adapter with the stage 'reward_model'" in problem(taught, MODEL, model=full)
    stale = problem(taught, MODEL, GRPO | {"max_staleness": 1}, rubric={"reward_model": 0.2})
    assert "stages.grpo.max_staleness: expected 0 where the rubric names a reward model" in stale


def test_cost_counts_episodes_updates_and_the_reading_of_what_is_rewarded() -> None:
    machine = Machine(cores=1, memory_bytes=8 * GIB, fast_bf16=False)

    def cost(**rubric: float) -> Any:
        data = {"name": "tiny", "stages": [MODEL, GRPO | {"steps": 4}], "rubric": rubric}
        return estimate(recipe_from(data), machine).stages

    model, grpo = cost()
    assert model.episodes == 16 * 8
    assert model.trained_tokens > 0
    _, rewarded = cost(reward_model=0.2)
    assert rewarded.seconds > grpo.seconds
