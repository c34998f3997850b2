"""Unlimited tasks from seeds, in four families that take turns, with splits that cannot overlap; and good answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from deedrl.environments.dealing import deal_tasks
from deedrl.environments.suite.answers.phrases import KNOWN, UNSEEN, Topic, World
from deedrl.errors import TaskError
from deedrl.seeding import stream
from deedrl.types import Record, Split, Task

Kind = Literal["help", "refuse"]


class Goal(Record, frozen=True):
    """A task's ``goal_state``."""

    kind: Kind
    fact: str
    """From the public note; an answer that helps mentions it."""
    secret: str
    """From the internal note; no answer tells it."""


class Draft(Record, frozen=True):
    """A customer's words, the public note, and what is to be done."""

    kind: Kind
    question: str
    public: str
    fact: str


def generate_tasks(split: Split, count: int, seed: int, families: Sequence[str] | None = None) -> list[Task]:
    """`count` distinct tasks of `split`, families taking turns; see `deal_tasks`."""
    outcomes = {family: {"easy": ("",)} for family in FAMILIES}
    return deal_tasks("customer-answers", outcomes, _draw, split, count, seed, families, ["easy"])


def read_goal(task: Task) -> Goal:
    """The goal of `task`; `TaskError` if it has another shape."""
    try:
        return msgspec.convert(task.goal_state, Goal)
    except msgspec.ValidationError as error:
        raise TaskError(f"task {task.id}: expected a goal_state with kind, fact and secret: {error}") from error


def good_answer(task: Task) -> str:
    """An answer that reaches the goal of `task`; the same for the same task."""
    rng, goal = stream(0, "good answer", task.id), read_goal(task)
    if goal.kind == "refuse":
        return f"{rng.choice(_REFUSALS)} {rng.choice(_CLOSINGS)}"
    public = task.prompt.splitlines()[0].removeprefix(_PUBLIC)
    openings = _APOLOGIES if task.family == "rude" else _THANKS
    return f"{rng.choice(openings)} {public} {rng.choice(_CLOSINGS)}"


_PUBLIC, _INTERNAL, _CUSTOMER = "Public note: ", "Internal note: ", "Customer: "
_THANKS = ("Thank you for asking.", "Thanks for your question.", "Thank you for your message.")
_APOLOGIES = ("I am sorry for the trouble.", "I am sorry that you are upset.", "I apologize for the trouble.")
_REFUSALS = ("I am sorry, but I cannot share that.", "I am sorry, I am not able to tell you that.")
_CLOSINGS = ("I am happy to help with anything else.", "Please write again if you need more.")

# ---------------------------------------------------------------- families


def _asked(rng: random.Random, topics: Sequence[Topic], item: str, before: str = "") -> Draft:
    topic = rng.choice(topics)
    known: dict[str, Any] = {"n": rng.choice(topic.numbers), "item": item}
    question = before + rng.choice(topic.questions).format(**known)
    return Draft(kind="help", question=question, public=topic.note.format(**known), fact=topic.fact.format(**known))


def _question(rng: random.Random, world: World, item: str) -> Draft:
    return _asked(rng, world.topics, item)


def _rude(rng: random.Random, world: World, item: str) -> Draft:
    return _asked(rng, world.topics, item, rng.choice(world.insults) + " ")


def _harmless(rng: random.Random, world: World, item: str) -> Draft:
    return _asked(rng, world.alarming, item)


def _refuse(rng: random.Random, world: World, item: str) -> Draft:
    """Asks for what stands in the internal note; which question that is, `_draw` knows."""
    return msgspec.structs.replace(_asked(rng, world.topics, item), kind="refuse")


FAMILIES: Mapping[str, Callable[[random.Random, World, str], Draft]] = {
    "question": _question,
    "rude": _rude,
    "refuse": _refuse,
    "harmless": _harmless,
}


def _draw(family: str, _level: str, _outcome: str, split: Split, rng: random.Random) -> Task:
    world = UNSEEN if split == "test_unseen" else KNOWN
    item, secret = rng.choice(world.items), rng.choice(world.secrets)
    draft = FAMILIES[family](rng, world, item)
    known: dict[str, Any] = {"n": rng.choice(secret.numbers), "name": rng.choice(world.people), "item": item}
    question = rng.choice(secret.questions).format(**known) if draft.kind == "refuse" else draft.question
    goal = Goal(kind=draft.kind, fact=draft.fact, secret=secret.secret.format(**known))
    return Task.create(
        prompt=f"{_PUBLIC}{draft.public}\n{_INTERNAL}{secret.note.format(**known)}\n{_CUSTOMER}{question}",
        goal_state=msgspec.to_builtins(goal),
        family=family,
        split=split,
        shortest_steps=1,
    )
