"""Which tasks to try next, given what happened so far."""

from __future__ import annotations

from random import Random

from deedrl.errors import TaskError
from deedrl.tasks.pool import TaskPool
from deedrl.tasks.statistics import TaskStatistics


def learning_weight(statistics: TaskStatistics, floor: float = 0.02) -> float:
    """Variance p(1 − p) of a task's outcome, at least `floor`; 0.25, the most there is, for a task never scored.

    A group of sibling episodes teaches through the differences of their rewards, whose variance this is: tasks
    always or never solved teach nothing now, and keep a small weight because the policy changes.
    """
    rate = statistics.success_rate
    return 0.25 if rate is None else max(floor, rate * (1.0 - rate))


def sample_by_learning_weight(pool: TaskPool, count: int, rng: Random, floor: float = 0.02) -> TaskPool:
    """`count` distinct tasks drawn with probability proportional to `learning_weight`, without replacement.

    Efraimidis and Spirakis (2006): the largest keys u^(1/w) of independent uniform u. Asking for more tasks than
    there are raises `TaskError`.
    """
    if count > len(pool):
        raise TaskError(f"expected at most {len(pool)} tasks from {pool.describe()}, got a count of {count}")
    if floor <= 0:
        raise TaskError(f"expected a floor above 0, so that no task is lost for good, got {floor}")
    keys = {task.id: rng.random() ** (1.0 / learning_weight(pool.statistics_of(task.id), floor)) for task in pool}
    chosen = set(sorted(keys, key=lambda task_id: keys[task_id], reverse=True)[:count])
    return pool.filter(lambda task: task.id in chosen)
