from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from deedrl.cli.check_env import check_env
from deedrl.environments.checker import CHECKS, check_environment
from deedrl.environments.checks import DoesNotApply, Failed, Subject
from deedrl.environments.environment import Environment
from deedrl.environments.fixtures import Fixture
from deedrl.environments.loading import load_environment
from deedrl.errors import ConfigError, EnvironmentAuthorError, ToolError
from deedrl.tools.tool import tool
from deedrl.types import Action, Split, Task, Verdict

TEA_HOUSE = str(Path(__file__).parents[2] / "examples" / "tea_house.py")


class Vault(Environment):
    """A sound environment: look up a code, then open with it."""

    def setup(self, task: Task) -> None:
        self.door, self.code = task.initial_state["door"], task.initial_state["code"]
        self.opened = False

    @tool(read_only=True)
    def look_up(self, door: str) -> str:
        """Finds the code of a door."""
        if door != self.door:
            raise ToolError(f"no door called {door[:20]!r}")
        return f"The code is {self.code}."

    @tool(ends_episode=True)
    def open(self, code: str) -> str:
        """Opens the door."""
        self.opened = code == self.code
        return "open" if self.opened else "that was the wrong code"

    def verify(self, task: Task) -> Verdict | bool:
        return self.opened

    def state_hash(self) -> str | None:
        return f"{self.door} {self.code} {self.opened}"

    def demonstrate(self, task: Task) -> list[Action]:
        return [
            Action(tool_name="look_up", parameters={"door": self.door}),
            Action(tool_name="open", parameters={"code": self.code}),
        ]

    @classmethod
    def fixtures(cls, task: Task) -> list[Fixture]:
        code = task.goal_state["code"]
        return [
            Fixture(name="knows", actions=(Action(tool_name="open", parameters={"code": code}),), solved=True),
            Fixture(name="guesses", actions=(Action(tool_name="open", parameters={"code": "1"}),), most_progress=0.0),
        ]

    @classmethod
    def generate_tasks(cls, split: Split, count: int, seed: int) -> list[Task]:
        source = random.Random(f"{split} {seed}")
        return [
            cls.task_of(split, f"{split}{source.randrange(10**6)}", source.randrange(10**6, 10**7))
            for _ in range(count)
        ]

    @classmethod
    def task_of(cls, split: Split, door: str, code: int) -> Task:
        return Task.create(
            f"Open the door {door}.",
            initial_state={"door": door, "code": str(code)},
            goal_state={"code": str(code)},
            split=split,
        )


def outcome(cls: type[Environment], name: str) -> str:
    """What the check called `name` saw; raises what it raises."""
    return CHECKS[name](Subject(cls, cls.generate_tasks("train", 3, 0) or [Task.create(prompt="")], 0))


def test_sound_environment_passes_every_check() -> None:
    report = check_environment(Vault, tasks=5)
    assert [(result.name, result.ok) for result in report.results] == [(name, True) for name in CHECKS]
    assert report.ok


def test_example_passes() -> None:
    report = check_environment(load_environment(TEA_HOUSE))
    assert report.ok
    assert {result.name for result in report.results if result.ok is None} == {"demonstrations", "fixtures", "leaks"}


def test_example_is_short() -> None:
    assert len(Path(TEA_HOUSE).read_text().splitlines()) <= 40


def test_example_is_solved_by_asking_first() -> None:
    environment = load_environment(TEA_HOUSE)()
    wish = {"table": 12, "tea": "sencha", "degrees": 71}
    task = Task.create("Tea for table 12.", initial_state=wish, goal_state=wish)
    environment.reset(options={"task": task})
    assert environment.step({"tool_name": "ask", "parameters": {"table": 12}})[0] == "sencha, brewed at 71 degrees"
    assert environment.step({"tool_name": "serve", "parameters": wish})[1:3] == (1.0, True)


# ---------------------------------------------------------------- each check can fail


class Dice(Vault):
    def setup(self, task: Task) -> None:
        super().setup(task)
        self.code = str(random.SystemRandom().randrange(10**6))


class Shared(Vault):
    attempts: list[str] = []

    @tool(read_only=True)
    def look_up(self, door: str) -> str:
        """Finds the code of a door."""
        type(self).attempts.append(door)
        return "noted"


class SharedAndSeen(Shared):
    @tool(read_only=True)
    def look_up(self, door: str) -> str:
        """Finds the code of a door."""
        type(self).attempts.append(door)
        return f"{len(type(self).attempts)} attempts"


class Hoarder(Vault):
    def __init__(self) -> None:
        self.attempts: list[str] = []

    @tool(read_only=True)
    def look_up(self, door: str) -> str:
        """Finds the code of a door."""
        self.attempts.append(door)
        return f"{len(self.attempts)} attempts"


class AlmostDone(Vault):
    def verify(self, task: Task) -> Verdict | bool:
        return self.opened or Verdict(solved=False, progress=0.6)


class DoneAtOnce(Vault):
    def verify(self, task: Task) -> Verdict | bool:
        return True


class Meddling(Vault):
    def verify(self, task: Task) -> Verdict | bool:
        self.code += "0"
        return False


class Hopeless(Vault):
    def demonstrate(self, task: Task) -> list[Action]:
        return [Action(tool_name="open", parameters={"code": "guess"})]


class TooLong(Vault):
    max_steps = 2

    def demonstrate(self, task: Task) -> list[Action]:
        return [Action(tool_name="look_up", parameters={"door": "x"})] * 2 + super().demonstrate(task)


class Fragile(Vault):
    @tool(read_only=True)
    def look_up(self, door: str) -> str:
        """Finds the code of a door."""
        return {self.door: self.code}[door]


class Wordless(Vault):
    @tool(read_only=True)
    def look_up(self, door: str) -> str:
        """Finds the code of a door."""
        raise ToolError(" ")


class GlobalRandom(Vault):
    def setup(self, task: Task) -> None:
        super().setup(task)
        random.random()


class Telling(Vault):
    @classmethod
    def task_of(cls, split: Split, door: str, code: int) -> Task:
        task = super().task_of(split, door, code)
        return Task.create(
            f"{task.prompt} Not that {code} helps.",
            goal_state=task.goal_state,
            split=split,
            initial_state=task.initial_state,
        )


class TellingErrors(Vault):
    @tool(read_only=True)
    def look_up(self, door: str) -> str:
        """Finds the code of a door."""
        raise ToolError(f"no such door; known: {self.door} ({self.code})")


class OneSplit(Vault):
    @classmethod
    def task_of(cls, split: Split, door: str, code: int) -> Task:
        return super().task_of(split, "same", 1234567)


class WrongSplit(Vault):
    @classmethod
    def task_of(cls, split: Split, door: str, code: int) -> Task:
        return super().task_of("train", door, code)


class OwnIds(Vault):
    @classmethod
    def task_of(cls, split: Split, door: str, code: int) -> Task:
        return Task(id=door, prompt="", initial_state={"door": door, "code": ""}, split=split)


class Tuples(Vault):
    @classmethod
    def task_of(cls, split: Split, door: str, code: int) -> Task:
        return Task.create("", initial_state={"door": (1, 2), "code": ""}, split=split)


class UnseededTasks(Vault):
    @classmethod
    def generate_tasks(cls, split: Split, count: int, seed: int) -> list[Task]:
        source = random.SystemRandom()
        return [cls.task_of(split, f"{split}{source.randrange(10**9)}", 10**6) for _ in range(count)]


class Reseeding(Vault):
    """Sets the state that an earlier episode has left already."""

    def setup(self, task: Task) -> None:
        super().setup(task)
        random.seed(1)


class NumberHash(Vault):
    def state_hash(self) -> Any:
        return 5


class Unscored(Vault):
    @classmethod
    def rubric(cls) -> Any:
        return 5


class Believing(Vault):
    def verify(self, task: Task) -> bool:
        return True


class Generous(Vault):
    def verify(self, task: Task) -> Verdict:
        return Verdict(solved=self.opened, progress=1.0 if self.opened else 0.05)


class Strict(Vault):
    @classmethod
    def fixtures(cls, task: Task) -> list[Fixture]:
        return [Fixture(name="peeks", actions=(), violations=("peeked",))]


class NoFixture(Vault):
    @classmethod
    def fixtures(cls, task: Task) -> Any:
        return [5]


class Leaving(Vault):
    def setup(self, task: Task) -> None:
        sys.exit(0)


class LeavingTool(Vault):
    @tool
    def leave(self) -> str:
        """Leaves."""
        sys.exit(0)


class OldStyle(Vault):
    def reset(self, **given: Any) -> Any:  # type: ignore[override]
        return super().reset(**given)[0]


@pytest.mark.parametrize(
    ("cls", "check", "message"),
    [
        pytest.param(Dice, "determinism", "same seed, task and actions, different outcomes: step ", id="D12_Dice"),
        pytest.param(UnseededTasks, "determinism", "gave different prompts the second time", id="D12_UnseededTasks"),
        pytest.param(
            SharedAndSeen, "isolation", "two copies taking turns differ from each alone", id="D09_SharedAndSeen"
        ),
        pytest.param(Shared, "leftovers", "episodes changed the class itself: attempts", id="D11_Shared"),
        pytest.param(
            Hoarder, "leftovers", "an episode after another differs from one in a fresh copy", id="D11_Hoarder"
        ),
        pytest.param(OwnIds, "json round trip", "id is not the hash of its content", id="OwnIds"),
        pytest.param(Tuples, "json round trip", "changes when written as JSON and read again", id="Tuples"),
        pytest.param(AlmostDone, "no-op score", "right after reset: solved=False, progress=0.6", id="F15_AlmostDone"),
        pytest.param(DoneAtOnce, "no-op score", "right after reset: solved=True, progress=1", id="F15_DoneAtOnce"),
        pytest.param(Meddling, "verifier reads only", "asking the verifier twice gave", id="Meddling"),
        pytest.param(
            Hopeless,
            "demonstrations",
            "the demonstration of 1 steps stopped after 1 with terminated=True",
            id="Hopeless",
        ),
        pytest.param(
            TooLong,
            "demonstrations",
            "the demonstration of 4 steps stopped after 2 with terminated=False",
            id="TooLong",
        ),
        pytest.param(Believing, "fixtures", "'guesses': expected solved=False, got True", id="F13_Believing"),
        pytest.param(Generous, "fixtures", "'guesses': expected progress of at most 0, got 0.05", id="Generous"),
        pytest.param(Strict, "fixtures", r"'peeks': expected the violations \['peeked'\], got \[\]", id="Strict"),
        pytest.param(Wordless, "wrong parameters", "failed without a word", id="Wordless"),
        pytest.param(GlobalRandom, "global random state", "the global random state changed", id="D12_GlobalRandom"),
        pytest.param(Reseeding, "global random state", "the global random state changed", id="D12_Reseeding"),
        pytest.param(Telling, "leaks", ".* of the goal shows up in the prompt", id="F18_Telling"),
        pytest.param(TellingErrors, "leaks", r".* shows up in the answer to look_up\(", id="F18_TellingErrors"),
        pytest.param(OneSplit, "splits", "task .* is in both 'train' and 'validation'", id="F22_OneSplit"),
        pytest.param(
            WrongSplit, "splits", r"generate_tasks\('validation', ...\) made a task marked 'train'", id="F22_WrongSplit"
        ),
    ],
)
def test_check_finds_the_fault(cls: type[Environment], check: str, message: str) -> None:
    with pytest.raises(Failed, match=message) as caught:
        outcome(cls, check)
    assert caught.value.todo


@pytest.mark.parametrize(
    ("cls", "check", "message"),
    [
        (NumberHash, "determinism", "NumberHash.state_hash: expected a text or None, got 5"),
        (NoFixture, "fixtures", "NoFixture.fixtures: expected a list of Fixture, got 5 in it"),
        (Unscored, "rubric", "Unscored.rubric: expected a Rubric or None, got 5"),
        (LeavingTool, "wrong parameters", "the check 'wrong parameters' tried to exit the process (code 0)"),
    ],
)
def test_what_breaks_the_contract_is_a_failed_check_in_words(cls: type[Environment], check: str, message: str) -> None:
    report = check_environment(cls, tasks=2)
    (failed,) = [result for result in report.results if result.name == check]
    assert failed.ok is False
    assert failed.seen.startswith(message)


def test_an_environment_that_exits_is_not_taken_for_a_sound_one() -> None:
    with pytest.raises(EnvironmentAuthorError, match=r"Leaving\.reset tried to exit the process \(code 0\) .*in setup"):
        check_environment(Leaving, tasks=2)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"instructions": None}, r"Odd\.instructions: expected a text, got None"),
        ({"max_steps": 0}, r"Odd\.max_steps: expected a number of at least 1, got 0"),
        ({"max_steps": "8"}, r"Odd\.max_steps: expected a number of at least 1, got '8'"),
    ],
)
def test_class_values_of_another_type_are_told_when_the_class_is_made(values: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvironmentAuthorError, match=message):
        type("Odd", (Environment,), values)


def test_crash_on_a_wrong_parameter_names_tool_and_place() -> None:
    report = check_environment(Fragile, tasks=2)
    (failed,) = [result for result in report.results if result.name == "wrong parameters"]
    assert failed.ok is False
    assert failed.seen.startswith("ToolCrash: tool 'look_up' called with")
    assert "test_checker.py:" in failed.seen
    assert not report.ok


def test_gymnasiums_complaint_becomes_a_failed_check() -> None:
    with pytest.raises(Failed, match="was not a tuple"):
        outcome(OldStyle, "gymnasium")


class Bare(Environment):
    """No tools and no tasks."""

    def verify(self, task: Task) -> bool:
        return False


@pytest.mark.parametrize("check", ["demonstrations", "fixtures", "leaks", "splits"])
def test_checks_without_anything_to_check_do_not_apply(check: str) -> None:
    with pytest.raises(DoesNotApply):
        outcome(Bare, check)


def test_environment_without_tools_and_tasks_passes_the_rest() -> None:
    assert check_environment(Bare).ok


def test_long_strings_of_the_goal_are_what_must_be_found_out() -> None:
    assert Vault.gold_strings(Task.create("", goal_state={"a": [{"b": "123456"}, "12345"], "n": 1234567})) == ["123456"]


# ---------------------------------------------------------------- the command


app = typer.Typer()
app.command()(check_env)


@pytest.fixture
def environment_file(tmp_path: Path) -> Callable[[str], str]:
    def write(body: str) -> str:
        path = tmp_path / "written.py"
        path.write_text(f"from deedrl import Environment\nclass Written(Environment):\n    {body}\n")
        return str(path)

    return write


def test_command_prints_a_table_and_succeeds() -> None:
    result = CliRunner().invoke(app, [TEA_HOUSE, "--tasks", "3"])
    assert result.exit_code == 0, result.output
    assert "determinism" in result.output
    assert "failed" not in result.output


def test_command_exits_with_1_after_a_failed_check(environment_file: Callable[[str], str]) -> None:
    result = CliRunner().invoke(app, [environment_file("def verify(self, task): return True")])
    assert result.exit_code == 1
    assert "no-op score" in result.output
    assert "failed" in result.output


def test_command_refuses_a_bad_reference() -> None:
    with pytest.raises(ConfigError, match="no file"):
        CliRunner().invoke(app, ["nowhere.py"], catch_exceptions=False)


def test_reset_that_raises_is_reported_with_exception_and_place(environment_file: Callable[[str], str]) -> None:
    ref = environment_file("def setup(self, task): raise RuntimeError('no database')")
    with pytest.raises(EnvironmentAuthorError, match=r"RuntimeError: no database \(.*written\.py:3 in setup\)"):
        CliRunner().invoke(app, [ref], catch_exceptions=False)
