"""Unlimited tasks from seeds, balanced over families, difficulties and outcomes, with splits that cannot overlap."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import get_args

import msgspec

from deedrl.environments.suite.support.demonstrations import shortest_steps
from deedrl.environments.suite.support.families import DIFFICULTIES, FAMILIES, Family
from deedrl.environments.suite.support.story import Story
from deedrl.environments.suite.support.worlds import KNOWN, UNSEEN
from deedrl.errors import TaskError, suggest
from deedrl.seeding import stream
from deedrl.types import Split, Task

HASH_BUCKETS: Mapping[Split, range] = {
    "train": range(6),
    "validation": range(6, 8),
    "test": range(8, 10),
    "test_unseen": range(10),
}
"""Share of the ten content-hash buckets that belongs to a split. Every task of the known vocabulary has exactly one
split, whatever seeds and counts are asked for; ``test_unseen`` has a vocabulary of its own and needs no bucket."""


def generate_tasks(
    split: Split,
    count: int,
    seed: int,
    families: Sequence[str] | None = None,
    difficulties: Sequence[str] | None = None,
) -> list[Task]:
    """`count` distinct tasks of `split`; a longer list for the same arguments begins with the shorter one.

    Families and difficulties take turns, so any prefix is balanced to within one task a cell. Each cell deals its
    outcomes like shuffled decks. Unknown names and a negative count raise `TaskError`.
    """
    if count < 0:
        raise TaskError(f"expected a count of at least 0, got {count}")
    _known("split", [split], get_args(Split))
    chosen = _known("family", families or list(FAMILIES), FAMILIES)
    levels = _known("difficulty", difficulties or list(DIFFICULTIES), DIFFICULTIES)
    cells = [(FAMILIES[name], level) for level in levels for name in chosen]
    decks = [_deal(family.outcomes[level], split, seed, family.name, level) for family, level in cells]
    tasks: dict[str, Task] = {}
    for index in range(count):
        family, level = cells[index % len(cells)]
        outcome = next(decks[index % len(cells)])
        task = _distinct_task(family, level, outcome, split, seed, index // len(cells), tasks)
        tasks[task.id] = task
    return list(tasks.values())


def _known(what: str, names: Sequence[str], known: Sequence[str] | Mapping[str, Family]) -> list[str]:
    """`names` without repetitions; `TaskError` for one that is not known."""
    for name in names:
        if name not in known:
            raise TaskError(f"the support desk has no {what} '{name}'{suggest(name, known)}")
    return list(dict.fromkeys(names))


def _deal(outcomes: Sequence[str], split: str, seed: int, *cell: str) -> Iterator[str]:
    rng = stream(seed, "support-desk", "outcomes", split, *cell)
    while True:
        yield from rng.sample(outcomes, len(outcomes))


def _distinct_task(
    family: Family, level: str, outcome: str, split: Split, seed: int, turn: int, taken: Mapping[str, Task]
) -> Task:
    """The first draw whose content belongs to `split` and is not taken."""
    world = UNSEEN if split == "test_unseen" else KNOWN
    attempt = 0
    while True:
        names = ("support-desk", split, family.name, level, turn, attempt)
        task = _draw(family, level, outcome, split, Story(stream(seed, *names), world, level))
        if int(task.id, 16) % 10 in HASH_BUCKETS[split] and task.id not in taken:
            return task
        attempt += 1


def _draw(family: Family, level: str, outcome: str, split: Split, story: Story) -> Task:
    draft = family.tell(story, outcome)
    story.strangers()
    task = Task.create(
        prompt=draft.prompt,
        initial_state=story.rows(),
        goal_state=msgspec.to_builtins(draft.goal),
        difficulty=level,
        family=family.name,
        split=split,
    )
    return msgspec.structs.replace(task, shortest_steps=shortest_steps(task))
