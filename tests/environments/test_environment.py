"""The base class of environments: an episode step by step, and what a subclass may say."""

from __future__ import annotations

import threading
from typing import Any

import gymnasium
import pytest
from counting import THREE, Counter, Finisher, add, started

from deedrl.environments.environment import Environment
from deedrl.errors import EnvironmentAuthorError, TaskError
from deedrl.tools.tool import ToolCrash, tool
from deedrl.types import Action, Task, Verdict

# ---------------------------------------------------------------- the episode


def test_goal_ends_the_episode_where_no_tool_does() -> None:
    environment = started(Counter)
    assert environment.step(add(1)) == ("1", 0.0, False, False, {"ok": True, "ended_by": None})
    solved = Verdict(solved=True, progress=1.0)
    assert environment.step(add(2)) == ("3", 1.0, True, False, {"ok": True, "ended_by": None, "verdict": solved})


def test_only_the_ending_tool_ends_the_episode_where_there_is_one() -> None:
    environment = started(Finisher)
    assert environment.step(add(3))[1:4] == (0.0, False, False)
    _, reward, terminated, truncated, info = environment.step({"tool_name": "finish"})
    assert (reward, terminated, truncated, info["ended_by"]) == (1.0, True, False, "finish")


def test_ending_unsolved_earns_nothing() -> None:
    environment = started(Finisher)
    _, reward, terminated, _, info = environment.step({"tool_name": "finish", "parameters": {}})
    assert (reward, terminated, info["verdict"]) == (0.0, True, Verdict(solved=False))


def test_ending_tool_that_refuses_does_not_end() -> None:
    environment = started(Finisher)
    observation, _, terminated, _, info = environment.step({"tool_name": "finish", "parameters": {"sure": False}})
    assert (observation, terminated, info["ended_by"]) == ("come back when you are", False, None)


def test_D18_last_step_is_truncated_and_wrong_actions_count() -> None:
    environment = started(Counter)
    flags = [environment.step(action)[2:4] for action in (add(0), "no action", {"tool_name": "no"}, add(-1))]
    assert flags == [(False, False), (False, False), (False, False), (False, True)]


def test_goal_in_the_last_step_terminates_and_does_not_truncate() -> None:
    environment = started(Counter)
    assert [environment.step(add(amount))[2:4] for amount in (0, 0, 0, 3)][-1] == (True, False)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (add("2"), "add: parameter 'amount' must be integer"),
        (add(-1), "amounts go up only"),
        ({"tool_name": "ad"}, "there is no tool 'ad'; did you mean 'add'?"),
        ({"tool_name": 3}, "expected an object with tool_name and parameters: Expected `str | null`, got `int`"),
        ({}, "no tool was called; expected tool_name and parameters"),
        (Action(error="that was no JSON", tier="reject"), "that was no JSON"),
    ],
    ids=str,
)
def test_D15_what_the_model_did_wrong_is_an_observation(action: Any, message: str) -> None:
    observation, reward, terminated, truncated, info = started(Counter).step(action)
    assert message in observation
    assert (reward, terminated, truncated, info) == (0.0, False, False, {"ok": False, "ended_by": None})


def test_text_is_parsed_as_an_action() -> None:
    environment = started(Counter)
    text = '{"reasoning": "up", "tool_name": "add", "parameters": {"amount": 2}}'
    assert environment.step(text)[0] == "2"
    observation, *_, info = environment.step("I would rather talk")
    assert info["ok"] is False
    assert observation != ""


def test_crash_of_a_tool_passes_through() -> None:
    with pytest.raises(ToolCrash, match=r"tool 'crash' called with \{\} raised RuntimeError: broken"):
        started(Counter).step({"tool_name": "crash"})


def test_D14_flood_of_bytes_is_cut_and_within_the_space() -> None:
    environment = started(Counter)
    observation = environment.step({"tool_name": "flood"})[0]
    assert len(observation) <= 4000
    assert environment.observation_space.contains(observation)
    assert environment.observation_space.contains("Grüße 中文 🦉")


def test_tools_are_restricted_to_those_the_task_allows() -> None:
    environment = started(Finisher, Task.create(prompt="", goal_state={"count": 3}, tools=("add",)))
    assert list(environment.toolbox) == ["add"]
    assert "there is no tool 'finish'" in environment.step({"tool_name": "finish"})[0]
    assert environment.step(add(3))[2] is True


def test_task_that_allows_an_unknown_tool_is_refused() -> None:
    with pytest.raises(EnvironmentAuthorError, match="allows the tool 'ad', which does not exist; did you mean 'add'"):
        started(Counter, Task.create(prompt="", tools=("ad",)))


def test_task_as_json_object() -> None:
    environment = Counter()
    observation, info = environment.reset(options={"task": {"prompt": "Go", "goal_state": {"count": 1}}})
    assert observation == "Go"
    assert info == {"task_id": Task.create(prompt="Go", goal_state={"count": 1}).id}


@pytest.mark.parametrize("options", [{"task": {"promt": "x"}}, {"task": 3}, {"tsak": THREE}])
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(TaskError, match=r"expected a task|the option 'task' only"):
        Counter().reset(options=options)


def test_step_before_reset_and_after_the_end_needs_a_reset() -> None:
    environment = Counter()
    with pytest.raises(gymnasium.error.ResetNeeded):
        environment.step(add(1))
    environment.reset(options={"task": THREE})
    environment.step(add(3))
    with pytest.raises(gymnasium.error.ResetNeeded):
        environment.step(add(1))


def test_environment_without_tasks_starts_a_blank_one() -> None:
    class Bare(Environment):
        def verify(self, task: Task) -> bool:
            return False

    assert Bare().reset(seed=1) == ("", {"task_id": Task.create(prompt="").id})


# ---------------------------------------------------------------- the class


def test_tools_are_inherited_in_the_order_they_are_written() -> None:
    assert list(Finisher.tools) == ["add", "crash", "flood", "finish"]


def test_tool_can_be_taken_away_and_replaced_in_a_subclass() -> None:
    class Safer(Counter):
        crash = None  # type: ignore[assignment]

        @tool
        def add(self, amount: float) -> str:
            return ""

    assert list(Safer.tools) == ["add", "flood"]
    assert Safer.tools["add"].schema.parameters["properties"]["amount"] == {"type": "number"}


def test_plain_function_is_a_tool_of_a_class() -> None:
    @tool
    def double(number: int) -> int:
        return 2 * number

    class Calculating(Counter):
        calculator = double

    assert started(Calculating).step({"tool_name": "double", "parameters": {"number": 4}})[0] == "8"


def test_tool_named_like_a_part_of_every_environment_is_refused() -> None:
    with pytest.raises(EnvironmentAuthorError, match="the tool 'close' is written as 'close', which every environment"):

        class Clash(Environment):
            @tool
            def close(self) -> str:  # type: ignore[override]
                return ""


def test_class_value_that_cannot_be_copied_is_refused() -> None:
    with pytest.raises(EnvironmentAuthorError, match="of the class body cannot be copied"):

        class Locked(Environment):
            locks = {"one": threading.Lock()}


def test_tool_may_not_take_the_name_of_an_attribute() -> None:
    with pytest.raises(EnvironmentAuthorError, match="written as 'task', which every environment already has"):

        class Clash(Environment):
            @tool
            def task(self) -> str:  # type: ignore[override]
                return ""


def test_list_of_tools_in_the_class_is_refused() -> None:
    with pytest.raises(EnvironmentAuthorError, match="'tools' is filled in from the class"):

        class Listed(Environment):
            tools = []  # type: ignore[assignment]
