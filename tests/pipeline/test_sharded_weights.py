"""Whole runs with weights in shards on two real processes over gloo, against one process that holds all of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from calm import calm_adamw
from launching import compare_checkpoints, tolerance, torchrun
from safetensors.torch import load_file
from torch.testing import assert_close

from deedrl.config import dump_yaml
from deedrl.errors import ConfigError
from deedrl.pipeline.recipe import config_hash, recipe_from
from deedrl.pipeline.run import Run
from deedrl.pipeline.stages import export_policy, run_recipe
from deedrl.reports.progress import make_progress
from deedrl.tracking.jsonl import read_metrics
from deedrl.training import fused

ONLINE: dict[str, Any] = {
    "steps": 2,
    "temperature": 1.5,
    "tasks_per_step": 3,
    "group_size": 4,
    "micro_batch_tokens": 16,
    "validate_every": 1,
    "validation_tasks": 3,
    "ema_decay": 0.5,
}
SFT: dict[str, Any] = {"stage": "sft", "steps": 3, "batch_size": 5, "micro_batch_tokens": 16, "validate_every": 2}
STAGES: dict[str, list[dict[str, Any]]] = {
    "full": [
        {"stage": "cold_start", "tasks": 3, "samples_per_task": 2, "demonstrations": 6},
        {**SFT, "learning_rate": 1e-4, "validation_tasks": 3},
        {"stage": "grpo", "learning_rate": 1e-4, "mini_batches": 2, "sampler_cap": 2.0, **ONLINE},
        {"stage": "evaluate", "tasks": 4},
    ],
    "lora": [
        {"stage": "cold_start", "tasks": 3, "samples_per_task": 2, "demonstrations": 6},
        {**SFT, "learning_rate": 1e-3, "validation_tasks": 3},
        {"stage": "grpo", "learning_rate": 1e-3, **ONLINE},
        {
            "stage": "ppo",
            "learning_rate": 1e-3,
            "critic": "adapter",
            "value_warmup_steps": 1,
            **ONLINE,
        },
    ],
}


@pytest.fixture(scope="module", autouse=True)
def _calm(one_thread: None) -> Iterator[None]:
    with calm_adamw():
        yield


def in_shards(data: dict[str, Any], recipe: Path, out: Path) -> None:
    """A run of `data`, or the rest of it, on two processes that each hold half of the weights."""
    recipe.write_text(dump_yaml(data | {"processes": {"shard": "weights"}}))
    ended = torchrun(2, "run", recipe, "--out", out, "--processes", 2, "--plain")
    assert ended.returncode == 0, ended.stderr


def by_one(data: dict[str, Any], out: Path) -> None:
    """On layers as they are, as weights in shards have them: fused ones round otherwise, and AdamW's step along a
    gradient of next to nothing is as large as any."""
    recipe = recipe_from(data)
    with pytest.MonkeyPatch.context() as patch, Run.open(out, recipe) as run:
        patch.setattr(fused, "_with_fused_layers", lambda decoder: None)
        run_recipe(recipe, run, make_progress("quiet"))


Runs = tuple[dict[str, Any], Path, Path]


@pytest.fixture(scope="module", params=["full", "lora"])
def both(request: pytest.FixtureRequest, taught: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """A recipe, and folders of its runs by one process and by two; tests only read them."""
    folder = tmp_path_factory.mktemp(request.param)
    data = taught | {"stages": STAGES[request.param]}
    if request.param == "full":
        export_policy(Path(taught["model"]["start_adapter"]).parent, folder / "model", merge=True)
        data |= {"model": {"path": str(folder / "model"), "dtype": "fp32", "adapter": None}}
    by_one(data, folder / "one")
    in_shards(data, folder / "recipe.yaml", folder / "two")
    return data, folder / "one", folder / "two"


def learners(data: dict[str, Any]) -> list[str]:
    return [stage["stage"] for stage in data["stages"] if "learning_rate" in stage]


def compare_policies(one: Path, two: Path) -> None:
    files = [path.name for path in (one / "adapter").glob("*.safetensors")]
    assert files
    for name in files:
        expected, found = (load_file(folder / "adapter" / name) for folder in (one, two))
        assert expected.keys() == found.keys()
        for key, value in expected.items():
            assert_close(found[key], value, **tolerance("parameter"), msg=lambda m, n=key: f"{n}: {m}")


def test_weights_in_shards_learn_what_one_process_learns(both: Runs) -> None:
    data, one, two = both
    for stage in learners(data):
        compare_checkpoints(one, two, stage)
    compare_policies(one, two)


def test_the_figures_are_those_of_one_process(both: Runs) -> None:
    data, *folders = both
    one, two = map(read_metrics, folders)
    assert one.keys() == two.keys()
    for name in sorted(one.keys() - {f"{stage}/cache_hit_share" for stage in learners(data)}):
        assert two[name] == pytest.approx(one[name], rel=1e-3, abs=5e-3 if "fraction" in name else 1e-5), name


def interrupted(source: Path, target: Path) -> Path:
    """A copy of a run as a process leaves it that is killed in the second step of grpo."""
    shutil.copytree(source, target)
    shutil.rmtree(target / "checkpoints" / "grpo" / "step-00000002")
    for path in (target / "trajectories").iterdir():
        if path.name.startswith(("grpo", "ppo", "evaluate")):
            path.unlink()
    later = {"grpo", "ppo", "evaluate"}
    lines = (target / "events.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line).get("stage") not in later]
    (target / "events.jsonl").write_text("".join(kept))
    for stage in ("ppo",):
        shutil.rmtree(target / "checkpoints" / stage, ignore_errors=True)
    return target


def test_a_run_goes_over_from_one_process_to_shards_and_back(both: Runs, tmp_path: Path) -> None:
    data, one, two = both
    in_shards(data, tmp_path / "recipe.yaml", interrupted(one, tmp_path / "begun-by-one"))
    by_one(data, interrupted(two, tmp_path / "begun-by-two"))
    for folder in (tmp_path / "begun-by-one", tmp_path / "begun-by-two"):
        for stage in learners(data):
            compare_checkpoints(one, folder, stage)
        compare_policies(one, folder)


def test_shards_are_no_part_of_what_a_run_is() -> None:
    data = {"name": "r", "stages": [{"stage": "grpo"}]}
    assert config_hash(recipe_from(data)) == config_hash(recipe_from(data | {"processes": {"shard": "weights"}}))


def test_sampling_beside_an_update_is_refused_with_weights_in_shards() -> None:
    data = {"name": "r", "processes": {"shard": "weights"}, "stages": [{"stage": "grpo", "max_staleness": 1}]}
    with pytest.raises(
        ConfigError, match=r"expected 0 with processes\.shard: weights, got 1: .* set it to 0 or shard to"
    ):
        recipe_from(data)


def test_a_reward_model_is_refused_with_weights_in_shards() -> None:
    data = {
        "name": "r",
        "processes": {"shard": "weights"},
        "stages": [{"stage": "reward_model", "steps": 1, "tasks": 4}],
    }
    with pytest.raises(
        ConfigError, match=r"processes\.shard: expected optimiser or none with the stage 'reward_model'"
    ):
        recipe_from(data)
