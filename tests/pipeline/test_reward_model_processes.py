"""Reward models on two real processes over gloo against one: learnt, used as a reward, refreshed, asked for scores."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from calm import calm_adamw
from launching import compare_checkpoints, compare_episodes, compare_figures, tolerance, torchrun
from msgspec.structs import asdict
from playing import play
from reward_models import GRPO, MODEL, TASKS, data_of, label, model_folder, stored
from safetensors.torch import load_file

from deedrl.cli.main import main
from deedrl.config import dump_yaml
from deedrl.pipeline.recipe import recipe_from
from deedrl.pipeline.reward_model_folder import open_version
from deedrl.training.packing import pack
from deedrl.training.samples import samples_from

SHARED: dict[str, Any] = {
    "learning_rate": 1e-3,
    "temperature": 1.5,  # siblings that are alike would be one row of one micro-batch
    "micro_batch_tokens": 16,
}
RANKS = MODEL | SHARED | {"steps": 4, "calibrate_every": 2}
TURNS = {"reads": "process", "name": "turns", "tasks": 0, "stores": ["reward_model"]}
STAGES = [RANKS, RANKS | TURNS, GRPO | SHARED | {"steps": 2, "tasks_per_step": 3}]


@pytest.fixture(scope="module", autouse=True)
def _calm(one_thread: None) -> Iterator[None]:
    with calm_adamw():
        yield


@pytest.fixture(scope="module")
def both(taught: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Run folders of the same recipe by one process and by two; tests only read them."""
    folder = tmp_path_factory.mktemp("runs")
    data = taught | {"stages": STAGES, "tasks": TASKS, "rubric": {"reward_model": 0.5, "turns": 0.5}}
    play(folder / "one", recipe_from(data))
    (folder / "recipe.yaml").write_text(dump_yaml(data))
    ended = torchrun(2, "run", folder / "recipe.yaml", "--out", folder / "two", "--processes", 2, "--plain")
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("labels to learn from") == 2, "one of them speaks, once of each model"
    return folder / "one", folder / "two"


def compare_versions(one: Path, two: Path, version: int) -> None:
    """Two folders of a reward model: the same lessons and calibration sets, and weights and scale to rounding."""
    expected, found = (open_version(folder / f"v{version:04d}") for folder in (one, two))
    assert found.calibration == expected.calibration
    assert found.info.step == expected.info.step
    for own, other in zip(expected.info.calibration, found.info.calibration, strict=True):
        assert (other.version, other.hash) == (own.version, own.hash)
        assert asdict(other.agreement) == pytest.approx(asdict(own.agreement), rel=1e-5)
    for name in ("mean", "scale"):
        assert getattr(found.info, name) == pytest.approx(getattr(expected.info, name), rel=1e-3, abs=1e-5)
    for file in ("adapter_model.safetensors", "head.safetensors"):
        tensors, others = (load_file(saved.folder / file) for saved in (expected, found))
        assert tensors.keys() == others.keys()
        for name, value in tensors.items():
            torch.testing.assert_close(others[name], value, **tolerance("parameter"))


def test_there_is_work_for_two(both: tuple[Path, Path]) -> None:
    """One micro-batch alone would be the first process's, and nothing would have to be brought together."""
    episodes = stored(both[1])
    pairs = data_of(both[1]).comparisons[: RANKS["pairs_per_step"]]
    named = dict.fromkeys(place.episode_id for pair in pairs for place in (pair.better, pair.worse))
    samples = [sample for name in named for sample in samples_from(episodes[name])]
    assert len(pack(samples, micro_batch_tokens=SHARED["micro_batch_tokens"])) > 2


@pytest.mark.parametrize("stage", ["reward_model", "turns"])
def test_two_processes_learn_the_reward_model_that_one_learns(both: tuple[Path, Path], stage: str) -> None:
    compare_checkpoints(*both, stage)
    one, two = (folder / "reward-models" / stage for folder in both)
    assert (one / "data-v0001.json").read_bytes() == (two / "data-v0001.json").read_bytes()
    compare_versions(one, two, 1)


def test_a_policy_is_rewarded_and_learns_on_two_processes_as_on_one(both: tuple[Path, Path]) -> None:
    compare_episodes(*both, of_rewards=1e-5)
    terms = [t.breakdown.terms for t in stored(both[1], "grpo").values() if t.breakdown]
    assert len({score.value for term in terms for score in term.values()}) > 4, "the models tell episodes apart"
    assert all({"reward_model", "turns"} <= term.keys() for term in terms)
    compare_checkpoints(*both, "grpo")
    compare_figures(*both)
    one, two = ((model_folder(folder) / "used.json").read_bytes() for folder in both)
    assert one == two


def test_a_refresh_on_two_processes_is_that_of_one(
    both: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With people's labels and with what the policy played since; and with optimiser states in shards."""
    one, two = (Path(shutil.copytree(both[0], tmp_path / name)) for name in ("one", "two"))
    recipe = two / "recipe.yaml"
    assert recipe.read_text().count("shard: none") == 1
    recipe.write_text(recipe.read_text().replace("shard: none", "shard: optimiser"))
    assert label(one, "left") == label(two, "left") > 2
    with pytest.raises(SystemExit) as end:
        main(["reward-model", "refresh", "--run", str(one), "--stage", "reward_model", "--quiet"])
    assert not end.value.code
    shown = capsys.readouterr().out.splitlines()
    ended = torchrun(2, "reward-model", "refresh", "-r", two, "--stage", "reward_model", "--processes", 2, "--quiet")
    assert ended.returncode == 0, ended.stderr
    assert len(shown) == 3
    assert ended.stdout.splitlines()[:-1] == shown[:-1]
    assert data_of(one, 2) == data_of(two, 2)
    assert data_of(one, 2).labelled > 2
    compare_versions(model_folder(one), model_folder(two), 2)
    compare_checkpoints(one, two, "reward_model-v2")


def test_two_processes_print_the_scores_of_one_once(
    both: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(both[0], tmp_path / "run"))
    command = ["reward-model", "score", "-r", str(run), "--stage", "turns", "--store", "grpo", "--quiet"]
    with pytest.raises(SystemExit) as end:
        main(command)
    assert not end.value.code
    expected = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    ended = torchrun(2, *command)
    assert ended.returncode == 0, ended.stderr
    found = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [row["episode_id"] for row in found] == [row["episode_id"] for row in expected]
    assert len(expected) == 2 * 3 * 4
    for one, two in zip(expected, found, strict=True):
        assert two["turns"] == pytest.approx(one["turns"], abs=1e-5)
        assert (two["score"], two["value"]) == pytest.approx((one["score"], one["value"]), abs=1e-5)
