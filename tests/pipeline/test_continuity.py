"""Ten updates at once against five, an interruption and five more, across the ends of passes over the data.

The stage `ppo` has the same test beside its others, and so has each learner without a stage (`tests/training`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from playing import play
from safetensors.torch import load_file
from watching import Interruption, Watching

from deedrl.pipeline.checkpoint import MANIFEST, TENSORS, CheckpointFolder
from deedrl.pipeline.recipe import recipe_from
from deedrl.pipeline.run import EVENTS
from deedrl.store.jsonl import TrajectoryStore
from deedrl.tracking.jsonl import read_metrics

UPDATES = 10
SHARED: dict[str, Any] = {"steps": UPDATES, "learning_rate": 1e-3, "schedule": "cosine", "warmup_steps": 2}
COLD_START: dict[str, Any] = {"stage": "cold_start", "tasks": 0, "demonstrations": 8}
LAST: dict[str, list[dict[str, Any]]] = {
    # 8 positives in batches of 3: passes end within the third, the sixth and the eighth update.
    "sft": [COLD_START, {"stage": "sft", "batch_size": 3, **SHARED}],
    # Draws depend on what the last validation solved, the curriculum's state.
    "grpo": [
        {
            "stage": "grpo",
            "tasks_per_step": 2,
            "group_size": 3,
            "failure_weight": 3.0,
            "ema_decay": 0.5,
            "validate_every": 4,
            "validation_tasks": 4,
            **SHARED,
        }
    ],
    # At most 12 pairs in batches of 4.
    "dpo": [
        COLD_START,
        {
            "stage": "dpo",
            "tasks": 6,
            "samples_per_task": 6,
            "kinds": ["outcome"],
            "pairs_per_task": 2,
            "pairs_per_step": 4,
            "validate_every": 0,
            "validation_tasks": 2,
            **SHARED,
        },
    ],
}


@pytest.fixture(scope="module", autouse=True)
def _one_thread(one_thread: None) -> None:
    pass


@pytest.mark.parametrize("stage", LAST)
def test_C15_C17_five_updates_and_five_more_are_ten(taught: dict[str, Any], tmp_path: Path, stage: str) -> None:
    recipe = recipe_from(taught | {"stages": LAST[stage]})
    whole = play(tmp_path / "whole", recipe)
    with pytest.raises(Interruption):
        play(tmp_path / "parts", recipe, Watching(stage, at=5))
    parts = play(tmp_path / "parts", recipe)
    saved = [CheckpointFolder(folder / "checkpoints" / stage).latest() for folder in (whole, parts)]
    assert saved[0] is not None
    assert saved[1] is not None
    assert saved[0].step == saved[1].step == UPDATES
    assert saved[0].state == saved[1].state
    assert saved[0].tensors.keys() == saved[1].tensors.keys()
    assert any(name.startswith("exp_avg_sq.") for name in saved[0].tensors)
    for name, value in saved[0].tensors.items():
        assert torch.equal(saved[1].tensors[name], value), name
    adapters = [load_file(folder / "adapter" / "adapter_model.safetensors") for folder in (whole, parts)]
    assert all(torch.equal(adapters[1][name], value) for name, value in adapters[0].items())
    metrics = read_metrics(whole)
    assert metrics == read_metrics(parts)
    rates = [rate or 0.0 for rate in metrics[f"{stage}/learning_rate"].values()]
    assert len(rates) == UPDATES
    assert rates[0] < rates[1] > rates[-1]
    for path in sorted((whole / "trajectories").glob("*.jsonl")):
        sampled = [
            {t.episode_id: [s.completion.token_ids for s in t.steps] for t in TrajectoryStore(folder)}
            for folder in (path, parts / "trajectories" / path.name)
        ]
        assert sampled[0] == sampled[1], path.name


@pytest.mark.parametrize("torn", ["truncated", "without_manifest", "half_written"])
def test_C17_a_torn_checkpoint_is_said_and_the_one_before_it_used(
    taught: dict[str, Any], tmp_path: Path, torn: str
) -> None:
    recipe = recipe_from(taught | {"stages": [COLD_START, {"stage": "sft", "batch_size": 3, **SHARED, "steps": 4}]})
    whole = play(tmp_path / "whole", recipe)
    with pytest.raises(Interruption):
        play(tmp_path / "parts", recipe, Watching("sft", at=3))
    newest = tmp_path / "parts" / "checkpoints" / "sft" / "step-00000003"
    match torn:
        case "truncated":
            (newest / TENSORS).write_bytes((newest / TENSORS).read_bytes()[:-100])
        case "without_manifest":
            (newest / MANIFEST).unlink()
        case "half_written":
            (newest / MANIFEST).unlink()
            newest.rename(newest.with_name(f".tmp-{newest.name}-1"))
    watching = Watching()
    play(tmp_path / "parts", recipe, watching)
    assert any("torn" in text for text in watching.warnings) == (torn != "half_written")
    events = [json.loads(line) for line in (tmp_path / "parts" / EVENTS).read_text().splitlines()]
    assert any(event["event"] == "warning" and "torn" in event["text"] for event in events) == (torn != "half_written")
    assert read_metrics(whole) == read_metrics(tmp_path / "parts")
    adapters = [load_file(tmp_path / n / "adapter" / "adapter_model.safetensors") for n in ("whole", "parts")]
    assert all(torch.equal(adapters[1][name], value) for name, value in adapters[0].items())
