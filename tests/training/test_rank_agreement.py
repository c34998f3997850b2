"""Agreement of scores with comparisons, against enumeration and by hand."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deedrl.training.rank_agreement import Comparison, Place, kendall_tau_b, rank_agreement


def slow_tau_b(one, other):
    """By the definition with signs over all ordered pairs: correlation of sign matrices."""
    sign = lambda x: (x > 0) - (x < 0)  # noqa: E731
    a = [sign(x - y) for x, y in product(one, one)]
    b = [sign(x - y) for x, y in product(other, other)]
    norm = math.sqrt(sum(x * x for x in a) * sum(x * x for x in b))
    return sum(x * y for x, y in zip(a, b, strict=True)) / norm if norm else None


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=9))
def test_tau_b_is_the_correlation_of_signs(pairs):
    one, other = [a for a, _ in pairs], [b for _, b in pairs]
    found, expected = kendall_tau_b(one, other), slow_tau_b(one, other)
    assert found == (None if expected is None else pytest.approx(expected))


def test_tau_b_by_hand():
    assert kendall_tau_b([1, 2, 3], [4, 5, 6]) == 1
    assert kendall_tau_b([1, 2, 3], [6, 5, 4]) == -1
    assert kendall_tau_b([1, 2, 3, 4], [1, 2, 4, 3]) == pytest.approx(4 / 6)
    assert kendall_tau_b([1, 1, 2], [1, 2, 3]) == pytest.approx(2 / math.sqrt(2 * 3))
    assert kendall_tau_b([1, 1], [1, 2]) is None
    assert kendall_tau_b([], []) is None


def compare(better, worse, task="t", tie=False):
    return Comparison(task_id=task, better=Place(better), worse=Place(worse), tie=tie)


def test_accuracy_counts_equal_scores_half_and_no_ties():
    comparisons = [compare("a", "b"), compare("a", "c"), compare("c", "b"), compare("b", "c", tie=True)]
    found = rank_agreement(comparisons, {Place("a"): 1.0, Place("b"): 0.0, Place("c"): 0.0})
    assert (found.compared, found.agreeing) == (3, 2.5)
    assert found.accuracy == pytest.approx(2.5 / 3)
    assert found.confidence == pytest.approx((2 / (1 + math.exp(-1)) + 0.5) / 3)


def test_weights_are_rated_by_accuracy_first_and_then_by_how_sure_they_are():
    comparisons = [compare("a", "b"), compare("c", "b")]

    def rating(a, b, c):
        return rank_agreement(comparisons, {Place("a"): a, Place("b"): b, Place("c"): c}).rating

    assert rating(0.1, 0.0, 0.1) > rating(99.0, 0.0, -0.1)
    assert rating(2.0, 0.0, 2.0) > rating(1.0, 0.0, 2.0)
    assert 0 <= rating(-9999.0, 0.0, -9999.0) < rating(9999.0, 0.0, 9999.0) <= 1


def test_tau_is_the_mean_over_tasks_of_wins_less_losses_against_scores():
    comparisons = [compare("a", "b"), compare("a", "c"), compare("b", "c"), compare("x", "y", "u")]
    scores = {Place(name): value for name, value in {"a": 3.0, "b": 1.0, "c": 2.0, "x": 0.0, "y": 1.0}.items()}
    found = rank_agreement(comparisons, scores)
    assert found.tasks == 2
    assert found.tau == pytest.approx((1 / 3 - 1) / 2)
    constant = rank_agreement(comparisons, dict.fromkeys(scores, 0.5))
    assert (constant.accuracy, constant.tau) == (0.5, 0.0)


def test_nothing_to_compare_is_no_agreement_of_zero():
    found = rank_agreement([compare("a", "b", tie=True)], {})
    assert (found.accuracy, found.tau, found.confidence, found.rating, found.tasks) == (None, None, None, None, 0)
    circle = rank_agreement([compare("a", "b"), compare("b", "a")], {Place("a"): 1.0, Place("b"): 0.0})
    assert (circle.accuracy, circle.tau) == (0.5, None)
