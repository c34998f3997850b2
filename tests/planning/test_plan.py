from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from deedrl.errors import ConfigError
from deedrl.planning.load import Load
from deedrl.planning.machine import CPU_FP32, GIB, GPU_BF16, MICRO_BATCH, Machine
from deedrl.planning.plan import SAMPLED_SHARE, Request, checked, notes, step_time, times_within
from deedrl.planning.remedies import MAPPED, remedies
from deedrl.planning.shape import EMBEDDED, ModelShape, model_shape
from deedrl.planning.words import plan_json, plan_text

LAPTOP = Machine(cores=1, memory_bytes=16 * GIB, fast_bf16=False)
SEVEN = model_shape("some/model-7B")


def request(shape: ModelShape = EMBEDDED, machine: Machine = LAPTOP, **changes: Any) -> Request:
    return checked(Request(**({"shape": shape, "machine": machine, "algorithm": "grpo"} | changes)))


def with_gpus(count: int, gigabytes: int) -> Machine:
    return replace(LAPTOP, gpus=(("GPU", gigabytes * GIB),) * count)


def test_time_of_a_step_by_hand() -> None:
    load = Load(prefix_tokens=100, own_tokens=200, episodes=4, group_size=2)
    time = step_time(request(load=load))
    learnt = 100 + 2 * 50 + 4 * 150
    sampled = 4 * 200 * SAMPLED_SHARE
    trained = EMBEDDED.parameters * (learnt + MICRO_BATCH) / CPU_FP32.train
    assert time.update == pytest.approx(4 * trained)
    assert time.reference == pytest.approx(2 * trained)
    passes = 200 * SAMPLED_SHARE
    by_hand = (sampled + passes * CPU_FP32.rows) / CPU_FP32.decode + (learnt - sampled) / CPU_FP32.prefill
    assert time.sampling == pytest.approx(2 * EMBEDDED.parameters * by_hand)


def test_fewer_episodes_at_once_need_more_passes() -> None:
    one, two = (step_time(request(load=Load(concurrency=n))).sampling for n in (48, 24))
    assert one < two < 2 * one


def test_a_range_is_wider_where_something_was_not_measured() -> None:
    assert times_within(request(), 30) == (20, 45)
    assert times_within(request(machine=with_gpus(1, 24)), 30) == (15, 60)
    assert times_within(request(SEVEN), 30) == (15, 60)


def test_all_weights_take_half_as_long_again() -> None:
    assert step_time(request(tuning="full")).update == pytest.approx(1.5 * step_time(request()).update)


def test_supervised_learning_neither_samples_nor_has_a_reference() -> None:
    time = step_time(request(algorithm="sft"))
    assert time.sampling == time.reference == 0
    assert time.total == time.update


def test_ppo_takes_longer_and_with_a_model_for_the_critic_more_memory_than_grpo() -> None:
    grpo = step_time(request()).update
    assert step_time(request(algorithm="ppo")).update == pytest.approx(1.5 * grpo)
    assert step_time(request(algorithm="ppo", critic="adapter")).update == pytest.approx(2.5 * grpo)
    load = Load(micro_batch_tokens=512)
    policy = request(SEVEN, tuning="full", load=load).memory
    head, model = (
        request(SEVEN, algorithm="ppo", critic=c, tuning="full", load=load).memory for c in ("value_head", "model")
    )
    assert head.peak == policy.peak
    assert model.peak - policy.peak == 12 * SEVEN.parameters


def test_dtype_follows_the_machine_unless_told() -> None:
    assert not request().bf16
    assert request(machine=with_gpus(1, 24)).bf16
    assert not request(machine=with_gpus(1, 24), dtype="fp32").bf16
    assert not request(machine=with_gpus(1, 24), tuning="full").bf16
    assert GPU_BF16.train > CPU_FP32.train


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tuning": "full", "dtype": "bf16"}, "--dtype: expected fp32"),
        ({"rank": 1000}, "--rank: expected at most .* 576, got 1000"),
        ({"algorithm": "ppo", "critic": "none"}, "--critic: expected value_head, adapter or model for ppo"),
        ({"algorithm": "ppo", "critic": "adapter", "tuning": "full"}, "--critic: expected value_head or model with"),
        ({"load": Load(group_size=1)}, "--group-size: expected at least 2"),
        ({"load": Load(episodes=4)}, "--episodes: expected at least the 6 of one group, got 4"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        request(**changes)


def test_pairs_and_demonstrations_have_their_own_siblings() -> None:
    assert request(algorithm="sft", load=Load(group_size=8)).load.group_size == 1
    assert request(algorithm="dpo", load=Load(group_size=8)).load.group_size == 2


# ---------------------------------------------------------------- what to change


def small(gigabytes: float) -> Machine:
    return replace(LAPTOP, memory_bytes=int(gigabytes * GIB))


def test_what_fits_needs_no_remedy() -> None:
    assert request().fits
    assert "remedies" in plan_json(request(), "embedded")
    assert plan_json(request(), "embedded")["remedies"] == []


def test_a_smaller_micro_batch_is_named_with_a_value_that_fits() -> None:
    tight = request(machine=small(4.5))
    assert not tight.fits
    flag = next(flag for (flag,) in remedies(tight) if flag.startswith("--micro-batch-tokens"))
    value = int(flag.split()[1])
    assert request(machine=small(4.5), load=Load(micro_batch_tokens=value)).fits
    assert not request(machine=small(4.5), load=Load(micro_batch_tokens=2 * value)).fits


def test_a_full_cache_is_helped_by_fewer_episodes_at_once() -> None:
    load = Load(own_tokens=3000, micro_batch_tokens=3000, episodes=400, concurrency=400)
    tight = request(machine=small(40), load=load)
    assert any(flags == ("--concurrency 200",) for flags in remedies(tight))


def test_several_changes_together_where_none_is_enough() -> None:
    flags = remedies(request(SEVEN, with_gpus(1, 24), tuning="full"))
    assert len(flags) == 1
    assert any(flag.startswith("--micro-batch-tokens") for flag in flags[0])
    assert "--tuning lora" in flags[0]


def test_more_gpus_are_a_remedy_where_there_are_some() -> None:
    found = remedies(request(SEVEN, with_gpus(8, 40), tuning="full", load=Load(micro_batch_tokens=512)))
    assert ("--gpus 16x40GB",) in found


def test_on_a_processor_the_heaps_holes_can_be_avoided() -> None:
    tight = request(machine=small(4.5))
    assert not tight.fits
    assert (MAPPED,) in remedies(tight)


def test_nothing_helps_a_model_that_is_far_too_large() -> None:
    hopeless = request(SEVEN, small(4))
    assert remedies(hopeless) == ()
    assert "take a smaller model or a larger machine" in "\n".join(plan_text(hopeless, "some/model-7B"))


# ---------------------------------------------------------------- in words


def test_the_text_names_every_part_of_the_memory() -> None:
    text = "\n".join(plan_text(request(), "embedded"))
    for part in (
        "weights",
        "gradients",
        "optimiser state",
        "activations",
        "logits",
        "KV cache",
        "reference",
        "process",
    ):
        assert part in text
    assert "critic" not in text
    assert "fits: " in text


def test_what_was_not_measured_says_so() -> None:
    assert notes(request()) == ()
    assert notes(request(algorithm="ppo")) == ()
    assert "not checked by measurement" in notes(request(algorithm="dpo"))[0]
    assert "for comparison" in notes(request(algorithm="ppo", critic="model"))[0]
    assert any("data sheets, not measured" in note for note in notes(request(machine=with_gpus(2, 24))))
    assert any("guessed from the size" in note for note in notes(request(SEVEN)))


def test_json_has_bytes_seconds_and_a_verdict() -> None:
    plain = plan_json(request(SEVEN, with_gpus(2, 24)), "some/model-7B")
    assert plain["memory_bytes"]["peak"] >= plain["memory_bytes"]["weights"]
    assert plain["seconds"]["total"] > 0
    assert plain["fits"] is False
    assert plain["remedies"]
