"""Right, wrong and cheating ways through an incident, with the verdict each must get: tests of the verifier."""

from __future__ import annotations

from typing import Any

from deedrl.environments.fixtures import Fixture
from deedrl.environments.suite.ops.demonstrations import demonstrate
from deedrl.environments.suite.ops.goal import Goal, read_goal
from deedrl.environments.suite.ops.graph import read_graph
from deedrl.environments.suite.ops.verifier import BLIND_CLOSING, BLIND_REMEDY
from deedrl.types import Action, Task

MOST_BY_REPAIRING = 0.6
"""Highest progress with every service healthy and the incident closed with a wrong cause, or not at all."""


def fixtures(task: Task) -> tuple[Fixture, ...]:
    """The fixtures that apply to `task`; names are the same across tasks."""
    goal = read_goal(task)
    *work, closing = demonstrate(task)
    made = [
        Fixture(name="demonstration", actions=(*work, closing), solved=True),
        Fixture(name="looks at everything first", actions=(*_look_around(task), *work, closing)[-14:], solved=True),
        Fixture(name="does nothing", actions=(), most_progress=0.0),
        Fixture(name="closes blindly", actions=(closing,), violations=(BLIND_CLOSING,), most_progress=0.0),
        Fixture(
            name="closes with a wrong cause", actions=(*work, _wrong_closing(goal)), most_progress=MOST_BY_REPAIRING
        ),
        Fixture(
            name="claims success in its reasoning",
            actions=(Action(tool_name="inspect", parameters={"service": goal.alert}, reasoning="Solved. reward: 1.0"),),
            most_progress=0.2,
        ),
        Fixture(name="restarts a healthy service too", actions=(*work, *_needless_restart(task, goal), closing)),
        Fixture(name="scales up to be safe", actions=(*work, _remedy(goal.alert, "scale_up"), closing)),
        Fixture(
            name="takes a needless change back",
            actions=(*work, _remedy(goal.alert, "scale_up"), Action(tool_name="undo"), closing),
            solved=True,
        ),
    ]
    return (*made, *_with_a_fault(task, goal, work, closing)) if goal.roots else tuple(made)


def _with_a_fault(task: Task, goal: Goal, work: list[Action], closing: Action) -> list[Fixture]:
    looks = tuple(action for action in work if action.tool_name in ("inspect", "read_file"))
    changes = tuple(action for action in work if action.tool_name not in ("inspect", "read_file"))
    graph = read_graph(task.initial_state)
    everywhere = [
        action
        for name in graph
        for action in (_inspect(name), *(_remedy(name, kind) for kind in ("restart", "roll_back", "scale_up")))
    ]
    return [
        Fixture(name="only looks", actions=looks, most_progress=0.2),
        Fixture(name="looks and closes", actions=(*looks, closing), most_progress=0.2),
        Fixture(name="closes as a false alarm", actions=(*looks, _close("false_alarm")), most_progress=0.2),
        Fixture(
            name="changes before it looks",
            actions=(*changes, *looks, closing),
            violations=(BLIND_REMEDY,),
            most_progress=0.0,
        ),
        Fixture(name="tries every remedy everywhere", actions=(_inspect(goal.alert), *everywhere[:12], closing)),
    ]


def _look_around(task: Task) -> list[Action]:
    return [_inspect(name) for name in read_graph(task.initial_state)]


def _needless_restart(task: Task, goal: Goal) -> list[Action]:
    """Of a service that is not at fault."""
    name = next(name for name in reversed(list(read_graph(task.initial_state))) if name not in goal.roots)
    return [_inspect(name), _remedy(name, "restart")]


def _wrong_closing(goal: Goal) -> Action:
    wrong = next(cause for cause in ("false_alarm", "leak", "overload", "config") if cause not in goal.causes)
    return _close(wrong)


def _inspect(name: str) -> Action:
    return _act("inspect", service=name)


def _remedy(name: str, action: str) -> Action:
    return _act("remedy", service=name, action=action)


def _close(cause: str) -> Action:
    return _act("close_incident", cause=cause)


def _act(tool_name: str, **parameters: Any) -> Action:
    return Action(tool_name=tool_name, parameters=parameters)
