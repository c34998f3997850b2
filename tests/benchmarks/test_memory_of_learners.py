"""The script that measures; running it takes minutes, so its parts are tested on a tiny model."""

from __future__ import annotations

import memory_of_learners as script
import pytest

from deedrl.benchmarks.update import UpdateSettings, made_up_batch
from deedrl.policies.local.model import add_adapter

SETTINGS = UpdateSettings(dtype="fp32", tasks=2, siblings=2, shared_tokens=9, own_tokens=80, kl=0.01)


@pytest.mark.parametrize("tuning", ["lora", "full"])
@pytest.mark.parametrize("learner", ["grpo", "dpo", "value_head", "adapter", "model"])
def test_every_learner_takes_a_step_on_the_whole_batch(tiny_models, one_thread, monkeypatch, learner, tuning, tmp_path):
    if learner == "adapter" and tuning == "full":
        pytest.skip("an adapter of its own needs a frozen base")
    models = tiny_models(["a shop"] * 20)

    def loaded_model(model, tuning):
        loaded = models.load()
        for parameter in loaded.model.parameters():
            parameter.requires_grad_(tuning == "full")
        if tuning == "full":
            return loaded
        return add_adapter(loaded, rank=2, alpha=4, dropout=0.0, target="all-linear", seed=0)

    monkeypatch.setattr(script, "loaded_model", loaded_model)
    samples = made_up_batch(SETTINGS, 250)
    with script.step_of(learner, tuning, SETTINGS) as step:
        figures = step(samples)
    assert figures["action_tokens"] == sum(sample.action_tokens for sample in samples)
    assert figures["kl"] == pytest.approx(0, abs=1e-5)
    assert ("value_loss" in figures) == (learner not in ("grpo", "dpo"))


def test_the_plan_ranks_them():
    lora = {learner: script.estimated(learner, "lora", SETTINGS) for learner in script.NAMES}
    assert lora["dpo"] < lora["grpo"] == lora["value_head"] < lora["adapter"] < lora["model"]
    full = {learner: script.estimated(learner, "full", SETTINGS) for learner in script.NAMES}
    assert full["dpo"] < full["grpo"] < full["model"]  # a reference is a copy of all weights
