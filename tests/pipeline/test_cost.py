from __future__ import annotations

from typing import Any

import pytest

from deedrl.pipeline.cost import estimate, estimate_text
from deedrl.pipeline.lengths import episode_lengths
from deedrl.pipeline.recipe import Recipe, recipe_from
from deedrl.pipeline.work import SIGNAL, UNTAUGHT_TURN, work_of
from deedrl.planning.load import EpisodeLengths
from deedrl.planning.machine import CPU_FP32, GIB, Machine
from deedrl.planning.memory import Memory
from deedrl.planning.shape import EMBEDDED

LAPTOP = Machine(cores=1, memory_bytes=8 * GIB, fast_bf16=False)
SIZES = EpisodeLengths(prefix=100, task=20, turns=2, turn=30, observation=10)


def made(*stages: dict[str, Any], **changes: Any) -> Recipe:
    return recipe_from({"name": "tiny", "stages": list(stages), **changes})


def test_baseline_time_by_hand() -> None:
    recipe = made({"stage": "baseline", "tasks": 10}, limits={"max_steps": 2}, sampling={"max_tokens": 20})
    lengths, _ = episode_lengths(recipe)
    cost = estimate(recipe, LAPTOP)
    turns, turn = min(lengths.turns, 2), UNTAUGHT_TURN * 20
    sampled = 10 * turns * turn
    read = lengths.prefix + 10 * (lengths.task + (turns - 1) * lengths.observation)
    passes = turns * 20  # the longest episode uses all the tokens of its turns
    work = (sampled + passes * CPU_FP32.rows) / CPU_FP32.decode + read / CPU_FP32.prefill
    assert cost.stages[0].sampled_tokens == pytest.approx(sampled)
    assert cost.seconds == pytest.approx(2 * EMBEDDED.parameters * work)


def test_tokens_of_an_update_are_those_that_are_computed() -> None:
    """Of 4 tasks half have a signal; siblings share the task and some more, everyone the prefix."""
    grpo = {"stage": "grpo", "tasks_per_step": 4, "group_size": 1 + 1, "steps": 3, "refill_attempts": 0}
    recipe = made(grpo | {"validate_every": 0, "kl_coefficient": 0.0})
    [update] = work_of(recipe, recipe.stages[0], SIZES).learns
    apart, alike = 100 + 4 * SIGNAL * (20 + 2 * 70), 100 + 4 * SIGNAL * (20 + 70)
    assert alike < update.tokens < apart
    assert (update.times, update.operations) == (3, 4)
    every = made(grpo | {"kl_on_zero_variance": True})
    [held] = work_of(every, every.stages[0], SIZES).learns
    assert held.tokens - 100 == pytest.approx((update.tokens - 100) / SIGNAL)
    assert held.operations == 4 + 2, "and the reference's pass"


def test_refills_play_and_teach_more() -> None:
    grpo = {"stage": "grpo", "tasks_per_step": 4, "group_size": 2, "steps": 3, "validate_every": 0}
    none, some = (work_of(r, r.stages[0], SIZES) for r in (made(grpo | {"refill_attempts": n}) for n in (0, 1)))
    assert [play.tasks for play in some.plays[:-1]] == [4, 4 * (1 - SIGNAL)]
    assert some.learns[0].tokens > none.learns[0].tokens


def test_more_episodes_than_are_in_flight_take_longer_but_less_each() -> None:
    [few] = work_of(*_evaluation(40), SIZES).plays
    [many] = work_of(*_evaluation(160), SIZES).plays
    assert few.passes(40) < many.passes(40) < 4 * few.passes(40)
    assert many.passes(160) == few.passes(40)


def _evaluation(tasks: int) -> tuple[Recipe, Any]:
    recipe = made({"stage": "sft", "steps": 1}, {"stage": "evaluate"}, tasks={"test": tasks}, limits={"max_steps": 4})
    return recipe, recipe.stages[1]


def test_sft_with_a_target_ends_half_way_and_says_so() -> None:
    sft = {"stage": "sft", "steps": 60, "validate_every": 5, "validate_from": 40}
    whole, short = (estimate(made(sft | more), LAPTOP) for more in ({}, {"target_completion": 0.7}))
    assert short.stages[0].trained_tokens == pytest.approx(50 / 60 * whole.stages[0].trained_tokens)
    assert any("sft ends at its target" in note for note in short.notes)
    assert not any("target" in note for note in whole.notes)


def test_what_taught_policies_say_is_shorter() -> None:
    baseline, _, evaluate = estimate(
        made({"stage": "baseline"}, {"stage": "sft", "steps": 1}, {"stage": "evaluate"}), LAPTOP
    ).stages
    assert evaluate.sampled_tokens < baseline.sampled_tokens


def test_memory_of_sampling_alone_has_no_optimiser() -> None:
    recipe = made({"stage": "baseline"}, model={"path": "embedded", "dtype": "fp32"})
    cost = estimate(recipe, LAPTOP)
    parts = cost.memory
    assert cost.memory_bytes == pytest.approx(
        parts.process + parts.weights + parts.cache + parts.sampling_weights + parts.sampling_work
    )


def test_memory_is_that_of_the_stage_which_takes_most() -> None:
    small = {"stage": "sft", "steps": 1, "micro_batch_tokens": 512}
    large = {"stage": "grpo", "micro_batch_tokens": 8192}
    both = estimate(made(small, large), LAPTOP).memory_bytes
    assert both == estimate(made(large), LAPTOP).memory_bytes
    assert both > estimate(made(small), LAPTOP).memory_bytes


def test_the_longest_episode_decides_about_the_cache() -> None:
    short = estimate(made({"stage": "baseline"}, limits={"max_steps": 2}), LAPTOP)
    long = estimate(made({"stage": "baseline"}, limits={"max_steps": 12}), LAPTOP)
    assert long.memory.cache > 2 * short.memory.cache


def test_twice_the_cores_take_half_the_time() -> None:
    recipe = made({"stage": "grpo"})
    two = Machine(cores=2, memory_bytes=8 * GIB, fast_bf16=False)
    assert estimate(recipe, two).seconds == pytest.approx(estimate(recipe, LAPTOP).seconds / 2)


def test_each_gpu_holds_the_whole_model_and_they_share_the_time() -> None:
    recipe = made({"stage": "grpo"})
    one, two = (
        estimate(recipe, Machine(cores=2, memory_bytes=8 * GIB, fast_bf16=False, gpus=(("GPU", 24 * GIB),) * count))
        for count in (1, 2)
    )
    assert two.memory == one.memory
    assert one.seconds / 2 < two.seconds < one.seconds, "a pass reads all weights, however few its rows"
    assert any("torchrun --nproc_per_node 2" in note for note in two.notes)
    assert not any("torchrun" in note for note in one.notes)


@pytest.mark.parametrize("critic", ["value_head", "adapter"])
def test_only_moments_are_cut_among_gpus_where_the_recipe_asks_for_it(critic: str) -> None:
    four = Machine(cores=2, memory_bytes=8 * GIB, fast_bf16=False, gpus=(("GPU", 24 * GIB),) * 4)
    whole, cut = (
        estimate(made({"stage": "ppo", "critic": critic}, processes={"shard": shard}), four).memory
        for shard in ("none", "optimiser")
    )
    of_critic = 0.75 * whole.optimiser if critic == "adapter" else 0.0
    assert cut.optimiser == pytest.approx(whole.optimiser / 4)
    assert cut.held == pytest.approx(whole.held - 0.75 * whole.optimiser - of_critic)
    assert cut.peak - cut.held == pytest.approx(whole.peak - whole.held)
    alone = made({"stage": "ppo", "critic": critic}, processes={"shard": "optimiser"})
    assert estimate(alone, LAPTOP) == estimate(made({"stage": "ppo", "critic": critic}), LAPTOP)


@pytest.mark.parametrize("adapter", [None, {"rank": 16}])
def test_weights_are_cut_among_gpus_but_for_sampling(adapter: dict[str, int] | None) -> None:
    four = Machine(cores=2, memory_bytes=8 * GIB, fast_bf16=False, gpus=(("GPU", 24 * GIB),) * 4)

    def of(shard: str) -> Memory:
        model = {"path": "embedded", "adapter": adapter}
        return estimate(made({"stage": "grpo"}, model=model, processes={"shard": shard}), four).memory

    moments, weights = of("optimiser"), of("weights")
    assert weights.optimiser == moments.optimiser
    layer = weights.weights - moments.weights / 4
    assert 0 < layer < moments.weights / 2  # what is gathered at one time, and an adapter
    assert weights.update_peak < moments.update_peak
    assert weights.sampling_weights == pytest.approx(0.75 * moments.weights, rel=0.1)  # without the adapter
    if adapter is None:
        assert weights.gradients == moments.gradients / 4
        assert weights.reference == moments.reference / 4
    else:
        assert weights.gradients == moments.gradients


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


@pytest.mark.parametrize(("start", "validations"), [(0, 3), (4, 2), (9, 1), (10, 0)])
def test_validations_of_sft_count_from_where_they_begin(start: int, validations: int) -> None:
    sft = {"stage": "sft", "steps": 9, "validate_every": 3, "validate_from": start, "validation_tasks": 5}
    [stage] = estimate(made(sft), LAPTOP).stages
    assert stage.episodes == 5 * validations


def test_a_large_model_on_a_laptop_does_not_fit_and_says_so() -> None:
    recipe = made({"stage": "baseline"}, model="some/Model-7B-Instruct")
    cost = estimate(recipe, LAPTOP)
    assert not cost.fits
    text = "\n".join(estimate_text(cost, LAPTOP))
    assert "does NOT fit" in text
    assert "guessed from its name" in text


def test_a_profile_plays_every_task_so_often_and_learns_nothing() -> None:
    recipe = made({"stage": "profile", "attempts": 3}, {"stage": "sft", "steps": 1}, {"stage": "profile", "name": "b"})
    work = work_of(recipe, recipe.stages[0], SIZES)
    assert [(play.episodes, play.tasks) for play in work.plays] == [(960, 320)]
    assert work.learns == ()
    few = made({"stage": "profile", "tasks": 10}, tasks={"train": 12})
    assert work_of(few, few.stages[0], SIZES).plays[0].episodes == 40
    untaught, _, taught = estimate(recipe, LAPTOP).stages
    assert untaught.sampled_tokens > taught.sampled_tokens
