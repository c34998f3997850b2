from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from deedrl.errors import TaskError
from deedrl.tasks.curriculum import learning_weight, sample_by_learning_weight
from deedrl.tasks.pool import TaskPool
from deedrl.tasks.statistics import TaskStatistics
from deedrl.types import Task


@pytest.mark.parametrize(
    ("statistics", "weight"),
    [
        (TaskStatistics(), 0.25),
        (TaskStatistics(attempts=3, unscored=3), 0.25),
        (TaskStatistics(attempts=4, solved=2), 0.25),
        (TaskStatistics(attempts=4, solved=1), 0.1875),
        (TaskStatistics(attempts=4, solved=4), 0.02),
        (TaskStatistics(attempts=4, solved=0), 0.02),
    ],
)
def test_weight_is_the_variance_of_the_outcome(statistics: TaskStatistics, weight: float) -> None:
    assert learning_weight(statistics) == weight


def test_tasks_are_drawn_in_proportion_to_their_weight(make: Callable[..., Task]) -> None:
    """Weights 0.25 and 0.05: the first is drawn 5 times in 6, so 833 ± 12 times in 1000."""
    tasks = [make("half"), make("never")]
    pool = TaskPool(tasks).with_statistics(
        {tasks[0].id: TaskStatistics(attempts=2, solved=1), tasks[1].id: TaskStatistics(attempts=2)}
    )
    rng = random.Random(0)
    drawn = Counter(sample_by_learning_weight(pool, 1, rng, floor=0.05)[0].prompt for _ in range(1000))
    assert 790 <= drawn["half"] <= 875


def test_sample_is_distinct_and_may_be_everything(make: Callable[..., Task]) -> None:
    pool = TaskPool([make("a"), make("b")])
    assert sample_by_learning_weight(pool, 2, random.Random(0)) == pool


def test_impossible_counts_and_floors_are_refused(make: Callable[..., Task]) -> None:
    pool = TaskPool([make("a")])
    with pytest.raises(TaskError, match="at most 1 tasks"):
        sample_by_learning_weight(pool, 2, random.Random(0))
    with pytest.raises(TaskError, match="floor above 0"):
        sample_by_learning_weight(pool, 1, random.Random(0), floor=0.0)
