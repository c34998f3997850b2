"""Advantages by hand and against properties."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deedrl.training.advantages import dr_grpo, grpo, has_signal, rloo

ESTIMATORS = [grpo, dr_grpo, rloo]
rewards_lists = st.lists(st.none() | st.floats(0, 1), max_size=12)


def test_dr_grpo_is_reward_minus_mean():
    assert dr_grpo([1.0, 0.0, 0.0, 1.0]) == [0.5, -0.5, -0.5, 0.5]


def test_grpo_divides_by_the_population_deviation():
    # Mean 0.25, variance (0.75² + 3 · 0.25²) / 4 = 0.1875.
    scale = math.sqrt(0.1875) + 1e-4
    assert grpo([1.0, 0.0, 0.0, 0.0]) == pytest.approx([0.75 / scale] + [-0.25 / scale] * 3)


def test_rloo_subtracts_the_mean_of_the_others():
    assert rloo([1.0, 0.5, 0.0]) == pytest.approx([1 - 0.25, 0.5 - 0.5, 0 - 0.75])


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("size", [2, 6, 8, 16])
@pytest.mark.parametrize("reward", [0.1, 0.3, 0.7])
def test_C01_equal_rewards_give_exactly_zero(estimator, size, reward):
    assert estimator([reward] * size) == [0.0] * size


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_C01_rewards_that_differ_by_float_noise_count_as_equal(estimator):
    rewards = [0.1 + 0.2, 0.3, 0.3, 0.1 + 0.2]
    assert len(set(rewards)) == 2
    assert estimator(rewards) == [0.0] * 4
    assert not has_signal(rewards)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("rewards", [[0.7], [0.7, None, None, None], [None, None], []])
def test_C02_nothing_to_compare_with_gives_zeros(estimator, rewards):
    assert estimator(rewards) == [0.0] * len(rewards)
    assert not has_signal(rewards)


def test_C03_unscored_sibling_is_in_no_mean_and_gets_zero():
    # The mean of the three scored ones is 2/3.
    assert dr_grpo([1.0, None, 0.0, 1.0]) == pytest.approx([1 / 3, 0.0, -2 / 3, 1 / 3])
    assert rloo([1.0, None, 0.0, 1.0]) == pytest.approx([0.5, 0.0, -1.0, 0.5])
    assert grpo([1.0, None, 0.0, 1.0])[1] == 0.0


@pytest.mark.parametrize("estimator", ESTIMATORS)
@given(rewards=rewards_lists)
def test_advantages_are_finite_sum_to_zero_and_keep_the_order(estimator, rewards):
    advantages = estimator(rewards)
    assert len(advantages) == len(rewards)
    assert all(math.isfinite(advantage) for advantage in advantages)
    assert sum(advantages) == pytest.approx(0, abs=1e-7)
    pairs = [(r, a) for r, a in zip(rewards, advantages, strict=True) if r is not None]
    for (r, a), (s, b) in itertools.pairwise(pairs):
        assert (a - b) * (r - s) >= 0


@given(rewards=st.lists(st.floats(0, 1), min_size=2, max_size=10))
def test_rloo_equals_its_slow_loop(rewards):
    if not has_signal(rewards):
        return
    expected = [r - statistics.fmean(rewards[:i] + rewards[i + 1 :]) for i, r in enumerate(rewards)]
    assert rloo(rewards) == pytest.approx(expected, abs=1e-9)


@given(rewards=rewards_lists, shift=st.floats(-1, 1))
def test_a_constant_added_to_all_rewards_changes_nothing(rewards, shift):
    shifted = [None if r is None else r + shift for r in rewards]
    if has_signal(rewards, 1e-3):
        assert dr_grpo(shifted) == pytest.approx(dr_grpo(rewards), abs=1e-9)
