"""What an author's methods may give, and that a loop without end in one of them is told as the author's error."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from deedrl.environments import checker, contract
from deedrl.environments.checker import check_environment
from deedrl.environments.contract import checked_state_hash, checked_tasks, contained, demonstration
from deedrl.environments.environment import Environment
from deedrl.errors import ConfigError, EnvironmentAuthorError
from deedrl.tools.limits import ToolInterrupted, alarm
from deedrl.tools.tool import tool
from deedrl.types import Action, Split, Task, Verdict


class Job(Environment):
    """Demonstrates whatever `given` is."""

    given: Any = ()

    def setup(self, task: Task) -> None:
        self.done = False

    @tool
    def work(self) -> str:
        """Works."""
        self.done = True
        return "done"

    def verify(self, task: Task) -> Verdict | bool:
        return self.done

    def demonstrate(self, task: Task) -> Any:
        if isinstance(self.given, Exception):
            raise self.given
        return self.given


def demonstrated(given: Any) -> Any:
    job = Job()
    job.given = given
    return demonstration(job, Task.create(prompt="work"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (5, r"Job\.demonstrate: expected a list of Action, got 5"),
        ("work", r"expected a list of Action, got 'work'"),
        ([{"tool_name": "work"}], r"expected a list of Action, got \{'tool_name': 'work'\} in it"),
        (ValueError("no"), r"Job\.demonstrate raised ValueError: no \(.*test_contract\.py:\d+ in demonstrate\)"),
    ],
)
def test_what_is_no_demonstration_is_the_authors_error(given: Any, message: str) -> None:
    with pytest.raises(EnvironmentAuthorError, match=message):
        demonstrated(given)


def test_none_is_no_demonstration_and_a_list_of_actions_is_one() -> None:
    action = Action(tool_name="work")
    assert demonstrated(None) == ()
    assert demonstrated([action]) == (action,)


def wait_under(limit: Any) -> None:
    with limit:
        time.sleep(5.0)


def test_a_method_without_end_is_told_with_its_place() -> None:
    with pytest.raises(EnvironmentAuthorError, match=r"it did not finish within 0\.1 s \(.*:\d+ in wait_under\)"):
        wait_under(contained(0.1, "it"))


def test_generating_tasks_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(Job):
        @classmethod
        def generate_tasks(cls, split: Split, count: int, seed: int) -> list[Task]:
            while True:
                time.sleep(0.01)

    monkeypatch.setattr(contract, "GENERATE_LIMIT_S", 0.1)
    with pytest.raises(EnvironmentAuthorError, match=r"Endless\.generate_tasks did not finish within 0\.1 s"):
        checked_tasks(Endless, "train", 3, 0)


def test_an_environment_that_never_starts_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(Job):
        def setup(self, task: Task) -> None:
            while True:
                time.sleep(0.01)

    monkeypatch.setattr(checker, "START_LIMIT_S", 0.1)
    with pytest.raises(EnvironmentAuthorError, match=r"Endless\.reset did not finish within 0\.1 s"):
        check_environment(Endless)


def test_a_tool_without_end_fails_its_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(Job):
        @tool(name="wait")
        def wait_for_ever(self) -> str:
            """Waits."""
            while True:
                time.sleep(0.01)

    monkeypatch.setattr(checker, "CHECK_LIMIT_S", 0.1)
    report = check_environment(Endless)
    seen = {result.name: result.seen for result in report.results if result.ok is False}
    assert "the check 'wrong parameters' did not finish within 0.1 s" in seen["wrong parameters"]


def test_an_alarm_inside_another_leaves_the_outer_one_its_time() -> None:
    def nested() -> None:
        with alarm(0.2):
            with alarm(5.0):
                pass
            time.sleep(5.0)

    began = time.monotonic()
    with pytest.raises(ToolInterrupted):
        nested()
    assert time.monotonic() - began < 3.0


# ---------------------------------------------------------------- generated tasks


def generating(give: Callable[[str], Any]) -> type[Environment]:
    class Odd(Job):
        @classmethod
        def generate_tasks(cls, split: Split, count: int, seed: int) -> Any:
            return give(split)

    return Odd


@pytest.mark.parametrize(
    ("give", "message"),
    [
        (lambda split: 1 // 0, r"Odd.generate_tasks raised ZeroDivisionError: .*test_contract.py:\d+ in <lambda>"),
        (lambda split: [Task.create("\ud800")], "Odd.generate_tasks raised UnicodeEncodeError"),
        (lambda split: [7], "expected tasks, got 7; build them with Task.create"),
        (
            lambda split: [Task.create("Go.", split="train")],
            "of the split 'test', got task .* of 'train'",
        ),
    ],
)
def test_tasks_that_break_the_contract_are_the_authors_error(give: Callable[[str], Any], message: str) -> None:
    with pytest.raises(EnvironmentAuthorError, match=message):
        checked_tasks(generating(give), "test", 2, 0)


def test_choosing_tasks_by_what_the_environment_does_not_know_names_the_setting() -> None:
    with pytest.raises(ConfigError, match=r"environment\.difficulties: Odd\.generate_tasks cannot choose"):
        checked_tasks(generating(lambda split: []), "test", 2, 0, difficulties=("easy",))


def test_state_hash_is_a_text_or_nothing() -> None:
    assert checked_state_hash(None, "Odd") is None
    assert checked_state_hash("7", "Odd") == "7"
    with pytest.raises(EnvironmentAuthorError, match=r"Odd\.state_hash: expected a text or None, got 7"):
        checked_state_hash(7, "Odd")
