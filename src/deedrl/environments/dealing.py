"""Unlimited tasks from seeds, balanced over families, difficulties and outcomes, with splits that cannot overlap."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import get_args

from deedrl.errors import TaskError, suggest
from deedrl.seeding import stream
from deedrl.types import Split, Task

DIFFICULTIES = ("easy", "medium", "hard")

HASH_BUCKETS: Mapping[Split, range] = {
    "train": range(6),
    "validation": range(6, 8),
    "test": range(8, 10),
    "test_unseen": range(10),
}
"""Share of the ten content-hash buckets that belongs to a split. Every task of the known vocabulary has exactly one
split, whatever seeds and counts are asked for; ``test_unseen`` has a vocabulary of its own and needs no bucket."""

MOST_DRAWS = 1000
"""Draws for one task after which its cell counts as used up."""

Draw = Callable[[str, str, str, Split, Random], Task]
"""(family, difficulty, outcome, split, random stream) → one task that says this family, difficulty and split."""


def deal_tasks(
    name: str,
    outcomes: Mapping[str, Mapping[str, Sequence[str]]],
    draw: Draw,
    split: Split,
    count: int,
    seed: int,
    families: Sequence[str] | None = None,
    difficulties: Sequence[str] | None = None,
) -> list[Task]:
    """`count` distinct tasks of `split`; a longer list for the same arguments begins with the shorter one.

    `name` keeps the random streams of environments apart. `outcomes`: family → difficulty → how its tasks may come
    out. Families and difficulties take turns, so any prefix is balanced to within one task a cell; each cell deals its
    outcomes like shuffled decks. A draw whose content belongs to another split or was dealt before is thrown away, so
    `draw` needs far more possible tasks a cell than are asked for. `families` and `difficulties` choose among those
    there are (None: all). Unknown names, a negative count and a cell that is used up raise
    `TaskError`.
    """
    if count < 0:
        raise TaskError(f"expected a count of at least 0, got {count}")
    _known(name, "split", [split], get_args(Split))
    levels = _known(name, "difficulty", difficulties or list(DIFFICULTIES), DIFFICULTIES)
    cells = [
        (family, level) for level in levels for family in _known(name, "family", families or [*outcomes], outcomes)
    ]
    decks = [
        _shuffled(outcomes[family][level], stream(seed, name, "outcomes", split, family, level))
        for family, level in cells
    ]
    tasks: dict[str, Task] = {}
    for index in range(count):
        family, level = cells[index % len(cells)]
        outcome, turn = next(decks[index % len(cells)]), index // len(cells)
        for attempt in range(MOST_DRAWS):
            task = draw(family, level, outcome, split, stream(seed, name, split, family, level, turn, attempt))
            if int(task.id, 16) % 10 in HASH_BUCKETS[split] and task.id not in tasks:
                break
        else:
            raise TaskError(
                f"{name} has no more tasks of family '{family}', difficulty '{level}' in split '{split}' after "
                f"{len(tasks)} tasks; ask for fewer"
            )
        tasks[task.id] = task
    return list(tasks.values())


def _known(name: str, what: str, wanted: Iterable[str], known: Iterable[str]) -> list[str]:
    """`wanted` without repetitions; `TaskError` for one that is not known."""
    choices = list(known)
    for one in wanted:
        if one not in choices:
            raise TaskError(f"{name} has no {what} '{one}'{suggest(one, choices)}")
    return list(dict.fromkeys(wanted))


def _shuffled(outcomes: Sequence[str], rng: Random) -> Iterator[str]:
    while True:
        yield from rng.sample(outcomes, len(outcomes))
