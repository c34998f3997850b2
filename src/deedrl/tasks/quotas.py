"""How many tasks of each kind: whole numbers from shares, and draws in which the kinds take turns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from random import Random

from deedrl.errors import TaskError
from deedrl.types import Task


def draw_in_turn(
    tasks: Sequence[Task], count: int, rng: Random, weights: Mapping[str, float] | None = None
) -> list[Task]:
    """`count` distinct tasks in random order, families and difficulties taking turns; all of them if there are fewer.

    In the few tasks of one optimiser step chance alone would leave some kinds out and repeat others. `weights` (above
    0, by family, 1 where a family is missing) make a family's turns come so many times as often.
    """
    kinds: dict[tuple[str, str], list[Task]] = {}
    for task in rng.sample(tasks, len(tasks)):
        kinds.setdefault((task.family, task.difficulty), []).append(task)
    given = weights or {}
    # Stride scheduling: the n-th turn of a kind is due at (n + 1/2) / weight; what is due first goes first.
    due = [
        ((turn + 0.5) / given.get(family, 1.0), task)
        for (family, _), members in kinds.items()
        for turn, task in enumerate(members)
    ]
    return [task for _, task in sorted(due, key=lambda pair: pair[0])][:count]


def apportion(shares: Mapping[str, float], count: int) -> dict[str, int]:
    """`count` split in proportion to `shares` (any positive scale) by the largest-remainder method.

    Each part is the exact share rounded down or up; ties go to the share named first. A negative or non-finite
    share, or none above 0, raises `TaskError`.
    """
    if count < 0:
        raise TaskError(f"expected a count of at least 0, got {count}")
    total = sum(shares.values())
    if not math.isfinite(total) or total <= 0 or min(shares.values()) < 0:
        raise TaskError(f"expected shares of at least 0 with a sum above 0, got {dict(shares)}")
    exact = {name: count * share / total for name, share in shares.items()}
    parts = {name: math.floor(value) for name, value in exact.items()}
    by_remainder = sorted(exact, key=lambda name: parts[name] - exact[name])
    for name in by_remainder[: count - sum(parts.values())]:
        parts[name] += 1
    return parts
