from __future__ import annotations

import random
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import wrappers
from gymnasium.utils.env_checker import check_env

from deedrl.environments.contract import checked_state_hash, checked_tasks
from deedrl.environments.environment import Environment
from deedrl.errors import ConfigError, EnvironmentAuthorError, TaskError, ToolError
from deedrl.tools.tool import ToolCrash, tool
from deedrl.types import Action, Split, Task, Verdict


class Counter(Environment):
    """Counts to the task's number; no tool ends the episode, so the goal does."""

    max_steps = 4

    def setup(self, task: Task) -> None:
        self.count = task.initial_state.get("start", 0)

    @tool
    def add(self, amount: int) -> Any:
        """Adds to the count."""
        if amount < 0:
            raise ToolError("amounts go up only")
        self.count += amount
        return self.count

    @tool
    def crash(self) -> str:
        raise RuntimeError("broken")

    @tool
    def flood(self) -> bytes:
        return b"\xff" * 10_000_000

    def verify(self, task: Task) -> bool:
        return bool(self.count == task.goal_state.get("count", 3))

    @classmethod
    def generate_tasks(cls, split: Split, count: int, seed: int) -> list[Task]:
        source = random.Random(f"{split}{seed}")
        goals = [source.randrange(2, 10**6) for _ in range(count)]
        return [Task.create(f"Count to {goal}", goal_state={"count": goal}, split=split) for goal in goals]


class Finisher(Counter):
    """The same with a tool that ends the episode."""

    @tool(ends_episode=True)
    def finish(self, sure: bool = True) -> str:
        if not sure:
            raise ToolError("come back when you are")
        return "bye"


THREE = Task.create(prompt="Count to 3", goal_state={"count": 3})


def add(amount: Any) -> Action:
    return Action(tool_name="add", parameters={"amount": amount})


def started(cls: type[Environment], task: Task = THREE) -> Environment:
    environment = cls()
    environment.reset(seed=1, options={"task": task})
    return environment


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


# ---------------------------------------------------------------- the verdict


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "expected bool or Verdict, got None"),
        (1.0, "expected bool or Verdict, got 1.0"),
        (Verdict(solved=False, progress=float("nan")), "expected progress to be a finite number, got nan"),
        (Verdict(solved=False, progress=1.5), "expected progress from 0 to 1, got 1.5"),
        (Verdict(solved=False, progress=-0.5), "expected progress from 0 to 1, got -0.5"),
        (Verdict(solved=True, progress=0.5), "expected progress 1.0 exactly when solved"),
        (Verdict(solved=False, progress=1.0), "expected progress 1.0 exactly when solved"),
        (Verdict(solved="yes", progress=1.0), "expected solved to be True or False, got 'yes'"),  # type: ignore[arg-type]
    ],
)
def test_F13_verdict_out_of_range_is_the_authors_error(given: Any, message: str) -> None:
    class Odd(Counter):
        def verify(self, task: Task) -> Any:
            return given

    with pytest.raises(EnvironmentAuthorError, match=message):
        started(Odd).current_verdict()


@pytest.mark.parametrize("extra", [{"milestones": {"found": 1}}, {"violations": "rude"}, {"violations": (5,)}])
def test_verdict_that_could_not_be_read_back_is_the_authors_error(extra: dict[str, Any]) -> None:
    class Odd(Counter):
        def verify(self, task: Task) -> Any:
            return Verdict(solved=False, **extra)

    with pytest.raises(EnvironmentAuthorError, match="and violations as texts, got"):
        started(Odd).current_verdict()


def test_F13_reward_written_by_the_agent_is_ignored() -> None:
    class Writable(Counter):
        @tool
        def write(self, name: str, text: str) -> str:
            """Writes a file in the workspace."""
            (self.workspace / name).write_text(text)
            return "written"

        def verify(self, task: Task) -> bool:
            return False

    environment = started(Writable)
    for text in ("1.0", "nan", "1.5", "-0.5"):
        parameters = {"name": "reward.txt", "text": text}
        _, reward, terminated, *_ = environment.step(Action(tool_name="write", parameters=parameters))
        assert (reward, terminated) == (0.0, False)
    environment.close()


def test_numpy_bool_is_a_verdict() -> None:
    class Odd(Counter):
        def verify(self, task: Task) -> Any:
            return np.True_

    assert started(Odd).current_verdict() == Verdict(solved=True, progress=1.0)


def test_environment_without_verify_says_so() -> None:
    class Bare(Environment):
        pass

    with pytest.raises(EnvironmentAuthorError, match="Bare has no verify"):
        started(Bare).current_verdict()


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


# ---------------------------------------------------------------- Gymnasium


@pytest.fixture
def registered() -> Any:
    gymnasium.register("deedrl-test/Counter-v0", entry_point=Counter)
    yield "deedrl-test/Counter-v0"
    del gymnasium.registry["deedrl-test/Counter-v0"]


def test_gymnasiums_checker_passes_without_warnings(registered: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(registered).unwrapped)


def test_works_in_gymnasiums_wrappers(registered: str) -> None:
    class Shout(gymnasium.ObservationWrapper[str, Any, str]):
        def observation(self, observation: str) -> str:
            return observation.upper()

    environment = wrappers.RecordEpisodeStatistics(wrappers.TimeLimit(Shout(gymnasium.make(registered)), 2))
    observation, _ = environment.reset(seed=3, options={"task": THREE})
    assert observation == "COUNT TO 3"
    environment.step(add(1))
    *_, truncated, info = environment.step(add(1))
    assert truncated is True
    assert info["episode"]["l"] == 2
    environment.reset(options={"task": THREE})
    *_, info = environment.step(add(3))
    assert info["episode"]["r"] == 1.0


def test_order_enforcing_wrapper_refuses_a_step_before_reset(registered: str) -> None:
    environment = gymnasium.make(registered)
    with pytest.raises(gymnasium.error.ResetNeeded):
        environment.step(add(1))


def test_works_in_a_vector_environment(registered: str) -> None:
    vector = gymnasium.make_vec(registered, num_envs=2, vectorization_mode="sync")
    prompts, _ = vector.reset(seed=5)
    assert len(set(prompts)) == 2
    vector.close()


def test_copies_have_spaces_of_their_own() -> None:
    one, other = Counter(), Counter()
    one.action_space.seed(1)
    other.action_space.seed(1)
    one.action_space.sample()
    expected = Counter().action_space
    expected.seed(1)
    assert other.action_space.sample() == expected.sample()


# ---------------------------------------------------------------- generated tasks


def generating(give: Callable[[str], Any]) -> type[Environment]:
    class Odd(Counter):
        @classmethod
        def generate_tasks(cls, split: Split, count: int, seed: int) -> Any:
            return give(split)

    return Odd


@pytest.mark.parametrize(
    ("give", "message"),
    [
        (lambda split: 1 // 0, r"Odd.generate_tasks raised ZeroDivisionError: .*test_environment.py:\d+ in <lambda>"),
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
