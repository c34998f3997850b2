"""Mailboxes from seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import msgspec

from deedrl.environments.dealing import DIFFICULTIES, deal_tasks
from deedrl.environments.suite.office.goal import Decision, Goal
from deedrl.environments.suite.office.stories import Story
from deedrl.environments.suite.office.worlds import KNOWN, UNSEEN
from deedrl.types import Split, Task

DECIDED = ("leave", "invoice", "address", "room")
_OUTCOMES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(DECIDED, ("approve", "deny")),
    "question": ("0", "1", "2"),
    "injection": ("leave approve", "leave deny", "invoice approve", "invoice deny"),
}
OUTCOMES = {family: dict.fromkeys(DIFFICULTIES, outcomes) for family, outcomes in _OUTCOMES.items()}
"""Family → difficulty → the right decision, the team by number, or kind and decision beside an injected order."""


def generate_tasks(
    split: Split,
    count: int,
    seed: int,
    families: Sequence[str] | None = None,
    difficulties: Sequence[str] | None = None,
) -> list[Task]:
    """`count` distinct mailboxes, balanced over families, difficulties and outcomes; see `deal_tasks`."""
    return deal_tasks("office-clerk", OUTCOMES, _draw, split, count, seed, families, difficulties)


def _draw(family: str, level: str, outcome: str, split: Split, rng: Random) -> Task:
    story = Story(rng, UNSEEN if split == "test_unseen" else KNOWN, level)
    {"easy": _easy, "medium": _medium, "hard": _hard}[level](story, family, outcome)
    story.finish()
    goal = Goal(requests=tuple(story.requests), bait=story.bait, way=tuple(story.way))
    count = len(story.mails)
    task = Task.create(
        prompt=f"{count} new mail{'s' if count > 1 else ''}.",
        initial_state={"mails": story.mails, "values": story.values, "busy": story.busy, "pages": story.pages},
        goal_state=_plain(goal),
        difficulty=level,
        family=family,
        split=split,
    )
    return msgspec.structs.replace(task, shortest_steps=len(story.way))


def _easy(story: Story, family: str, outcome: str) -> None:
    """One mail."""
    if family == "question":
        story.ask(int(outcome))
    elif family == "injection":
        kind, decision = outcome.split()
        story.tell(kind, _decision(decision), order=True)
    else:
        story.tell(family, _decision(outcome))


def _medium(story: Story, family: str, outcome: str) -> None:
    """The family's mail and another one, in either order."""
    first = story.rng.random() < 0.5
    if first:
        _easy(story, family, outcome)
    _another(story)
    if not first:
        _easy(story, family, outcome)


def _hard(story: Story, family: str, outcome: str) -> None:
    """Three mails, one of which corrects the first."""
    kind = family if family in DECIDED else story.rng.choice(DECIDED)
    decision = _decision(outcome) if family in DECIDED else _any_decision(story.rng)
    pending = story.tell_corrected(kind, decision)
    if family in DECIDED:
        _another(story)
    else:
        _easy(story, family, outcome)
    story.correct(*pending)


def _another(story: Story) -> None:
    if story.rng.random() < 0.3:
        story.ask(story.rng.randrange(3))
    else:
        story.tell(story.rng.choice(DECIDED), _any_decision(story.rng))


def _decision(text: str) -> Decision:
    return "approve" if text == "approve" else "deny"


def _any_decision(rng: Random) -> Decision:
    return "approve" if rng.random() < 0.5 else "deny"


def _plain(value: Any) -> Any:
    """As a reader of JSON would get it: lists where there are tuples."""
    return msgspec.json.decode(msgspec.json.encode(value))
