"""Spaces in words, as parameters, and back."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from deedrl.environments.gymnasium_spaces import check_describable, in_words, parameters_of, to_sample, value_in_words
from deedrl.errors import EnvironmentAuthorError, ToolError

BOX = spaces.Box(-1.0, 2.0, (2,), np.float32)


@pytest.mark.parametrize(
    ("space", "names", "expected"),
    [
        (spaces.Discrete(4), (), "a number from 0 to 3"),
        (spaces.Discrete(3, start=-1), (), "a number from -1 to 1"),
        (spaces.Discrete(2), ("stick", "hit"), "one of stick, hit"),
        (spaces.MultiDiscrete([3, 2]), (), "a list of 2 numbers: 0 to 2, 0 to 1"),
        (spaces.MultiBinary(3), (), "a list of 3 numbers, each 0 or 1"),
        (BOX, (), "a list of 2 numbers from -1 to 2"),
        (spaces.Text(5), (), "a text of 1 to 5 characters"),
        (
            spaces.Tuple([spaces.Discrete(2), spaces.Text(3)]),
            (),
            "part 1: a number from 0 to 1; part 2: a text of 1 to 3",
        ),
        (spaces.Dict({"row": spaces.Discrete(2)}), (), "row: a number from 0 to 1"),
    ],
)
def test_a_space_is_said_in_words(space, names, expected):
    assert in_words(space, names).startswith(expected)


@pytest.mark.parametrize(
    ("space", "value", "expected"),
    [
        (spaces.Discrete(4), np.int64(3), "3"),
        (spaces.MultiDiscrete([3, 2]), np.array([2, 1]), "[2, 1]"),
        (BOX, np.array([0.123456, 2], dtype=np.float32), "[0.1235, 2]"),
        (spaces.Text(5), "abc", "abc"),
        (spaces.Tuple([spaces.Discrete(32), spaces.Discrete(2)]), (20, 1), "20, 1"),
        (spaces.Dict({"a": spaces.Discrete(2), "b": spaces.MultiBinary(2)}), {"a": 1, "b": [0, 1]}, "a: 1; b: [0, 1]"),
    ],
)
def test_a_value_is_said_in_words(space, value, expected):
    assert value_in_words(space, value) == expected


@pytest.mark.parametrize(
    ("space", "given"),
    [
        (spaces.Discrete(3, start=2), {"action": 4}),
        (spaces.MultiDiscrete([3, 2]), {"action": [2, 1]}),
        (spaces.MultiBinary(2), {"action": [0, 1]}),
        (BOX, {"action": [0.5, 2.0]}),
        (spaces.Text(5, min_length=1), {"action": "go"}),
        (spaces.Tuple([spaces.Discrete(2), spaces.Text(3)]), {"part_1": 1, "part_2": "ab"}),
        (spaces.Dict({"x": spaces.Discrete(2), "y": BOX}), {"x": 1, "y": [0.0, 0.0]}),
    ],
)
def test_what_a_model_gives_becomes_an_action_of_the_space(space, given):
    assert set(parameters_of(space)) == set(given)
    assert space.contains(to_sample(space, given))


def test_a_name_is_its_number():
    assert to_sample(spaces.Discrete(2, start=1), {"action": "hit"}, ("stick", "hit")) == 2


def test_a_value_outside_the_space_is_refused_in_words():
    with pytest.raises(ToolError, match=r"action: expected a list of 2 numbers: 0 to 2, 0 to 1, got \[2, 2\]"):
        to_sample(spaces.MultiDiscrete([3, 2]), {"action": [2, 2]})
    with pytest.raises(ToolError, match="from -1 to 2"):
        to_sample(BOX, {"action": [0.0, 2.5]})


def test_spaces_that_no_one_reads_are_refused():
    with pytest.raises(EnvironmentAuthorError, match="describe="):
        check_describable(spaces.Box(0, 255, (84, 84), np.uint8), "Pixels-v0")
    with pytest.raises(EnvironmentAuthorError, match="at most 16 numbers"):
        parameters_of(spaces.Box(0, 1, (17,)))
    with pytest.raises(EnvironmentAuthorError, match="wrap the game"):
        parameters_of(spaces.Sequence(spaces.Discrete(2)))


def test_names_must_fit_the_space():
    with pytest.raises(EnvironmentAuthorError, match="a name for each of 3 actions, got 2"):
        parameters_of(spaces.Discrete(3), ("a", "b"))
    with pytest.raises(EnvironmentAuthorError, match="go with a Discrete"):
        parameters_of(spaces.MultiBinary(2), ("a", "b"))
