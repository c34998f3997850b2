from __future__ import annotations

import pytest

from deedrl.errors import TaskError
from deedrl.tasks.quotas import apportion


@pytest.mark.parametrize(
    ("shares", "count", "expected"),
    [
        ({"easy": 0.5, "hard": 0.5}, 4, {"easy": 2, "hard": 2}),
        ({"easy": 1, "medium": 1, "hard": 1}, 10, {"easy": 4, "medium": 3, "hard": 3}),
        ({"easy": 0.6, "medium": 0.3, "hard": 0.1}, 7, {"easy": 4, "medium": 2, "hard": 1}),
        ({"easy": 3, "hard": 0}, 2, {"easy": 2, "hard": 0}),
        ({"easy": 1}, 0, {"easy": 0}),
    ],
)
def test_largest_remainders_get_what_is_left(shares: dict[str, float], count: int, expected: dict[str, int]) -> None:
    assert apportion(shares, count) == expected


@pytest.mark.parametrize("shares", [{}, {"easy": 0.0}, {"easy": -1, "hard": 2}, {"easy": float("nan")}])
def test_shares_that_mean_nothing_are_refused(shares: dict[str, float]) -> None:
    with pytest.raises(TaskError, match="expected shares"):
        apportion(shares, 3)


def test_negative_count_is_refused() -> None:
    with pytest.raises(TaskError, match="got -1"):
        apportion({"easy": 1}, -1)
