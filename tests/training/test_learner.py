"""One update, exact state, and the rate of each step."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from deedrl.errors import ModelError
from deedrl.policies.local.model import add_adapter
from deedrl.training.learner import Learner, scheduled_rate
from deedrl.training.packing import pack
from deedrl.training.sft import sft_update

RATES = [scheduled_rate(step, 10, peak=1e-2, final=1e-3, schedule="cosine", warmup=2) for step in range(10)]


def sft(learner, samples, rate=1e-2, **options):
    options = {"max_grad_norm": 1.0, "micro_batch_tokens": 10_000} | options
    return sft_update(learner, samples, learning_rate=rate, **options)


def state_of(learner):
    return {name: tensor.clone() for name, tensor in learner.tensors().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# ------------------------------------------------------------ one update


def test_update_is_one_adamw_step_on_the_mean_loss(kit):
    """Against torch's AdamW on a plain model, without clipping."""
    loaded, plain, sample = kit.load(), kit.plain(), kit.sample("e", [5, 6], [7, 8, 9])
    stats = sft(Learner(loaded), [sample], rate=1e-3, max_grad_norm=1e9)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0.0)
    logprobs = plain(torch.tensor([sample.ids])).logits[0, 1:4].log_softmax(-1)
    loss = -logprobs[torch.arange(3), torch.tensor([7, 8, 9])].mean()
    loss.backward()
    optimizer.step()
    assert stats.loss == pytest.approx(loss.item(), abs=1e-5)
    moved = torch.cat([p.detach().flatten() for p in plain.parameters()])
    assert float((kit.parameters(loaded) - moved).abs().max()) < 1e-4


def test_C09_update_does_not_depend_on_the_micro_batches(kit):
    results = []
    for size in (1, 60, 10_000):
        loaded = kit.load()
        stats = sft(Learner(loaded), kit.family(5), micro_batch_tokens=size)
        results.append((stats.loss, stats.grad_norm, kit.parameters(loaded)))
    for loss, norm, _ in results[1:]:
        assert loss == pytest.approx(results[0][0], rel=1e-5)
        assert norm == pytest.approx(results[0][1], rel=1e-5)


def test_memory_is_given_back_between_micro_batches(kit, monkeypatch):
    """Otherwise the holes that batches of different shapes leave add up over an update."""
    calls = []
    monkeypatch.setattr("deedrl.training.optimiser.give_back", lambda: calls.append(1))
    samples = kit.family()
    sft(Learner(kit.load()), samples, micro_batch_tokens=1)
    assert len(calls) == len(pack(samples, micro_batch_tokens=1)) - 1 > 1


@pytest.mark.parametrize("steps_before", [0, 2])
def test_C05_empty_batch_changes_neither_parameters_nor_optimiser(kit, steps_before):
    learner = Learner(kit.load(), weight_decay=0.1)
    for _ in range(steps_before):
        sft(learner, kit.family())
    before = state_of(learner)
    stats = sft(learner, [kit.sample("masked", [5, 6, 7])])
    assert stats.empty
    assert (stats.loss, stats.grad_norm) == (0.0, 0.0)
    assert same(before, state_of(learner))
    assert learner.updates == steps_before


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_gradient_that_is_not_finite_is_skipped_and_leaves_everything_unchanged(kit, value):
    learner = Learner(kit.load())
    sft(learner, kit.family())
    before = state_of(learner)
    stats = learner.update(
        pack(kit.family(), micro_batch_tokens=9999),
        lambda batch, logprobs: logprobs.sum() * value,
        learning_rate=1.0,
        max_grad_norm=1.0,
    )
    assert stats.skipped
    assert same(before, state_of(learner))
    assert not sft(learner, kit.family()).skipped, "the bad gradient must be gone"


def test_gradient_norm_is_reported_before_clipping(kit):
    norms = [sft(Learner(kit.load()), kit.family(), max_grad_norm=limit).grad_norm for limit in (1e-3, 1e9)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)
    assert norms[0] > 1e-3


def test_learning_rate_zero_moves_nothing(kit):
    learner = Learner(kit.load())
    before = kit.parameters(learner.loaded)
    sft(learner, kit.family(), rate=0.0)
    assert torch.equal(kit.parameters(learner.loaded), before)


def test_model_without_trainable_parameters_is_refused(kit):
    with pytest.raises(ValueError, match="no trainable parameters; add an adapter"):
        Learner(kit.load(trainable=False))


def test_trainable_parameters_in_bfloat16_are_refused(kit):
    """AdamW in bfloat16 rounds small updates away."""
    loaded = kit.load()
    loaded.model.to(torch.bfloat16)
    with pytest.raises(ModelError, match=r"float32, got torch.bfloat16.*set model\.dtype to fp32"):
        Learner(loaded)


def test_snapshot_and_restore_are_exact(kit):
    learner = Learner(kit.load())
    snapshot = learner.snapshot()
    before = kit.parameters(learner.loaded)
    sft(learner, kit.family())
    assert not torch.equal(kit.parameters(learner.loaded), before)
    learner.restore(snapshot)
    assert torch.equal(kit.parameters(learner.loaded), before)


# ------------------------------------------------------------ C17


def run(kit, steps, learner, start=0):
    for step in range(start, steps):
        sft(learner, [kit.family(6)[step % 6], kit.family(6)[(step + 1) % 6]], rate=RATES[step])


def test_C17_five_steps_saved_loaded_and_five_more_equal_ten(kit, tmp_path):
    straight = Learner(kit.load(), weight_decay=0.01)
    run(kit, 10, straight)
    first = Learner(kit.load(), weight_decay=0.01)
    run(kit, 5, first)
    save_file(first.tensors(), tmp_path / "state.safetensors")
    second = Learner(kit.load(), weight_decay=0.01)
    second.load_tensors(load_file(tmp_path / "state.safetensors"))
    assert second.updates == first.updates == 5
    run(kit, 10, second, start=5)
    difference = (kit.parameters(second.loaded) - kit.parameters(straight.loaded)).abs().max()
    assert float(difference) < 1e-6
    assert same(state_of(second), state_of(straight))


def test_C17_without_the_moments_the_parameters_would_differ(kit):
    """Shows that the test above can fail."""
    straight, broken = Learner(kit.load()), Learner(kit.load())
    run(kit, 7, straight)
    run(kit, 5, broken)
    fresh = Learner(kit.load())
    fresh.load_tensors({n: t for n, t in broken.tensors().items() if n.startswith("parameter.")})
    run(kit, 7, fresh, start=5)
    assert float((kit.parameters(fresh.loaded) - kit.parameters(straight.loaded)).abs().max()) > 1e-5


def test_C17_state_from_before_the_first_update_clears_the_moments_of_a_used_learner(kit):
    learner = Learner(kit.load())
    start = state_of(learner)
    run(kit, 3, learner)
    learner.load_tensors(start)
    assert same(state_of(learner), start)
    again, fresh = learner, Learner(kit.load())
    run(kit, 2, again)
    run(kit, 2, fresh)
    assert same(state_of(again), state_of(fresh))


def test_state_that_lacks_a_parameter_is_a_key_error_with_its_name(kit):
    learner = Learner(kit.load())
    state = learner.tensors()
    name = next(iter(state))
    del state[name]
    with pytest.raises(KeyError, match=name.split(".")[1]):
        learner.load_tensors(state)


def test_state_holds_the_adapter_only(kit):
    loaded = add_adapter(kit.load(trainable=False), rank=2, alpha=4, dropout=0.0, target="all-linear", seed=0)
    assert all("lora_" in name for name in Learner(loaded).tensors())


# ------------------------------------------------------------ dropout


def adapted(kit, dropout):
    return add_adapter(kit.load(trainable=False), rank=4, alpha=8, dropout=dropout, target="all-linear", seed=0)


def test_dropout_acts_in_supervised_updates_and_ends_with_them(kit):
    with_dropout, without = Learner(adapted(kit, 0.5)), Learner(adapted(kit, 0.0))
    for learner in (with_dropout, without):
        for _ in range(3):
            sft(learner, kit.family())
        assert not any(module.training for module in learner.loaded.model.modules())
    assert not torch.allclose(kit.parameters(with_dropout.loaded), kit.parameters(without.loaded), atol=1e-4)


def test_C17_dropout_continues_its_random_stream_after_a_resume(kit):
    straight, first, second = (Learner(adapted(kit, 0.5)) for _ in range(3))
    run(kit, 6, straight)
    run(kit, 3, first)
    torch.rand(100)
    second.load_tensors(first.tensors())
    run(kit, 6, second, start=3)
    assert same(state_of(second), state_of(straight))


def test_dropout_leaves_torch_random_alone(kit):
    learner = Learner(adapted(kit, 0.5))
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    sft(learner, kit.family())
    assert torch.equal(torch.rand(1), expected)


# ------------------------------------------------------------ schedules


def test_schedule_warms_up_linearly_and_ends_at_the_final_rate():
    rates = [scheduled_rate(s, 6, peak=1.0, final=0.1, schedule="linear", warmup=2) for s in range(6)]
    assert rates == pytest.approx([0.5, 1.0, 1.0, 0.7, 0.4, 0.1])


def test_cosine_is_half_way_in_the_middle():
    rates = [scheduled_rate(s, 5, peak=1.0, final=0.0, schedule="cosine") for s in range(5)]
    assert rates == pytest.approx([1.0, 0.5 + math.sqrt(0.125), 0.5, 0.5 - math.sqrt(0.125), 0.0])


def test_constant_stays_at_the_peak():
    assert {scheduled_rate(s, 9, peak=0.3, final=0.0, schedule="constant") for s in range(9)} == {0.3}


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_single_step_runs_at_the_peak(schedule):
    assert scheduled_rate(0, 1, peak=1.0, final=0.0, schedule=schedule) == 1.0


@given(
    steps=st.integers(1, 50),
    warmup=st.integers(0, 60),
    schedule=st.sampled_from(["constant", "linear", "cosine"]),
    final=st.floats(0, 1),
)
def test_rates_rise_in_the_warm_up_then_never_rise_and_stay_in_range(steps, warmup, schedule, final):
    rates = [scheduled_rate(s, steps, peak=1.0, final=final, schedule=schedule, warmup=warmup) for s in range(steps)]
    assert all(0 <= rate <= 1 + 1e-12 for rate in rates)
    assert all(rate > 0 for rate in rates[: warmup or 1])
    up, down = rates[:warmup], rates[warmup:]
    assert up == sorted(up)
    assert all(a >= b - 1e-12 for a, b in itertools.pairwise(down))
