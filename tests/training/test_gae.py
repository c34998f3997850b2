"""Advantages over action tokens by hand, against the definition as a slow sum, and at the edges."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deedrl.training.gae import explained_variance, gae, whitened

number = st.floats(-3, 3)
share = st.floats(0, 1)
episodes = st.lists(st.tuples(number, number), max_size=9)


def slow_gae(rewards, values, end_value, gamma, lam):
    """Equation 16 of the paper, term by term: sum over l of (gamma lam)^l delta_(t + l)."""
    after = [*values, 0.0 if end_value is None else end_value][1:]
    deltas = [r + gamma * v_next - v for r, v, v_next in zip(rewards, values, after, strict=True)]
    count = len(rewards)
    return [sum((gamma * lam) ** (k - t) * deltas[k] for k in range(t, count)) for t in range(count)]


@given(tokens=episodes, end_value=st.none() | number, gamma=share, lam=share)
def test_gae_equals_its_slow_sum(tokens, end_value, gamma, lam):
    rewards, values = [r for r, _ in tokens], [v for _, v in tokens]
    credit = gae(rewards, values, end_value=end_value, gamma=gamma, lam=lam)
    expected = slow_gae(rewards, values, end_value, gamma, lam)
    assert credit.advantages == pytest.approx(expected, abs=1e-9)
    assert credit.returns == pytest.approx([a + v for a, v in zip(expected, values, strict=True)], abs=1e-9)


@given(tokens=episodes.filter(bool), end_value=st.none() | number, gamma=share)
def test_at_lambda_one_returns_are_the_discounted_sum_and_do_not_depend_on_the_critic(tokens, end_value, gamma):
    rewards, values = [r for r, _ in tokens], [v for _, v in tokens]
    returns = gae(rewards, values, end_value=end_value, gamma=gamma, lam=1.0).returns
    end, count = 0.0 if end_value is None else end_value, len(rewards)
    expected = [
        sum(gamma ** (k - t) * rewards[k] for k in range(t, count)) + gamma ** (count - t) * end for t in range(count)
    ]
    assert returns == pytest.approx(expected, abs=1e-9)


def test_B19_the_reward_of_a_row_that_ends_in_tool_tokens_lies_on_its_last_action():
    """Mask [1, 1, 0]: two action tokens, and what the critic says at the tool's (100) is not asked for."""
    credit = gae([0.0, 1.0], [0.2, 0.6], end_value=None, gamma=1.0, lam=0.95)
    last = 1.0 - 0.6
    assert credit.advantages == pytest.approx([0.6 - 0.2 + 0.95 * last, last])


def test_an_episode_that_a_limit_cut_goes_on_with_the_critics_value_and_one_that_ended_does_not():
    cut = gae([0.0, 0.0], [0.2, 0.6], end_value=0.5, gamma=0.9, lam=1.0)
    assert cut.advantages == pytest.approx([0.81 * 0.5 - 0.2, 0.45 - 0.6])
    ended = gae([0.0, 0.0], [0.2, 0.6], end_value=None, gamma=0.9, lam=1.0)
    assert ended.advantages == pytest.approx([-0.2, -0.6])
    # A value of 0 is a value: the same here, and still not the same thing.
    assert gae([0.0, 0.0], [0.2, 0.6], end_value=0.0, gamma=0.9, lam=1.0) == ended


def test_nothing_is_credited_with_nothing():
    assert gae([], [], end_value=None, gamma=1.0, lam=1.0) == ([], [])


def test_a_value_too_few_is_an_error():
    with pytest.raises(ValueError, match="a value for each of 2 rewards, got 1"):
        gae([0.0, 1.0], [0.0], end_value=None, gamma=1.0, lam=1.0)


@given(st.lists(st.lists(number, max_size=5), max_size=5))
def test_whitened_advantages_have_mean_zero_and_deviation_one_over_all_tokens_and_keep_their_order(ragged):
    found = whitened(ragged)
    assert [len(row) for row in found] == [len(row) for row in ragged]
    flat, before = ([x for row in rows for x in row] for rows in (found, ragged))
    if not flat:
        return
    mean = sum(before) / len(before)
    spread = math.sqrt(sum((x - mean) ** 2 for x in before) / len(before))
    if spread <= 1e-6:
        assert set(flat) <= {0.0}
        return
    assert sum(flat) / len(flat) == pytest.approx(0, abs=1e-6)
    assert sum(x * x for x in flat) / len(flat) == pytest.approx(1, abs=1e-6)
    assert flat == pytest.approx([(x - mean) / spread for x in before], abs=1e-6)


def test_C01_equal_advantages_are_whitened_to_zeros():
    assert whitened([[0.1 + 0.2, 0.3], [0.3]]) == [[0.0, 0.0], [0.0]]


@pytest.mark.parametrize(
    ("values", "expected"),
    [([0.0, 1.0, 0.0, 1.0], 1.0), ([0.5] * 4, 0.0), ([1.0, 0.0, 1.0, 0.0], -3.0), ([7.0, 8.0, 7.0, 8.0], 1.0)],
)
def test_explained_variance_by_hand(values, expected):
    """An offset does not count: only the variance is explained."""
    assert explained_variance(values, [0.0, 1.0, 0.0, 1.0]) == pytest.approx(expected)


def test_explained_variance_of_equal_returns_is_unknown():
    assert explained_variance([0.1, 0.9], [1.0, 1.0]) is None
    assert explained_variance([], []) is None
