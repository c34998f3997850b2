"""A moving average of the weights is validated and kept; what is trained and sampled to learn from are the weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from playing import play
from safetensors.torch import load_file

from deedrl.pipeline import validation
from deedrl.pipeline.checkpoint import CheckpointFolder
from deedrl.pipeline.recipe import recipe_from
from deedrl.store.jsonl import TrajectoryStore
from deedrl.training.averaging import WeightAverage

STEPS, DECAY = 3, 0.5


@pytest.fixture(scope="module", autouse=True)
def _one_thread(one_thread: None) -> None:
    pass


@pytest.fixture(scope="module")
def finished(taught: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    stage = {"stage": "grpo", "steps": STEPS, "tasks_per_step": 2, "group_size": 4, "learning_rate": 1e-2}
    stage |= {"ema_decay": DECAY, "validate_every": 1, "validation_tasks": 4}
    data = taught | {"checkpoints": {"every_steps": 1, "keep_last": 9}, "stages": [stage]}
    scores = iter(range(STEPS + 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(validation, "held_out_score", lambda metrics: float(next(scores)))  # the last is the best
        return play(tmp_path_factory.mktemp("ema") / "run", recipe_from(data))


def versions(store: Path) -> list[str]:
    """Policy versions in the order in which they first sampled."""
    found = [step.completion.policy_version for t in TrajectoryStore(store) for step in t.steps]
    return list(dict.fromkeys(found))


def test_checkpoints_hold_the_weights_and_their_average(finished: Path) -> None:
    average = WeightAverage(DECAY)
    for step in range(1, STEPS + 1):
        tensors = load_file(finished / "checkpoints" / "grpo" / f"step-{step:08d}" / "tensors.safetensors")
        weights = {n.removeprefix("parameter."): t for n, t in tensors.items() if n.startswith("parameter.")}
        average.add(weights, step)
        assert average.values
        for name, value in average.values.items():
            assert torch.equal(tensors[f"average.{name}"], value), (step, name)
    assert any(not torch.equal(weights[name], value) for name, value in average.values.items())


def test_the_best_average_becomes_the_policy(finished: Path) -> None:
    best = CheckpointFolder(finished / "checkpoints" / "grpo").best()
    assert best is not None
    assert best.step == STEPS
    kept = load_file(finished / "adapter" / "adapter_model.safetensors")
    names = {name: name.replace(".weight", ".default.weight") for name in kept}
    for name, value in kept.items():
        assert torch.equal(value, best.tensors[f"average.{names[name]}"]), name
    assert any(not torch.equal(value, best.tensors[f"parameter.{names[name]}"]) for name, value in kept.items())


def test_episodes_to_learn_from_are_the_weights_own_and_validations_the_average_s(finished: Path) -> None:
    learnt_from = versions(finished / "trajectories" / "grpo.jsonl")
    assert learnt_from[1:] == ["grpo:1", "grpo:2"]
    validated = versions(finished / "trajectories" / "grpo-validation.jsonl")
    assert validated == [learnt_from[0], *(f"grpo-average:{step}" for step in range(1, STEPS + 1))]
