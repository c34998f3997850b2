"""The shortest right way through an incident, with the reasons in a few words."""

from __future__ import annotations

from collections.abc import Iterator

from deedrl.environments.suite.ops import views
from deedrl.environments.suite.ops.goal import read_goal
from deedrl.environments.suite.ops.graph import Cause, Graph, error_percent, read_graph
from deedrl.types import Action, Task

_ACTIONS = {"leak": "restart", "bad_deploy": "roll_back", "overload": "scale_up"}
_ACTION_WORDS = {"leak": "Restart", "bad_deploy": "Roll back", "overload": "Scale up"}


def demonstrate(task: Task) -> list[Action]:
    """Looks along the failing dependencies to the fault, remedies it and closes the incident.

    Reasons quote what decides as the service wrote it, so that each detail is copied from what stands before it.
    """
    goal, graph, detail = read_goal(task), read_graph(task.initial_state), task.initial_state["detail"]
    actions = [_inspect(goal.alert, f"The alert is about {goal.alert}.")]
    if not goal.roots:
        return [*actions, _close("false_alarm", "Log: fine. Nothing is wrong.")]
    for root in goal.roots:
        path = _path(graph, goal.alert, root)
        for below in path[1:]:
            reason = f"{below} has errors {error_percent(graph, below)}%." if detail == "plain" else f"Look at {below}."
            actions.append(_inspect(below, reason))
        actions += _remedies(graph, root, detail)
    return [*actions, _close(goal.causes[0], f"All services are healthy. It was {goal.causes[0]}.")]


def shortest_steps(task: Task) -> int:
    """Number of actions in the demonstration."""
    return len(demonstrate(task))


def _path(graph: Graph, start: str, end: str) -> list[str]:
    """Services from one to another along dependencies, both included."""
    if start == end:
        return [start]
    for other in graph[start].depends:
        rest = _path(graph, other, end)
        if rest:
            return [start, *rest]
    return []


def _remedies(graph: Graph, name: str, detail: str) -> Iterator[Action]:
    service = graph[name]
    cause: Cause = next(iter(service.causes()))
    log = views.last_complaint(service) or ""
    if cause == "config":
        yield from _config_remedy(graph, name, detail, log)
        return
    for _ in range(service.needed_replicas - service.replicas if cause == "overload" else 1):
        yield Action(
            tool_name="remedy",
            parameters={"service": name, "action": _ACTIONS[cause]},
            reasoning=f"Log: {log}. {_ACTION_WORDS[cause]}.",
        )


def _config_remedy(graph: Graph, name: str, detail: str, log: str) -> Iterator[Action]:
    service = graph[name]
    [key] = service.invalid
    low, high = service.bounds[key]
    if (told := _good_value(log, low, high)) is not None and detail == "plain":
        value, reason = told, f"Log: {log}."
    elif detail != "bare":
        yield _read(f"{name}.conf", f"Log: {log}.")
        value, reason = low, f"{key} must be {low} to {high}."
    else:
        yield _read(f"{name}.conf", f"Log: {log}.")
        yield _read(f"{name}.log", f"{key} is {service.config[key]}. What is needed?")
        usual = views.usual_need(service, key)
        value, reason = 2 * usual, f"Twice the usual need of {usual} is {2 * usual}."
    parameters = {"service": name, "key": key, "value": value}
    yield Action(tool_name="set_config", parameters=parameters, reasoning=reason)


def _good_value(log: str, low: int, high: int) -> int | None:
    """The valid value that the log names, if it does."""
    numbers = [int(word) for word in log.replace(",", " ").split() if word.isdigit()]
    return next((number for number in numbers if low <= number <= high), None)


def _inspect(name: str, reasoning: str) -> Action:
    return Action(tool_name="inspect", parameters={"service": name}, reasoning=reasoning)


def _read(path: str, reasoning: str) -> Action:
    return Action(tool_name="read_file", parameters={"path": path}, reasoning=reasoning)


def _close(cause: str, reasoning: str) -> Action:
    return Action(tool_name="close_incident", parameters={"cause": cause}, reasoning=reasoning)
