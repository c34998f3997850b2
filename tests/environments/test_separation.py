"""Episodes and copies are separate: nothing is left over, seeds are an episode's own, copies never mix."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from counting import THREE, Counter, add, started

from deedrl.environments.environment import Environment
from deedrl.tools.tool import ToolCrash, tool
from deedrl.types import Action, Task

# ---------------------------------------------------------------- nothing is left over


class Leaky(Environment):
    """Keeps things in every place where an author might."""

    torn_down = 0

    def __init__(self, label: str = "made") -> None:
        self.label = label

    @tool
    def leave(self) -> str:
        self.note = "left"
        self.label = "changed"
        (self.workspace / "note.txt").write_text("left")
        return str(self.workspace)

    @tool
    def find(self) -> list[Any]:
        return [getattr(self, "note", None), self.label, [path.name for path in self.workspace.iterdir()]]

    @tool
    def mutate(self) -> str:
        self.task.initial_state["items"].append("x")
        return "done"

    @tool
    def crash(self) -> str:
        raise RuntimeError("broken")

    def verify(self, task: Task) -> bool:
        return len(task.initial_state.get("items", [])) > 1

    def teardown(self) -> None:
        type(self).torn_down += 1


def test_D11_attributes_and_files_of_an_episode_are_gone_in_the_next() -> None:
    environment = started(Leaky)
    folder = Path(environment.step({"tool_name": "leave"})[0])
    assert folder.is_dir()
    environment.reset(options={"task": THREE})
    assert not folder.exists()
    assert environment.step({"tool_name": "find"})[0] == '[null, "made", []]'
    environment.close()


def test_D11_list_in_the_class_body_is_empty_again_and_not_shared() -> None:
    class Noting(Counter):
        _notes: list[int] = []

        @tool
        def note(self, number: int) -> list[int]:
            self._notes.append(number)
            return self._notes

    first, second = started(Noting), started(Noting)
    note = Action(tool_name="note", parameters={"number": 1})
    assert first.step(note)[0] == "[1]"
    assert second.step(note)[0] == "[1]"
    first.reset(options={"task": THREE})
    assert first.step(note)[0] == "[1]"
    assert Noting._notes == []


def test_D11_what_a_tool_does_to_the_task_stays_in_the_episode() -> None:
    task = Task.create(prompt="", initial_state={"items": ["a"]})
    environment = started(Leaky, task)
    environment.step({"tool_name": "mutate"})
    assert environment.current_verdict().solved is False
    assert task.initial_state == {"items": ["a"]}


def test_D11_workspaces_of_two_copies_differ_and_are_removed_by_close() -> None:
    one, other = started(Leaky), started(Leaky)
    folders = [one.workspace, other.workspace]
    assert folders[0] != folders[1]
    one.close()
    other.close()
    assert [folder.exists() for folder in folders] == [False, False]


def test_D11_teardown_runs_once_an_episode_also_after_errors() -> None:
    Leaky.torn_down = 0
    environment = started(Leaky)
    with pytest.raises(ToolCrash):
        environment.step({"tool_name": "crash"})
    environment.reset(options={"task": THREE})
    assert Leaky.torn_down == 1
    environment.close()
    environment.close()
    assert Leaky.torn_down == 2


def test_D11_teardown_runs_after_setup_raised_and_the_first_error_is_shown() -> None:
    class Failing(Leaky):
        def setup(self, task: Task) -> None:
            self.note = "half built"
            self.folder = self.workspace
            raise OSError("no space left")

        def teardown(self) -> None:
            seen.append(self.folder)
            raise KeyError("second")

    seen: list[Path] = []
    environment = Failing()
    with pytest.raises(OSError, match="no space left") as caught:
        environment.reset(options={"task": THREE})
    assert caught.value.__notes__ == ["teardown() after this error raised KeyError: 'second'"]
    assert not seen[0].exists()
    assert not hasattr(environment, "note")
    environment.close()
    assert len(seen) == 1


def test_D11_teardown_that_raises_still_cleans_up() -> None:
    class Failing(Leaky):
        def teardown(self) -> None:
            raise OSError("cannot")

    environment = started(Failing)
    folder = Path(environment.step({"tool_name": "leave"})[0])
    with pytest.raises(OSError, match="cannot"):
        environment.reset(options={"task": THREE})
    assert not folder.exists()
    assert environment.reset(options={"task": THREE})[0] == "Count to 3"


# ---------------------------------------------------------------- seeds


def test_D12_resets_after_a_seeded_one_are_reproducible() -> None:
    def prompts() -> list[str]:
        environment = Counter()
        return [environment.reset(seed=7)[0], environment.reset()[0], environment.reset()[0]]

    assert prompts() == prompts()
    assert len(set(prompts())) == 3


def test_D12_global_random_state_is_untouched() -> None:
    before = random.getstate(), repr(np.random.get_state())
    environment = Counter()
    environment.reset(seed=7)
    environment.reset()
    environment.step(add(1))
    assert (random.getstate(), repr(np.random.get_state())) == before


# ---------------------------------------------------------------- copies side by side


class Ledger(Environment):
    """Each copy writes down who it is, through the tool objects that all copies share."""

    max_steps = 1000

    def setup(self, task: Task) -> None:
        self.written: list[str] = []

    @tool
    def write(self, name: str) -> str:
        self.written.append(name)
        return name

    def verify(self, task: Task) -> bool:
        return False


def test_D09_two_rollouts_through_one_tool_object_never_mix() -> None:
    copies = {"left": started(Ledger), "right": started(Ledger)}
    turn = threading.Barrier(2, timeout=20)

    def play(name: str) -> None:
        for _ in range(200):
            turn.wait()
            copies[name].step(Action(tool_name="write", parameters={"name": name}))

    threads = [threading.Thread(target=play, args=(name,)) for name in copies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    for name, environment in copies.items():
        assert isinstance(environment, Ledger)
        assert environment.written == [name] * 200


def test_D09_bound_tools_write_into_the_copy_they_came_from() -> None:
    left, right = started(Ledger), started(Ledger)
    tools = [(left.toolbox["write"], "left"), (right.toolbox["write"], "right")]
    order = random.Random(3)
    for _ in range(200):
        bound, name = order.choice(tools)
        bound.call({"name": name})
    assert isinstance(left, Ledger)
    assert isinstance(right, Ledger)
    assert set(left.written) == {"left"}
    assert set(right.written) == {"right"}
    assert len(left.written) + len(right.written) == 200
