"""Tasks as an immutable sequence with views that are worked out on first use."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any, Self, overload

from deedrl.errors import TaskError, suggest
from deedrl.tasks.files import read_tasks, write_tasks
from deedrl.tasks.quotas import apportion
from deedrl.tasks.statistics import TaskStatistics, merge_statistics
from deedrl.types import Split, Task, content_hash

Predicate = Callable[[Task], bool]

EXAMPLES_SHOWN = 3


class TaskPool(Sequence[Task]):
    """Distinct tasks in a fixed order. Views (`filter`, `split`, …) share the tasks and are computed when needed."""

    def __init__(self, tasks: Iterable[Task] = (), statistics: Mapping[str, TaskStatistics] | None = None) -> None:
        """Two tasks of one id raise `TaskError`; if their splits differ, the message says so (that is a leak)."""
        given = tuple(tasks)
        _check_distinct(given)
        self._source: Sequence[Task] = given
        self._keep: Predicate | None = None
        self._statistics = dict(statistics or {})

    # ------------------------------------------------------------ sequence

    @cached_property
    def _tasks(self) -> tuple[Task, ...]:
        return tuple(self._source if self._keep is None else filter(self._keep, self._source))

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> TaskPool: ...
    def __getitem__(self, index: int | slice) -> Task | TaskPool:
        if isinstance(index, slice):
            return self._view(self._tasks[index])
        return self._tasks[index]

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[Task]:
        return iter(self._tasks)

    def __eq__(self, other: object) -> bool:
        """Equal tasks in equal order; statistics do not matter."""
        return isinstance(other, TaskPool) and self._tasks == other._tasks

    def __hash__(self) -> int:
        return hash(self.version)

    def __repr__(self) -> str:
        return f"TaskPool({self.describe()})"

    # ------------------------------------------------------------ views

    def filter(self, predicate: Predicate | None = None, **fields: Any) -> TaskPool:
        """A view of the tasks for which `predicate` holds and each named field has the value given.

        Nothing is looked at until the view is used. A field that tasks do not have raises `TaskError` at once.
        """
        for name in fields:
            if name not in Task.__struct_fields__:
                raise TaskError(f"a task has no field '{name}'{suggest(name, Task.__struct_fields__)}")

        def keep(task: Task) -> bool:
            matches = all(getattr(task, name) == value for name, value in fields.items())
            return matches and (predicate is None or predicate(task))

        return self._view(self, keep)

    def split(self, name: Split) -> TaskPool:
        """The tasks of one split; `TaskError` naming the splits that are there if it is empty."""
        found = self.filter(split=name)
        if not found:
            raise TaskError(f"the split '{name}' is empty; this pool has {_counts(task.split for task in self)}")
        return found

    def families(self) -> dict[str, TaskPool]:
        """Family → its tasks, in the order in which families first appear."""
        return self._grouped(lambda task: task.family)

    def by_difficulty(self) -> dict[str, TaskPool]:
        """Difficulty → its tasks, in the order in which difficulties first appear."""
        return self._grouped(lambda task: task.difficulty)

    def sample(self, count: int, rng: Random) -> TaskPool:
        """`count` distinct tasks in random order; `TaskError` if there are fewer."""
        if not 0 <= count <= len(self):
            raise TaskError(f"expected a count from 0 to {len(self)} (the size of {self.describe()}), got {count}")
        return self._view(rng.sample(self._tasks, count))

    def with_quotas(self, shares: Mapping[str, float], count: int, rng: Random) -> TaskPool:
        """`count` distinct tasks, of each difficulty in proportion to `shares` (see `apportion`), in random order.

        A difficulty that is missing or has too few tasks raises `TaskError` with what is there.
        """
        groups = self.by_difficulty()
        chosen: list[Task] = []
        for difficulty, wanted in apportion(shares, count).items():
            there = groups.get(difficulty, TaskPool())
            if wanted > len(there):
                raise TaskError(
                    f"expected {wanted} tasks of difficulty '{difficulty}', there are {len(there)}; the pool has "
                    f"{_counts(task.difficulty for task in self)}; lower the count or add tasks"
                )
            chosen += there.sample(wanted, rng)
        rng.shuffle(chosen)
        return self._view(chosen)

    # ------------------------------------------------------------ what it is

    @cached_property
    def version(self) -> str:
        """16 hex digits of SHA-256 over the sorted ids: equal for equal sets of tasks in any order."""
        return hashlib.sha256("\n".join(sorted(task.id for task in self)).encode()).hexdigest()[:16]

    def describe(self) -> str:
        """Splits, sizes and version in one line, for reports and messages."""
        return f"{_counts(task.split for task in self) or 'no tasks'}, version {self.version}"

    # ------------------------------------------------------------ statistics

    def statistics_of(self, task_id: str) -> TaskStatistics:
        """What happened to a task so far; all zero (success rate None) if nothing did."""
        return self._statistics.get(task_id, TaskStatistics())

    def with_statistics(self, new: Mapping[str, TaskStatistics]) -> TaskPool:
        """The same tasks with `new` added to the statistics; ids that are not in the pool are left out."""
        ids = {task.id for task in self}
        known = {task_id: statistics for task_id, statistics in new.items() if task_id in ids}
        pool = self._view(self)
        pool._statistics = merge_statistics(self._statistics, known)
        return pool

    # ------------------------------------------------------------ files

    @classmethod
    def load(cls, path: str | Path, split: Split | None = None) -> Self:
        """A pool from a JSON-lines file; what is wrong raises `TaskError` naming file and line (see `read_tasks`).

        With a `split`, a task of another one is wrong too.
        """
        return cls(read_tasks(path, split))

    def save(self, path: str | Path) -> None:
        """Writes the tasks (not the statistics) as JSON lines; the file is replaced as a whole."""
        write_tasks(path, self)

    # ------------------------------------------------------------ inside

    def _view(self, source: Sequence[Task], keep: Predicate | None = None) -> TaskPool:
        view = TaskPool(statistics=self._statistics)
        view._source, view._keep = source, keep
        return view

    def _grouped(self, key: Callable[[Task], str]) -> dict[str, TaskPool]:
        groups: dict[str, list[Task]] = {}
        for task in self:
            groups.setdefault(key(task), []).append(task)
        return {name: self._view(tasks) for name, tasks in groups.items()}


def check_disjoint(*pools: TaskPool) -> None:
    """Raises `TaskError` with examples if any two pools share a task by the hash of its content (case F22)."""
    hashed = [{content_hash(task): task for task in pool} for pool in pools]
    for (first, first_tasks), (second, second_tasks) in combinations(zip(pools, hashed, strict=True), 2):
        common = [task for key, task in first_tasks.items() if key in second_tasks]
        if common:
            shown = "; ".join(f"{task.id} {task.prompt[:50]!r}" for task in common[:EXAMPLES_SHOWN])
            raise TaskError(
                f"expected pools without common content, found {len(common)} tasks both in ({first.describe()}) and "
                f"in ({second.describe()}), e.g. {shown}; take them out of one of the two"
            )


def _check_distinct(tasks: Sequence[Task]) -> None:
    seen: dict[str, Task] = {}
    for task in tasks:
        other = seen.get(task.id)
        seen[task.id] = task
        if other is None:
            continue
        if other.split != task.split:
            raise TaskError(
                f"the splits '{other.split}' and '{task.split}' share the task {task.id} {task.prompt[:50]!r}; "
                "equal content may be in one split only"
            )
        raise TaskError(f"the task {task.id} {task.prompt[:50]!r} is given twice; remove one of them")


def _counts(names: Iterable[str]) -> str:
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(f"{count} {name}" for name, count in counts.items())
