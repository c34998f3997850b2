"""The script that measures; running it takes minutes, so its parts are tested on a tiny model."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from deedrl.benchmarks.update import UpdateSettings, made_up_batch
from deedrl.policies.local.model import add_adapter

SCRIPT = Path(__file__).resolve().parent.parent.parent / "benchmarks" / "memory_of_learners.py"
SETTINGS = UpdateSettings(dtype="fp32", tasks=2, siblings=2, shared_tokens=9, own_tokens=80, kl=0.01)


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("memory_of_learners", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["memory_of_learners"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("tuning", ["lora", "full"])
@pytest.mark.parametrize("critic", ["none", "value_head", "adapter", "model"])
def test_every_learner_takes_a_step_on_the_whole_batch(
    script, tiny_models, one_thread, monkeypatch, critic, tuning, tmp_path
):
    if critic == "adapter" and tuning == "full":
        pytest.skip("an adapter of its own needs a frozen base")
    models = tiny_models(["a shop"] * 20)

    def loaded_model(tuning):
        loaded = models.load()
        for parameter in loaded.model.parameters():
            parameter.requires_grad_(tuning == "full")
        if tuning == "full":
            return loaded
        return add_adapter(loaded, rank=2, alpha=4, dropout=0.0, target="all-linear", seed=0)

    monkeypatch.setattr(script, "loaded_model", loaded_model)
    samples = made_up_batch(SETTINGS, 250)
    with script.step_of(critic, tuning, SETTINGS) as step:
        figures = step(samples)
    assert figures["action_tokens"] == sum(sample.action_tokens for sample in samples)
    assert figures["kl"] == pytest.approx(0, abs=1e-5)
    assert ("value_loss" in figures) == (critic != "none")


def test_the_plan_ranks_them(script):
    lora = [script.estimated(critic, "lora", SETTINGS) for critic in script.CRITICS]
    assert lora[0] == lora[1] < lora[2] < lora[3]
    assert script.estimated("model", "full", SETTINGS) > script.estimated("none", "full", SETTINGS)
