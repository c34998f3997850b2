"""The support desk's tasks: stories of a family, told in the words of the split."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import msgspec

from deedrl.environments.dealing import deal_tasks
from deedrl.environments.suite.support.demonstrations import shortest_steps
from deedrl.environments.suite.support.families import FAMILIES
from deedrl.environments.suite.support.story import Story
from deedrl.environments.suite.support.worlds import KNOWN, UNSEEN
from deedrl.types import Split, Task

OUTCOMES = {name: family.outcomes for name, family in FAMILIES.items()}


def generate_tasks(
    split: Split,
    count: int,
    seed: int,
    families: Sequence[str] | None = None,
    difficulties: Sequence[str] | None = None,
) -> list[Task]:
    """`count` distinct tasks, balanced over families, difficulties and outcomes; see `deal_tasks`."""
    return deal_tasks("support-desk", OUTCOMES, draw_task, split, count, seed, families, difficulties)


def draw_task(family: str, level: str, outcome: str, split: Split, rng: Random) -> Task:
    """One task; its content may belong to another split, which is for the caller to see to."""
    story = Story(rng, UNSEEN if split == "test_unseen" else KNOWN, level)
    draft = FAMILIES[family].tell(story, outcome)
    story.strangers()
    task = Task.create(
        prompt=draft.prompt,
        initial_state=story.rows(),
        goal_state=msgspec.to_builtins(draft.goal),
        difficulty=level,
        family=family,
        split=split,
    )
    return msgspec.structs.replace(task, shortest_steps=shortest_steps(task))
