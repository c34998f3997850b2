from __future__ import annotations

import re
from collections import Counter
from functools import cache

import pytest

from deedrl.environments.suite.data.environment import DataDesk
from deedrl.environments.suite.data.generator import FAMILIES
from deedrl.environments.suite.data.worlds import KNOWN, UNSEEN, Subject, World
from deedrl.types import Action, Split, Task


@cache
def tasks_of(split: Split, count: int = 630) -> list[Task]:
    return DataDesk.generate_tasks(split, count, seed=3)


def test_equal_seeds_give_equal_tasks_and_longer_lists_begin_with_shorter_ones() -> None:
    assert DataDesk.generate_tasks("train", 21, seed=3) == tasks_of("train")[:21]


@pytest.mark.parametrize("split", ["train", "test_unseen"])
def test_every_demonstration_solves_its_task(split: Split) -> None:
    desk = DataDesk()
    for task in tasks_of(split)[:210]:
        desk.reset(options={"task": task})
        for action in desk.demonstrate(task):
            _, reward, terminated, _, info = desk.step(action)
            assert info["ok"], task
        assert (reward, terminated) == (1.0, True), task
    desk.close()


@pytest.mark.parametrize("split", ["train", "test_unseen"])
@pytest.mark.parametrize("family", list(FAMILIES))
def test_no_answer_that_ignores_the_data_is_right_in_half_of_a_family(split: Split, family: str) -> None:
    for level in ("easy", "medium", "hard"):
        answers = Counter(
            str(task.goal_state["way"][-1]["parameters"]["value"])
            for task in tasks_of(split)
            if (task.family, task.difficulty) == (family, level)
        )
        assert answers.most_common(1)[0][1] <= 0.6 * answers.total()


@pytest.mark.parametrize("split", ["train", "test_unseen"])
def test_easy_tasks_are_short(split: Split) -> None:
    desk = DataDesk()
    for task in (task for task in tasks_of(split)[:210] if task.difficulty == "easy"):
        assert len(task.prompt.split()) <= 45
        desk.reset(options={"task": task})
        actions = desk.demonstrate(task)
        assert 2 <= len(actions) <= 4
        for action in actions:
            observation = desk.step(action)[0]
            assert len(observation.split()) <= 45
            assert len((action.reasoning or "").split()) <= 14
    desk.close()


def test_values_of_easy_calls_stand_in_what_was_seen_before() -> None:
    desk = DataDesk()
    for task in (task for task in tasks_of("train")[:210] if task.difficulty == "easy"):
        seen, _ = desk.reset(options={"task": task})
        for action in desk.demonstrate(task):
            grammar = {"SELECT", "FROM", "WHERE", "AND", "ORDER", "BY", "DESC", "ASC", "LIMIT", "count", "sum", "1"}
            for value in action.parameters.values():
                words = set(re.findall(r"[\w.]+", str(value))) - grammar
                unknown = {word for word in words if word not in seen and f"{word[:-1]}" not in seen}
                plural = {word for word in unknown if word in ("customers", "readers", "drivers")}
                assert unknown <= plural, (task.prompt, action)
            seen += "\n" + desk.step(action)[0]
    desk.close()


def texts_of(world: World) -> set[str]:
    """Every name and sentence of a vocabulary."""

    def of(subject: Subject) -> set[str]:
        fields = (subject.place, subject.thing, subject.state, subject.region)
        named = {text for field in fields for text in (field.word, field.alias, *field.values)}
        return named | {subject.table, subject.noun, *subject.amount, subject.partner, subject.link, subject.log}

    named = {world.key, world.day, world.name, world.old, *world.months, *world.names, *world.levels, *world.services}
    sentences = {sentence for sentences in world.prompts.values() for sentence in sentences} | set(world.notes.values())
    return named.union(*map(of, world.subjects)) | sentences | set(world.log_columns)


def test_the_vocabularies_share_nothing() -> None:
    assert texts_of(KNOWN) & texts_of(UNSEEN) == set()


def test_splits_share_no_content() -> None:
    splits: tuple[Split, ...] = ("train", "validation", "test", "test_unseen")
    ids = [{task.id for task in tasks_of(split, 210)} for split in splits]
    assert sum(map(len, ids)) == len(set().union(*ids)) == 840


@pytest.mark.parametrize("split", ["train", "test_unseen"])
def test_the_note_matters_in_every_part(split: Split) -> None:
    """Leaving out any one condition of the demonstrated query gives another answer, or the same as by chance."""
    desk, same, tried = DataDesk(), 0, 0
    for task in (task for task in tasks_of(split) if task.family == "anomaly"):
        *_, query, answer = desk.demonstrate(task)
        sql = query.parameters["sql"]
        for part in (r" AND \w+ <> '\w+'", r" AND \w+ >= 0", r"\bDISTINCT "):
            weaker = re.sub(part, "", sql)
            if weaker != sql:
                desk.reset(options={"task": task})
                found = desk.step(Action(tool_name="query", parameters={"sql": weaker}))[0]
                same, tried = same + (found == answer.parameters["value"]), tried + 1
    desk.close()
    assert tried > 150
    assert same <= 0.02 * tried
