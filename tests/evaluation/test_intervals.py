from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deedrl.evaluation.intervals import mcnemar_exact, mean_interval, paired_difference, t_quantile_975
from deedrl.tasks.intervals import wilson


def test_wilson_of_zero_in_ten():
    # z^2 / (n + z^2) = 3.8415 / 13.8415
    assert wilson(0, 10) == pytest.approx((0.0, 0.27753), abs=1e-5)


def test_wilson_of_half():
    assert wilson(5, 10) == pytest.approx((0.23659, 0.76341), abs=1e-5)


def test_wilson_of_nine_in_ten():
    assert wilson(9, 10) == pytest.approx((0.59585, 0.98212), abs=1e-5)


@given(st.integers(1, 500).flatmap(lambda trials: st.tuples(st.integers(0, trials), st.just(trials))))
def test_wilson_holds_the_share_and_stays_in_range(counts):
    successes, trials = counts
    low, high = wilson(successes, trials)
    assert 0.0 <= low <= successes / trials <= high <= 1.0


@pytest.mark.parametrize(("degrees", "table"), [(1, 12.706), (2, 4.303), (3, 3.182), (5, 2.571), (30, 2.042)])
def test_t_quantiles_agree_with_the_table(degrees, table):
    assert t_quantile_975(degrees) == pytest.approx(table, abs=0.01)


def test_mean_interval_by_hand():
    # mean 2, variance 1, 3 values: 2 +- 4.303 / sqrt(3)
    low, high = mean_interval([1, 2, 3])
    assert (low, high) == pytest.approx((2 - 4.303 / math.sqrt(3), 2 + 4.303 / math.sqrt(3)), abs=1e-3)


def test_mean_of_one_value_has_no_interval():
    assert mean_interval([3]) is None


@pytest.mark.parametrize(
    ("lost", "gained", "p"), [(0, 0, 1.0), (0, 5, 2 / 32), (1, 5, 2 * 7 / 64), (3, 3, 1.0), (0, 1200, 0.0)]
)
def test_mcnemar_by_hand(lost, gained, p):
    assert mcnemar_exact(lost, gained) == pytest.approx(p)


def test_paired_difference_without_correlation_joins_the_two_wilson_intervals():
    # 5 of 10 against 5 of 10, independent cells give phi 0 after the continuity correction
    low, high = paired_difference(both=3, only_after=2, only_before=2, neither=3)
    half = math.hypot(0.5 - 0.23659, 0.76341 - 0.5)
    assert (low, high) == pytest.approx((-half, half), abs=1e-4)


def test_paired_difference_is_narrower_when_pairs_agree():
    agreeing = paired_difference(both=50, only_after=5, only_before=5, neither=40)
    mixed = paired_difference(both=30, only_after=25, only_before=25, neither=20)
    assert agreeing[1] - agreeing[0] < mixed[1] - mixed[0]


def test_paired_difference_from_none_to_all():
    low, high = paired_difference(both=0, only_after=20, only_before=0, neither=0)
    assert 0.7 < low < 1.0
    assert high == 1.0


@given(*[st.integers(0, 40)] * 4)
def test_paired_difference_holds_the_difference(both, gained, lost, neither):
    pairs = both + gained + lost + neither
    if pairs:
        low, high = paired_difference(both, gained, lost, neither)
        assert low - 1e-9 <= (gained - lost) / pairs <= high + 1e-9
