"""Several environments as one: tasks, prompts and verdicts are the parts' own."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import MappingProxyType

import gymnasium
import pytest

from deedrl.environments.checker import check_environment
from deedrl.environments.combined import Combined
from deedrl.environments.environment import Environment
from deedrl.environments.noise import Noise
from deedrl.environments.suite.support.environment import SupportDesk
from deedrl.errors import ConfigError, EnvironmentAuthorError, TaskError
from deedrl.pipeline.job import task_system_prompt
from deedrl.rewards.rubric import Rubric, default_rubric
from deedrl.rollouts.demonstration import demonstration_policy
from deedrl.rollouts.episode import EpisodeSpec
from deedrl.rollouts.prompting import PromptVariant
from deedrl.rollouts.runner import run_episodes
from deedrl.tasks.pool import TaskPool, check_disjoint
from deedrl.tools.tool import tool
from deedrl.types import Action, Split, Task


class Bell(Environment):
    """Rings."""

    instructions = "Ring."
    max_steps = 3

    def setup(self, task: Task) -> None:
        self.rung = False

    @tool(ends_episode=True)
    def ring(self) -> str:
        """Rings."""
        self.rung = True
        return "ding"

    def verify(self, task: Task) -> bool:
        return self.rung

    def demonstrate(self, task: Task) -> list[Action]:
        return [Action(tool_name="ring")]

    @classmethod
    def generate_tasks(cls, split: Split, count: int, seed: int) -> list[Task]:
        return [Task.create(f"Ring {split} {seed} {index}.", split=split) for index in range(count)]


class Both(Combined):
    parts = MappingProxyType({"support": SupportDesk, "bell": Bell})


def test_tasks_take_turns_and_say_their_part() -> None:
    tasks = Both.generate_tasks("train", 5, 0)
    assert [task.family.partition("/")[0] for task in tasks] == ["support", "bell", "support", "bell", "support"]
    assert [task.prompt for task in tasks[::2]] == [task.prompt for task in SupportDesk.generate_tasks("train", 3, 0)]


def test_families_name_parts_or_families_of_parts() -> None:
    tasks = Both.generate_tasks("train", 30, 0, families=["support/window", "support/status"])
    assert Counter(task.family for task in tasks) == {"support/window": 15, "support/status": 15}
    assert {task.family for task in Both.generate_tasks("train", 4, 0, families=["bell"])} == {"bell/default"}


@pytest.mark.parametrize("family", ["gong", "support/gong"])
def test_an_unknown_family_is_refused(family: str) -> None:
    with pytest.raises(TaskError, match="gong"):
        Both.generate_tasks("train", 4, 0, families=[family])


def test_difficulties_are_refused_by_a_part_that_has_none() -> None:
    with pytest.raises(ConfigError, match=r"Bell\.generate_tasks cannot choose tasks by difficulties"):
        Both.generate_tasks("train", 4, 0, difficulties=["easy"])


def test_splits_share_nothing() -> None:
    check_disjoint(*(TaskPool(Both.generate_tasks(split, 100, 0)) for split in ("train", "validation", "test")))


def test_an_episode_has_the_instructions_tools_and_limits_of_its_part() -> None:
    desk_task, bell_task = Both.generate_tasks("train", 2, 0)
    both = Both()
    both.reset(options={"task": bell_task})
    assert (both.instructions, both.max_steps, [*both.toolbox]) == ("Ring.", 3, ["ring"])
    both.reset(options={"task": desk_task})
    assert (both.instructions, both.max_steps) == (SupportDesk.instructions, SupportDesk.max_steps)
    assert "ring" not in both.toolbox
    assert both.task == desk_task
    both.close()


@pytest.mark.parametrize("index", [0, 1])
def test_the_prompt_for_supervised_learning_is_the_parts(index: int) -> None:
    task, part = Both.generate_tasks("train", 2, 0)[index], [SupportDesk, Bell][index]
    inner = part.generate_tasks("train", 1, 0)[0]
    played = task_system_prompt(Both, task, PromptVariant(), Noise())
    assert played == task_system_prompt(part, inner, PromptVariant(), Noise())


def test_demonstrations_play_through_the_runner() -> None:
    tasks = Both.generate_tasks("train", 12, 0)
    specs = [EpisodeSpec(task=task, episode_id=task.id, seed=0) for task in tasks]
    played = asyncio.run(
        run_episodes(
            specs,
            environment=Both,
            policy=demonstration_policy(specs, Both),
            rubric=default_rubric(),
            concurrency=3,
        )
    )
    assert [trajectory.solved for trajectory in played] == [True] * 12
    assert [trajectory.family for trajectory in played] == [task.family for task in tasks]


def test_it_keeps_the_contract() -> None:
    report = check_environment(Both, tasks=6)
    assert [result.name for result in report.results if result.ok is False] == []


def test_a_step_before_a_reset_says_so() -> None:
    with pytest.raises(gymnasium.error.ResetNeeded, match="call reset"):
        Both().step(Action(tool_name="ring"))


def test_a_task_of_no_part_is_refused() -> None:
    with pytest.raises(TaskError, match="expected a family that begins with one of support, bell"):
        Both().reset(options={"task": Task.create("Ring.")})


class JudgedBell(Bell):
    @classmethod
    def rubric(cls) -> Rubric:
        return default_rubric().reweighted({"format": 0.5})


class Uneven(Combined):
    parts = MappingProxyType({"support": SupportDesk, "bell": JudgedBell})


class Even(Combined):
    parts = MappingProxyType({"first": JudgedBell, "second": JudgedBell})


def test_parts_with_different_rubrics_need_one_of_the_combination() -> None:
    with pytest.raises(ConfigError, match="different rubrics"):
        Uneven.rubric()


def test_the_parts_common_rubric_is_the_combinations() -> None:
    assert Even.rubric() == JudgedBell.rubric()
    assert Both.rubric() is None


def test_a_combination_of_nothing_is_an_authors_error() -> None:
    with pytest.raises(EnvironmentAuthorError, match="expected environment classes by names"):

        class Empty(Combined):
            pass
