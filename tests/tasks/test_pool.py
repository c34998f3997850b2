from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import pytest

from deedrl.errors import TaskError
from deedrl.tasks.pool import TaskPool, check_disjoint
from deedrl.tasks.statistics import TaskStatistics
from deedrl.types import Task

Make = Callable[..., Task]


@pytest.fixture
def pool(make: Make) -> TaskPool:
    """Three easy tasks (a, b, c), two hard ones (d, e); b and e are of family 'two'; e is a test task."""
    return TaskPool(
        [
            make("a", family="one"),
            make("b", family="two"),
            make("c", family="one"),
            make("d", family="one", difficulty="hard"),
            make("e", family="two", difficulty="hard", split="test"),
        ]
    )


def prompts(pool: TaskPool) -> str:
    return "".join(task.prompt for task in pool)


def test_pool_is_a_sequence(pool: TaskPool) -> None:
    assert (len(pool), pool[0].prompt, pool[-1].prompt, prompts(pool[1:3])) == (5, "a", "e", "bc")
    assert pool[0] in pool


def test_pool_of_nothing_is_empty() -> None:
    assert (len(TaskPool()), bool(TaskPool()), list(TaskPool())) == (0, False, [])


def test_filter_by_field_and_predicate(pool: TaskPool) -> None:
    assert prompts(pool.filter(family="one")) == "acd"
    assert prompts(pool.filter(lambda task: task.prompt > "a", family="one", difficulty="easy")) == "c"
    assert prompts(pool.filter(family="one").filter(difficulty="hard")) == "d"


def test_filter_looks_at_nothing_until_it_is_used_and_then_once(pool: TaskPool) -> None:
    looked: list[str] = []

    def note(task: Task) -> bool:
        looked.append(task.prompt)
        return True

    view = pool.filter(note).filter(family="two")
    assert looked == []
    assert (prompts(view), prompts(view)) == ("be", "be")
    assert looked == list("abcde")


def test_filter_by_an_unknown_field_suggests_one(pool: TaskPool) -> None:
    with pytest.raises(TaskError, match="no field 'familly'; did you mean 'family'"):
        pool.filter(familly="one")


def test_split_gives_its_tasks(pool: TaskPool) -> None:
    assert (prompts(pool.split("train")), prompts(pool.split("test"))) == ("abcd", "e")


def test_F22_empty_split_is_an_error_that_says_what_is_there(pool: TaskPool) -> None:
    with pytest.raises(TaskError, match="the split 'validation' is empty; this pool has 4 train, 1 test"):
        pool.split("validation")


def test_groups_keep_the_order_of_first_appearance(pool: TaskPool) -> None:
    assert {name: prompts(view) for name, view in pool.families().items()} == {"one": "acd", "two": "be"}
    assert {name: prompts(view) for name, view in pool.by_difficulty().items()} == {"easy": "abc", "hard": "de"}


def test_sample_is_distinct_and_equal_for_equal_streams(pool: TaskPool) -> None:
    drawn = pool.sample(4, random.Random(1))
    assert len(set(prompts(drawn))) == 4
    assert drawn == pool.sample(4, random.Random(1))


@pytest.mark.parametrize("count", [-1, 6])
def test_sample_of_more_than_there_is_is_an_error(pool: TaskPool, count: int) -> None:
    with pytest.raises(TaskError, match=f"from 0 to 5 .*, got {count}"):
        pool.sample(count, random.Random(0))


def test_quotas_by_difficulty(pool: TaskPool) -> None:
    chosen = pool.with_quotas({"easy": 2, "hard": 1}, 3, random.Random(0))
    assert {name: len(view) for name, view in chosen.by_difficulty().items()} == {"easy": 2, "hard": 1}


def test_quota_that_cannot_be_filled_says_what_is_there(pool: TaskPool) -> None:
    with pytest.raises(TaskError, match="expected 3 tasks of difficulty 'hard', there are 2; the pool has 3 easy, 2"):
        pool.with_quotas({"hard": 1.0}, 3, random.Random(0))
    with pytest.raises(TaskError, match="'medium', there are 0"):
        pool.with_quotas({"easy": 1, "medium": 1}, 2, random.Random(0))


def test_version_depends_on_the_set_of_tasks_alone(pool: TaskPool) -> None:
    assert TaskPool(reversed(pool)).version == pool.version
    assert pool[:4].version != pool.version
    assert len(pool.version) == 16


def test_F22_description_names_split_size_and_hash(pool: TaskPool) -> None:
    assert pool.describe() == f"4 train, 1 test, version {pool.version}"


def test_a_task_given_twice_is_an_error(make: Make) -> None:
    task = make("a")
    for second in (task, make("a")):
        with pytest.raises(TaskError, match="given twice"):
            TaskPool([task, second])


def test_F22_equal_content_in_two_splits_is_an_error(make: Make) -> None:
    with pytest.raises(TaskError, match="'train' and 'test' share the task"):
        TaskPool([make("a", split="train"), make("a", split="test")])


def test_F22_overlap_between_pools_is_an_error_with_examples(make: Make) -> None:
    train = TaskPool([make(name) for name in "abcdef"])
    test = TaskPool([make(name, split="test") for name in "bcdefg"])
    with pytest.raises(TaskError, match=r"found 5 tasks both in \(6 train, .*\) and in \(6 test, .*'b'; .*'c'; .*'d';"):
        check_disjoint(train, test)


def test_F22_the_training_pool_is_not_a_test_pool(pool: TaskPool) -> None:
    with pytest.raises(TaskError, match="found 5 tasks"):
        check_disjoint(pool, pool)


def test_F22_overlap_is_found_by_content_and_not_by_id(make: Make) -> None:
    renamed = msgspec.structs.replace(make("a"), id="another")
    with pytest.raises(TaskError, match="found 1 tasks"):
        check_disjoint(TaskPool([make("a")]), TaskPool([renamed]))


def test_disjoint_pools_pass(make: Make) -> None:
    check_disjoint(TaskPool([make("a")]), TaskPool([make("b")]), TaskPool([make("c")]), TaskPool())


def test_statistics_are_merged_into_a_new_pool(pool: TaskPool) -> None:
    first = pool[0].id
    once = pool.with_statistics({first: TaskStatistics(attempts=4, solved=1)})
    twice = once.with_statistics({first: TaskStatistics(attempts=4, solved=2, unscored=1), "gone": TaskStatistics()})
    assert pool.statistics_of(first).success_rate is None
    assert once.statistics_of(first).success_rate == 0.25
    assert twice.statistics_of(first) == TaskStatistics(attempts=8, solved=3, unscored=1)
    assert twice.filter(family="one").statistics_of(first).solved == 3
    assert twice == pool
