from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deedrl.pipeline.cost import (
    CPU_FP32,
    EMBEDDED,
    GIB,
    OBSERVATION_TOKENS,
    PREFIX_TOKENS,
    PROCESS_BYTES,
    TASK_TOKENS,
    Machine,
    detect_machine,
    estimate,
    estimate_text,
    model_shape,
)
from deedrl.pipeline.recipe import Recipe, recipe_from

LAPTOP = Machine(cores=1, memory_bytes=8 * GIB, fast_bf16=False)


def made(*stages: dict[str, Any], **changes: Any) -> Recipe:
    return recipe_from({"name": "tiny", "stages": list(stages), **changes})


def test_baseline_time_by_hand() -> None:
    recipe = made({"stage": "baseline", "tasks": 10}, limits={"max_steps": 2}, sampling={"max_tokens": 20})
    cost = estimate(recipe, LAPTOP)
    sampled = 10 * 2 * 20
    read = PREFIX_TOKENS + 10 * TASK_TOKENS + 10 * 2 * OBSERVATION_TOKENS
    expected = 2 * EMBEDDED.parameters * (sampled / CPU_FP32.decode + read / CPU_FP32.prefill)
    assert cost.stages[0].sampled_tokens == sampled
    assert cost.seconds == pytest.approx(expected)


def test_weights_memory_by_hand() -> None:
    cost = estimate(made({"stage": "baseline"}, model={"path": "embedded", "dtype": "fp32"}), LAPTOP)
    assert cost.weights_bytes == EMBEDDED.parameters * 4 + PROCESS_BYTES


def test_twice_the_cores_take_half_the_time() -> None:
    recipe = made({"stage": "grpo"})
    two = Machine(cores=2, memory_bytes=8 * GIB, fast_bf16=False)
    assert estimate(recipe, two).seconds == pytest.approx(estimate(recipe, LAPTOP).seconds / 2)


def test_episodes_of_each_stage() -> None:
    recipe = made(
        {"stage": "baseline", "repeats": 2, "also_unseen": True},
        {"stage": "cold_start", "tasks": 10, "samples_per_task": 4, "stability_repeats": 0},
        {"stage": "sft", "steps": 3},
        {"stage": "grpo", "steps": 2, "tasks_per_step": 4, "group_size": 5, "validate_every": 0, "refill_attempts": 0},
        {"stage": "mine", "tasks": 6, "attempts": 2, "steps": 0},
        tasks={"test": 100, "test_unseen": 20, "validation": 48},
    )
    assert [stage.episodes for stage in estimate(recipe, LAPTOP).stages] == [240, 40, 0, 40 + 48, 12]


def test_a_large_model_on_a_laptop_does_not_fit_and_says_so() -> None:
    recipe = made({"stage": "baseline"}, model="some/Model-7B-Instruct")
    cost = estimate(recipe, LAPTOP)
    assert not cost.fits
    text = "\n".join(estimate_text(cost, LAPTOP))
    assert "does NOT fit" in text
    assert "guessed from its name" in text


@pytest.mark.parametrize(("path", "parameters"), [("a/b-7B", 7e9), ("Qwen2.5-0.5B-Instruct", 0.5e9), ("m-360M", 360e6)])
def test_size_is_read_from_a_name(path: str, parameters: float) -> None:
    shape = model_shape(path)
    assert shape.parameters == pytest.approx(parameters)
    assert not shape.known


def test_shape_is_read_from_a_local_folder(tmp_path: Path) -> None:
    config = {
        "hidden_size": 576,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "intermediate_size": 1536,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert model_shape(str(tmp_path)).parameters == pytest.approx(EMBEDDED.parameters, rel=0.01)


def test_this_machine_is_described() -> None:
    machine = detect_machine()
    assert machine.cores >= 1
    assert machine.memory_bytes > 0
