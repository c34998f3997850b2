"""Private copies of tasks: equal to the original, and nothing in them is shared with it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deedrl.environments.copies import private_copy
from deedrl.environments.spaces import AnyText
from deedrl.types import Task

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.sets(st.integers(), max_size=1)  # of more, the order of printing differs
    ),
    max_leaves=8,
)


def mutable_parts(value: Any) -> Iterator[int]:
    """Identities of everything in `value` that could be changed in place."""
    if isinstance(value, list | dict | set):
        yield id(value)
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
        yield from mutable_parts(inner)


@given(st.dictionaries(st.text(max_size=3), VALUES, max_size=4))
def test_a_copy_is_equal_and_shares_nothing_that_can_change(state: dict[str, Any]) -> None:
    task = Task(id="t", prompt="p", initial_state=state, goal_state={"same": state}, tools=("a",))
    made = private_copy(task)
    assert made == task == copy.deepcopy(task)
    assert repr(made) == repr(task)  # types too: 1 and True are equal
    for name in ("initial_state", "goal_state"):
        before, after = set(mutable_parts(getattr(task, name))), set(mutable_parts(getattr(made, name)))
        assert before.isdisjoint(after)


def test_objects_of_other_classes_are_copied_as_well() -> None:
    class Place:
        def __init__(self) -> None:
            self.visits = [1]

    task = Task(id="t", prompt="p", initial_state={"at": Place()})
    made = private_copy(task)
    made.initial_state["at"].visits.append(2)
    assert task.initial_state["at"].visits == [1]


@pytest.mark.parametrize("field", ["tools", "initial_state"])
def test_a_list_where_the_type_asks_for_something_else_is_no_longer_shared(field: str) -> None:
    task = Task(id="t", prompt="p", **{field: ["a"]})  # type: ignore[arg-type]
    getattr(private_copy(task), field).append("b")
    assert getattr(task, field) == ["a"]


def test_spaces_share_their_letters_and_not_their_random_state() -> None:
    first, second, third = AnyText(), AnyText(), AnyText()
    first.seed(3)
    second.seed(3)
    drawn = [first.sample() for _ in range(5)]
    assert third._np_random is None
    assert [second.sample() for _ in range(5)] == drawn
    assert copy.deepcopy(third).contains("любой текст")
