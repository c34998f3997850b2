"""The data desk's tasks: questions of a family, asked in the words of the split."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import msgspec

from deedrl.environments.dealing import deal_tasks
from deedrl.environments.suite.data.draft import Draft, Unfit
from deedrl.environments.suite.data.families import COUNT, EXTREME, LOOKUP, TOTAL
from deedrl.environments.suite.data.goal import Goal
from deedrl.environments.suite.data.office import Office
from deedrl.environments.suite.data.several import ANOMALY, JOIN, LOG
from deedrl.environments.suite.data.worlds import KNOWN, UNSEEN
from deedrl.types import Split, Task

FAMILIES = {
    "lookup": LOOKUP,
    "count": COUNT,
    "total": TOTAL,
    "extreme": EXTREME,
    "join": JOIN,
    "log": LOG,
    "anomaly": ANOMALY,
}
OUTCOMES = {name: family.outcomes for name, family in FAMILIES.items()}


def generate_tasks(
    split: Split,
    count: int,
    seed: int,
    families: Sequence[str] | None = None,
    difficulties: Sequence[str] | None = None,
) -> list[Task]:
    """`count` distinct tasks, balanced over families, difficulties and outcomes; see `deal_tasks`."""
    return deal_tasks("data-desk", OUTCOMES, _draw, split, count, seed, families, difficulties)


def _draw(family: str, level: str, outcome: str, split: Split, rng: Random) -> Task:
    office, draft = _ask(family, level, outcome, split, rng)
    goal = Goal(answer=draft.answer, evidence=list(draft.evidence), way=list(draft.way))
    task = Task.create(
        prompt=draft.prompt,
        initial_state={"tables": office.tables(), "logs": office.logs, "note": office.note},
        goal_state=msgspec.to_builtins(goal),
        difficulty=level,
        family=family,
        split=split,
    )
    return msgspec.structs.replace(task, shortest_steps=len(draft.way))


def _ask(family: str, level: str, outcome: str, split: Split, rng: Random) -> tuple[Office, Draft]:
    """An office and a question of it that has a clear answer; most draws have one."""
    while True:
        office = Office(UNSEEN if split == "test_unseen" else KNOWN, level, rng)
        try:
            return office, FAMILIES[family].ask[level](office, outcome)
        except Unfit:
            continue
