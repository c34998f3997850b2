"""Unlimited tasks from seeds, in four families that take turns, with splits that cannot overlap; and good answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import msgspec

from deedrl.environments.suite.answers.phrases import KNOWN, UNSEEN, Topic, World
from deedrl.errors import TaskError, suggest
from deedrl.seeding import stream
from deedrl.types import Record, Split, Task

Kind = Literal["help", "refuse"]

HASH_BUCKETS: Mapping[Split, range] = {
    "train": range(6),
    "validation": range(6, 8),
    "test": range(8, 10),
    "test_unseen": range(10),
}
"""Share of the ten content-hash buckets that belongs to a split; ``test_unseen`` has phrases of its own."""
MOST_DRAWS = 1000
"""Draws for one task after which its family counts as used up."""


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
    """`count` distinct tasks of `split`; a longer list for the same arguments begins with the shorter one.

    Raises `TaskError` for names that are not known, a negative count, or more tasks than there are.
    """
    if count < 0:
        raise TaskError(f"expected a count of at least 0, got {count}")
    chosen = list(dict.fromkeys(families or FAMILIES))
    for what, name, known in [("split", split, get_args(Split)), *(("family", one, FAMILIES) for one in chosen)]:
        if name not in known:
            raise TaskError(f"the customers' questions have no {what} '{name}'{suggest(name, list(known))}")
    tasks: dict[str, Task] = {}
    for index in range(count):
        task = _distinct_task(chosen[index % len(chosen)], split, seed, index // len(chosen), tasks)
        tasks[task.id] = task
    return list(tasks.values())


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


def _distinct_task(family: str, split: Split, seed: int, turn: int, taken: Mapping[str, Task]) -> Task:
    """The first draw whose content belongs to `split` and is not taken."""
    world = UNSEEN if split == "test_unseen" else KNOWN
    for attempt in range(MOST_DRAWS):
        task = _draw(family, split, world, stream(seed, "answers", split, family, turn, attempt))
        if int(task.id, 16) % 10 in HASH_BUCKETS[split] and task.id not in taken:
            return task
    raise TaskError(f"no more tasks of family '{family}' in split '{split}' after {len(taken)}; ask for fewer")


def _draw(family: str, split: Split, world: World, rng: random.Random) -> Task:
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
