"""Two real processes over gloo against one: the same episodes, the same policy, and an end that is never a hang."""

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
from playing import play
from safetensors.torch import load_file

from deedrl.config import dump_yaml
from deedrl.errors import StoreError
from deedrl.pipeline.recipe import recipe_from
from deedrl.pipeline.run import Run
from deedrl.store.jsonl import TrajectoryStore
from deedrl.training import processes
from deedrl.training.packing import pack
from deedrl.training.samples import samples_from

MICRO_BATCH_TOKENS = 16
ONLINE: dict[str, Any] = {
    "steps": 2,
    "temperature": 1.5,  # siblings that are alike would be one row of one micro-batch
    "tasks_per_step": 3,  # two for one process, one for the other
    "group_size": 4,
    "micro_batch_tokens": MICRO_BATCH_TOKENS,
    "validate_every": 1,
    "validation_tasks": 3,
}
DPO: dict[str, Any] = {
    "stage": "dpo",
    "tasks": 5,
    "samples_per_task": 6,
    "temperature": 1.5,
    "kinds": ["outcome"],
    "steps": 3,
    "pairs_per_step": 5,
    "hand_check": 2,
}
STAGES: list[dict[str, Any]] = [
    {"stage": "cold_start", "tasks": 3, "samples_per_task": 2, "demonstrations": 6},
    {"stage": "sft", "steps": 3, "batch_size": 5, "learning_rate": 1e-3, "micro_batch_tokens": MICRO_BATCH_TOKENS},
    {"stage": "grpo", "learning_rate": 1e-3, "mini_batches": 2, "sampler_cap": 2.0, **ONLINE},
    {"stage": "ppo", "learning_rate": 1e-3, "value_warmup_steps": 1, **ONLINE},
    {
        **DPO,
        "learning_rate": 1e-3,
        "micro_batch_tokens": MICRO_BATCH_TOKENS,
        "validate_every": 2,
        "validation_tasks": 3,
    },
]
LEARNERS = ("sft", "grpo", "ppo", "dpo")


@pytest.fixture(scope="module", autouse=True)
def _calm(one_thread: None) -> Iterator[None]:
    with calm_adamw():
        yield


@pytest.fixture(scope="module")
def data(taught: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A recipe whose adapter has dropout, which must not depend on who computes what."""
    adapter = tmp_path_factory.mktemp("start") / "adapter"
    shutil.copytree(taught["model"]["start_adapter"], adapter)
    settings = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(settings | {"lora_dropout": 0.1}))
    return taught | {"model": taught["model"] | {"start_adapter": str(adapter)}, "stages": STAGES}


@pytest.fixture(scope="module")
def both(data: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Run folders of the same recipe by one process and by two; tests only read them."""
    folder = tmp_path_factory.mktemp("runs")
    play(folder / "one", recipe_from(data))
    (folder / "recipe.yaml").write_text(dump_yaml(data))
    ended = torchrun(2, "run", folder / "recipe.yaml", "--out", folder / "two", "--processes", 2, "--plain")
    assert ended.returncode == 0, ended.stderr
    # One of them speaks, once.
    assert ended.stdout.count("Report: ") == 1
    assert ended.stderr.count("pairs of") == 1
    return folder / "one", folder / "two"


@pytest.mark.parametrize("stage", ["grpo", "ppo", "dpo"])
def test_there_is_work_for_two(both: tuple[Path, Path], stage: str) -> None:
    """One micro-batch alone would be the first process's, and no gradient would have to be brought together."""
    episodes = list(TrajectoryStore(both[1] / "trajectories" / f"{stage}.jsonl"))
    samples = [sample for episode in episodes[:8] for sample in samples_from(episode)]
    assert len(pack(samples, micro_batch_tokens=MICRO_BATCH_TOKENS)) > 2


@pytest.mark.parametrize("stage", LEARNERS)
def test_two_processes_learn_what_one_learns(both: tuple[Path, Path], stage: str) -> None:
    compare_checkpoints(*both, stage)


def test_two_processes_with_optimiser_states_in_shards_learn_what_one_learns(
    data: dict[str, Any], both: tuple[Path, Path], tmp_path: Path
) -> None:
    source = Path(str(data["environment"]).rpartition(":")[0]).read_text()
    # Each process says what it holds, once it has joined the other.
    watched = """
    def setup(self, task: Task) -> None:
        import os
        from pathlib import Path

        from deedrl.training import processes

        Path(__file__).with_name("shards-" + os.environ["RANK"]).write_text(str(processes.shards_optimiser()))
"""
    (tmp_path / "letters.py").write_text(source.replace("\n    def setup(self, task: Task) -> None:\n", watched))
    sharded = data | {
        "environment": f"{tmp_path}/letters.py:Letters",
        "processes": {"shard": "optimiser"},
        "stages": STAGES[:4],
    }
    (tmp_path / "recipe.yaml").write_text(dump_yaml(sharded))
    ended = torchrun(2, "run", tmp_path / "recipe.yaml", "--out", tmp_path / "run", "--plain")
    assert ended.returncode == 0, ended.stderr
    assert [(tmp_path / f"shards-{rank}").read_text() for rank in range(2)] == ["True", "True"]
    for stage in ("sft", "grpo", "ppo"):
        compare_checkpoints(both[0], tmp_path / "run", stage)


def test_two_processes_end_with_the_same_policy(both: tuple[Path, Path]) -> None:
    one, two = (load_file(folder / "adapter" / "adapter_model.safetensors") for folder in both)
    assert one.keys() == two.keys()
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, **tolerance("parameter"))


def test_two_processes_log_the_figures_of_the_whole_once(both: tuple[Path, Path]) -> None:
    # Where policy and reference are the same, rounding decides which side of a pair is preferred.
    compare_figures(*both, without=["dpo/reward_accuracy"])


def test_E08_each_episode_is_played_and_stored_once_and_is_the_same(both: tuple[Path, Path]) -> None:
    compare_episodes(*both)


def test_the_run_is_that_of_one_process(both: tuple[Path, Path]) -> None:
    events = [
        [json.loads(line)["event"] for line in (folder / "events.jsonl").read_text().splitlines()] for folder in both
    ]
    assert events[1] == [*events[0], "report_written"]
    assert (both[1] / "preferences" / "dpo" / "hand-check.md").read_text().count("\n## ") == DPO["hand_check"]


def test_one_process_that_fails_ends_all_and_the_run_can_be_resumed(data: dict[str, Any], tmp_path: Path) -> None:
    source = Path(str(data["environment"]).rpartition(":")[0]).read_text()
    broken = """
import os

if os.environ.get("RANK") == "1":
    raise RuntimeError("no letters here")


class Chatter"""
    (tmp_path / "letters.py").write_text(source.replace("\nclass Chatter", broken))
    changed = data | {"environment": f"{tmp_path}/letters.py:Letters", "stages": STAGES[:2]}
    (tmp_path / "recipe.yaml").write_text(dump_yaml(changed))
    ended = torchrun(2, "run", tmp_path / "recipe.yaml", "--out", tmp_path / "run", "--plain")
    assert ended.returncode != 0
    assert "deedrl, process 2 of 2: " in ended.stderr
    assert "no letters here" in ended.stderr
    recipe = recipe_from(changed)
    with Run.open(tmp_path / "run", recipe) as run:
        assert run.resumed
        assert run.finished("cold_start") is None
    play(tmp_path / "run", recipe)
    assert (tmp_path / "run" / "adapter").exists()


# ---------------------------------------------------------------- beside the one that writes


def test_a_process_beside_the_writer_reads_the_run_and_writes_nothing(
    data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_from(data)
    with Run.open(tmp_path, recipe) as writer:
        writer.finish_stage("sft", 1.0, {"loss": 2.0})
        writer.checkpoints("grpo").save(3, {"w": torch.ones(1)}, {"a": 1})
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        monkeypatch.setattr(processes, "is_first", lambda: False)
        with Run.open(tmp_path, recipe) as reader:
            assert (reader.run_id, reader.attempt, reader.writes) == (writer.run_id, 1, False)
            assert reader.finished("sft") == writer.finished("sft")
            reader.finish_stage("grpo", 1.0, {})
            assert reader.finished("grpo") is not None
            reader.write_json("mined.json", {})
            reader.checkpoints("grpo").save(4, {"w": torch.ones(1)}, {})
            latest = reader.checkpoints("grpo").latest()
            assert latest is not None
            assert latest.step == 3
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_processes_that_do_not_share_a_folder_are_told(
    data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "is_first", lambda: False)
    with pytest.raises(StoreError, match="found none; give all processes the same recipe and a folder on a file syst"):
        Run.open(tmp_path, recipe_from(data))
