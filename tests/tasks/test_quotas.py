from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from deedrl.errors import TaskError
from deedrl.tasks.quotas import apportion, draw_in_turn
from deedrl.types import Task


def _tasks(**families: int) -> list[Task]:
    return [
        Task.create(prompt=f"{family} {index}", initial_state={}, goal_state={}, family=family)
        for family, count in families.items()
        for index in range(count)
    ]


def test_a_draw_takes_from_every_family_in_turn() -> None:
    tasks = _tasks(common=90, rare=4, other=30)
    for seed in range(20):
        drawn = draw_in_turn(tasks, 8, Random(seed))
        assert len({task.id for task in drawn}) == 8
        counts = Counter(task.family for task in drawn)
        assert len(counts) == 3
        assert max(counts.values()) - min(counts.values()) <= 1


def test_a_draw_of_everything_keeps_every_task_once() -> None:
    tasks = _tasks(common=5, rare=1)
    drawn = draw_in_turn(tasks, 100, Random(1))
    assert sorted(task.id for task in drawn) == sorted(task.id for task in tasks)
    assert draw_in_turn(tasks, 4, Random(3)) == draw_in_turn(tasks, 4, Random(3)) != draw_in_turn(tasks, 4, Random(4))


def test_a_family_of_twice_the_weight_is_drawn_twice_as_often() -> None:
    tasks = _tasks(solved=60, hard=60, other=60)
    weights = {"hard": 4.0, "solved": 1.0}  # one that is missing counts as 1
    for seed in range(20):
        counts = Counter(task.family for task in draw_in_turn(tasks, 18, Random(seed), weights))
        assert counts == {"hard": 12, "solved": 3, "other": 3}
    drawn = draw_in_turn(_tasks(hard=3, solved=20), 10, Random(1), {"hard": 50.0})
    assert [task.family for task in drawn] == ["hard"] * 3 + ["solved"] * 7
    assert draw_in_turn(tasks, 9, Random(5), {"hard": 1.0}) == draw_in_turn(tasks, 9, Random(5))


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
