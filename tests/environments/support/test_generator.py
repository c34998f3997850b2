"""Generated tasks: balanced, deterministic, split without overlap, and each solvable in the steps it says."""

from __future__ import annotations

import itertools
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import get_args

import pytest

from deedrl.environments.dealing import DIFFICULTIES
from deedrl.environments.suite.support import families as families_package
from deedrl.environments.suite.support.demonstrations import demonstrate
from deedrl.environments.suite.support.environment import SupportDesk
from deedrl.environments.suite.support.families import (
    FAMILIES,
    contradiction,
    escalation,
    inform,
    partial,
    several_orders,
    status,
    window,
)
from deedrl.environments.suite.support.generator import generate_tasks
from deedrl.environments.suite.support.worlds import KNOWN, UNSEEN
from deedrl.errors import TaskError
from deedrl.tasks.pool import TaskPool, check_disjoint
from deedrl.types import Action, Split, Task, Verdict, content_hash

Play = Callable[[Task, Sequence[Action]], Verdict]
SPLITS = get_args(Split)
CELLS = len(FAMILIES) * len(DIFFICULTIES)
PHRASES = {
    "status": [status.PHRASES],
    "window": [window.PHRASES],
    "several_orders": [several_orders.PHRASES],
    "contradiction": [contradiction.NEVER_CAME, contradiction.CAME_BROKEN, contradiction.NOT_PAID],
    "partial": [partial.NAMED, partial.UNNAMED],
    "escalation": [escalation.PHRASES],
    "inform": [inform.BY_ORDER, inform.BY_EMAIL],
}


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("family", FAMILIES)
def test_demonstration_solves_every_task_in_the_shortest_steps(play: Play, split: Split, family: str) -> None:
    for task in generate_tasks(split, 20 * len(DIFFICULTIES), 11, families=[family]):
        actions = demonstrate(task)
        verdict = play(task, actions)
        assert (verdict.solved, verdict.violations) == (True, ()), (task, actions)
        assert len(actions) == task.shortest_steps
        assert all(1 <= len(action.reasoning.split()) <= 18 for action in actions)


@pytest.mark.parametrize("split", SPLITS)
def test_families_and_difficulties_are_balanced_in_every_prefix(split: Split) -> None:
    tasks = generate_tasks(split, 3 * CELLS + 5, 1)
    for size in (CELLS, 3 * CELLS, 3 * CELLS + 5):
        counts = Counter((task.family, task.difficulty) for task in tasks[:size])
        assert len(counts) == CELLS
        assert max(counts.values()) - min(counts.values()) <= 1
    assert {task.split for task in tasks} == {split}


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
@pytest.mark.parametrize("family", FAMILIES)
def test_no_fixed_decision_wins_more_than_60_percent(family: str, difficulty: str) -> None:
    tasks = generate_tasks("train", 120, 2, families=[family], difficulties=[difficulty])
    kinds = Counter(task.goal_state["decision"] for task in tasks)
    assert max(kinds.values()) <= 0.6 * len(tasks), kinds


def test_equal_arguments_give_equal_tasks_and_other_seeds_others() -> None:
    first, again, other = (generate_tasks("train", 42, seed) for seed in (3, 3, 4))
    assert first == again
    assert not {task.id for task in first} & {task.id for task in other}


def test_a_longer_list_begins_with_the_shorter_one() -> None:
    assert generate_tasks("validation", 63, 3)[:30] == generate_tasks("validation", 30, 3)


def test_choosing_a_family_does_not_change_its_tasks() -> None:
    alone = generate_tasks("train", 6, 3, families=["window"])
    among_all = [task for task in generate_tasks("train", 2 * CELLS, 3) if task.family == "window"]
    assert alone == among_all


def test_ids_are_distinct_content_hashes() -> None:
    tasks = generate_tasks("train", 1000, 9)
    assert len({task.id for task in tasks}) == 1000
    assert all(task.id == content_hash(task) for task in tasks[:50])


def test_F22_splits_share_no_content_whatever_the_seeds() -> None:
    pools = [TaskPool(generate_tasks(split, 300, seed)) for seed, split in enumerate(SPLITS)]
    check_disjoint(*pools)


def test_F22_test_unseen_shares_no_item_name_or_phrase_with_the_known_world() -> None:
    def words(world: object) -> set[str]:
        names = ("first_names", "colours", "broken", "unbroken", "minor", "asides", "price_claims", "threats")
        more = ("veiled_threats", "harmless", "detours")
        listed = {text for name in (*names, *more) for text in getattr(world, name)}
        items = {text for texts in world.items.values() for text in texts}  # type: ignore[attr-defined]
        statuses = {
            text
            for table in (world.easy_status, world.status)  # type: ignore[attr-defined]
            for texts in table.values()
            for text in texts
        }
        return listed | items | statuses

    assert not words(KNOWN) & words(UNSEEN)
    assert not set(KNOWN.items) & set(UNSEEN.items)
    for phrases in itertools.chain(*PHRASES.values()):
        assert not set(phrases["known"]) & set(phrases["unseen"])


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_enough_phrasings(family: str) -> None:
    for phrases in PHRASES[family]:
        assert len(set(phrases["known"])) >= 6
        assert len(set(phrases["unseen"])) >= 4


def test_texts_are_short() -> None:
    """A digit is a token of its own in small vocabularies; words are about 1.3 tokens."""

    def tokens(text: str) -> float:
        digits = sum(character.isdigit() for character in text)
        return digits + 1.3 * len(re.findall(r"[A-Za-z]+", text))

    desk = SupportDesk()
    assert len(desk.instructions.split()) <= 60
    for task in generate_tasks("train", 6 * CELLS, 8) + generate_tasks("test_unseen", 6 * CELLS, 8):
        observation, _ = desk.reset(options={"task": task})
        assert tokens(observation) <= 50, observation
        for action in desk.demonstrate(task):
            observation = desk.step(action)[0]
            assert tokens(observation) <= 50, observation
    desk.close()


def test_amounts_are_written_one_way() -> None:
    """24.95 and never 24.9 or 24.90: what is shown is what `repr` of the float gives."""
    for task in generate_tasks("train", 10 * CELLS, 8):
        cents = task.goal_state["amount_cents"]
        if cents is not None:
            assert repr(cents / 100) == f"{cents // 100}.{cents % 100:02d}"


def test_reasons_quote_only_what_was_shown(desk: SupportDesk) -> None:
    """Numbers in a demonstration's reasoning stand in the messages before it, days between shown dates excepted."""
    for task in generate_tasks("train", 6 * CELLS, 4):
        if task.difficulty == "hard" and task.family in ("window", "partial"):
            continue
        shown, _ = desk.reset(options={"task": task})
        shown += " 400"
        for action in desk.demonstrate(task):
            assert set(re.findall(r"\d+", action.reasoning)) <= set(re.findall(r"\d+", shown)), (task, action)
            shown += " " + desk.step(action)[0]


def test_unknown_names_are_errors_with_a_suggestion() -> None:
    with pytest.raises(TaskError, match="did you mean 'window'"):
        generate_tasks("train", 1, 0, families=["windov"])
    with pytest.raises(TaskError, match="no difficulty 'brutal'"):
        generate_tasks("train", 1, 0, difficulties=["brutal"])
    with pytest.raises(TaskError, match="did you mean 'train'"):
        generate_tasks("training", 1, 0)  # type: ignore[arg-type]
    with pytest.raises(TaskError, match="at least 0"):
        generate_tasks("train", -1, 0)


def test_whole_episodes_run_quickly(desk: SupportDesk) -> None:
    """A smoke test with a wide margin: an idle core plays several hundred episodes a second."""
    tasks = generate_tasks("train", 100, 1)
    started = time.perf_counter()
    for task in tasks:
        desk.reset(options={"task": task})
        for action in desk.demonstrate(task):
            desk.step(action)
    assert time.perf_counter() - started < 10.0


def test_all_families_are_listed() -> None:
    assert set(PHRASES) == set(families_package.FAMILIES)
