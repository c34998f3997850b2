"""Agreement of raters: by hand, against the published example, and against pairs counted one by one."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deedrl.evaluation.rater_agreement import rater_agreement

# Krippendorff 2011, section C: four observers, twelve units, nominal alpha 0.743.
PUBLISHED = {
    "A": "1 2 3 3 2 1 4 1 2 . . .",
    "B": "1 2 3 3 2 2 4 1 2 5 . 3",
    "C": ". 3 3 3 2 3 4 2 2 5 1 .",
    "D": "1 2 3 3 2 4 4 1 2 5 1 .",
}


def by_item(rows):
    table = {rater: row.split() for rater, row in rows.items()}
    return {unit: {r: row[unit] for r, row in table.items() if row[unit] != "."} for unit in range(12)}


def test_the_published_example():
    found = rater_agreement(by_item(PUBLISHED))
    assert found.alpha == pytest.approx(0.743, abs=5e-4)
    assert (found.raters, found.items, found.rated_twice) == (4, 12, 11)


def test_two_raters_by_hand():
    ratings = {1: {"a": "first", "b": "first"}, 2: {"a": "second", "b": "first"}, 3: {"a": "tie"}}
    found = rater_agreement(ratings)
    assert (found.comparisons, found.agreeing, found.raw, found.rated_twice) == (2, 1, 0.5, 2)
    assert found.alpha == pytest.approx(1 - 3 * 2 / 6)


def test_nothing_rated_twice_or_all_of_it_alike_has_no_alpha():
    assert rater_agreement({}).alpha is None
    assert rater_agreement({1: {"a": "x"}, 2: {"b": "y"}}).raw is None
    alike = rater_agreement({1: {"a": "x", "b": "x"}})
    assert (alike.raw, alike.alpha) == (1.0, None)


def slow_alpha(ratings):
    units = [list(of.values()) for of in ratings.values() if len(of) > 1]
    values = [value for unit in units for value in unit]
    count = len(values)
    observed = sum(sum(a != b for a, b in permutations(unit, 2)) / (len(unit) - 1) for unit in units) / count
    expected = sum(a != b for a, b in permutations(values, 2)) / (count * (count - 1))
    return 1 - observed / expected if expected else None


@given(
    st.dictionaries(
        st.integers(0, 8),
        st.dictionaries(st.sampled_from("abcd"), st.sampled_from(["first", "second", "tie"]), max_size=4),
        max_size=8,
    )
)
def test_alpha_is_one_less_observed_over_expected_disagreement(ratings):
    found = rater_agreement(ratings)
    if not found.rated_twice:
        assert found.alpha is None
        return
    expected = slow_alpha(ratings)
    assert found.alpha == (None if expected is None else pytest.approx(expected))
    assert found.alpha is None or found.alpha <= 1
    swapped = {item: dict(reversed(of.items())) for item, of in ratings.items()}
    assert rater_agreement(swapped) == found
