"""The benchmark of updates: the batch it says, learnt from as a whole, on a tiny model."""

from __future__ import annotations

import pytest

from deedrl.benchmarks import update
from deedrl.benchmarks.update import UpdateSettings, benchmark_update, made_up_batch
from deedrl.errors import BenchmarkError, ConfigError
from deedrl.training.packing import shared_prefix_length


@pytest.fixture(scope="module")
def settings(tiny_models, one_thread):
    folder = tiny_models(["a shop"] * 20).folder()
    return UpdateSettings(
        model=str(folder), dtype="fp32", tasks=2, siblings=3, shared_tokens=9, own_tokens=100, rank=2, repetitions=2
    )


@pytest.mark.parametrize("kl", [0.0, 0.1])
def test_figures_are_of_the_whole_batch(settings, kl):
    result = benchmark_update(
        UpdateSettings(**{n: getattr(settings, n) for n in settings.__struct_fields__} | {"kl": kl})
    )
    found = {one.name: one.values for one in result.figures}
    assert result.counts == {"episodes": 6, "tokens": 6 * 109, "action tokens": 6 * 50}
    assert len(found["update (wall)"]) == 2
    assert found["tokens of the batch (wall)"] == pytest.approx([654 / second for second in found["update (wall)"]])
    assert result.settings["kl"] == kl


def test_episodes_share_what_they_should(settings):
    samples = made_up_batch(settings, 250)
    assert {len(sample.ids) for sample in samples} == {109}
    assert shared_prefix_length(samples) == 9
    siblings, strangers = shared_prefix_length(samples[:3]), shared_prefix_length([samples[0], samples[3]])
    # A prefix ends a token before the first action, so that the last of the prompt is computed in each row.
    assert siblings == samples[0].action_mask.index(True) - 1
    assert strangers == 9
    assert len({sample.ids for sample in samples}) == 6
    assert [sample.advantages[-1] for sample in samples[:3]] == [1.0, -1.0, 1.0]


def test_tokens_left_out_are_no_measurement(settings, monkeypatch):
    monkeypatch.setattr(update, "update_policy", lambda *_: {"action_tokens": 299.0})
    with pytest.raises(BenchmarkError, match="expected 300 action tokens, got 299"):
        benchmark_update(settings)


@pytest.mark.parametrize("wrong", [{"tasks": 0}, {"own_tokens": 79}, {"rank": 0}])
def test_batches_that_are_none_are_refused(wrong):
    with pytest.raises(ConfigError):
        UpdateSettings(**wrong)
