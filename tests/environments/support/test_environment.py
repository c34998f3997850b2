"""The desk as an environment among others."""

from __future__ import annotations

import gymnasium
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit

import deedrl
from deedrl.environments.checker import check_environment
from deedrl.environments.suite.support.environment import SupportDesk
from deedrl.types import Task

ID = "deedrl/SupportDesk-v0"


def test_all_checks_of_check_env_pass() -> None:
    report = check_environment(SupportDesk, tasks=21)
    assert [result for result in report.results if result.ok is not True] == []


def test_it_is_made_by_its_gymnasium_id_and_wrapped() -> None:
    assert deedrl.__version__
    environment = RecordEpisodeStatistics(TimeLimit(gymnasium.make(ID), max_episode_steps=1))
    observation, info = environment.reset(seed=3)
    assert observation
    assert info["task_id"]
    *_, truncated, info = environment.step({"tool_name": "search_order", "parameters": {"query": "x"}})
    assert truncated
    assert info["episode"]["l"] == 1
    environment.close()


def test_task_may_forbid_tools(desk: SupportDesk, scarf: Task) -> None:
    fields = {key: getattr(scarf, key) for key in scarf.__struct_fields__ if key not in ("id", "tools")}
    desk.reset(options={"task": Task.create(**fields, tools=("search_order", "issue_refund"))})
    assert list(desk.toolbox) == ["search_order", "issue_refund"]
    observation, *_, info = desk.step({"tool_name": "escalate", "parameters": {}})
    assert ("escalate" in observation, info["ok"]) == (True, False)


def test_which_tools_read_and_which_end() -> None:
    reading = [name for name, entry in SupportDesk.tools.items() if entry.read_only]
    ending = [name for name, entry in SupportDesk.tools.items() if entry.ends_episode]
    assert reading == ["search_order", "get_policy"]
    assert ending == ["issue_refund", "deny_refund", "escalate", "reply_customer"]
