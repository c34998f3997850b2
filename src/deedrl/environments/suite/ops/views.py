"""What an agent is shown of a graph: on easy the essentials, later every figure, and less help with each level."""

from __future__ import annotations

from deedrl.environments.suite.ops.graph import Graph, Service, error_percent, healthy

LOG_LINES = 4


def describe(graph: Graph, name: str, detail: str) -> str:
    """One service's figures, the last line of its log, and what it depends on."""
    service, errors = graph[name], error_percent(graph, name)
    log = last_complaint(service) or (f"calls to {failing(graph, name)} fail" if errors else "fine")
    if detail == "plain":
        return f"{name}: errors {errors}%. Log: {log}. Depends on {_dependencies(graph, name, states=True)}."
    memory = 97 if service.leaking else 30 + service.capacity % 30
    return (
        f"{name}: errors {errors}%, memory {memory}%, load {service.load}/s, {service.replicas} replicas of "
        f"{service.capacity}/s, version {service.version} deployed {service.deployed}. Log: {log}. "
        f"Depends on {_dependencies(graph, name, states=False)}."
    )


def after(graph: Graph, name: str, done: str) -> str:
    """What a remedy has changed, as an operator would see it a moment later."""
    if healthy(graph):
        return f"{name} {done}. All services are healthy."
    return f"{name} {done}. Errors of {name}: {error_percent(graph, name)}%. Not all services are healthy."


def last_complaint(service: Service) -> str | None:
    """The log line of what is wrong with the service now."""
    return next((service.complaints[cause] for cause in service.causes() if cause in service.complaints), None)


def failing(graph: Graph, name: str) -> str:
    """The dependency that fails most."""
    return max(graph[name].depends, key=lambda other: error_percent(graph, other), default="a dependency")


def config_text(service: Service, detail: str) -> str:
    """The service's configuration file; the valid range stands in it except on hard."""
    lines = []
    for key, value in service.config.items():
        low, high = service.bounds[key]
        lines.append(f"{key} = {value}" + ("" if detail == "bare" else f"  # {low} to {high}"))
    return "\n".join(lines) + "\n"


def log_text(graph: Graph, name: str) -> str:
    """The service's log file, oldest line first."""
    service = graph[name]
    lines = [f"started version {service.version} with {service.replicas} replicas"]
    lines += [f"calls {other}" for other in service.depends]
    lines += [
        f"{key}: usual need {usual_need(service, key)}, stopped at {service.config[key]}; rule: twice the usual need"
        for key in service.invalid
    ]
    if (complaint := last_complaint(service)) is not None:
        lines.append(complaint)
    return "\n".join(lines[-LOG_LINES:]) + "\n"


def usual_need(service: Service, key: str) -> int:
    """Half of a valid value."""
    return -(-service.bounds[key][0] * 55 // 100)


def _dependencies(graph: Graph, name: str, states: bool) -> str:
    shown = []
    for other in graph[name].depends:
        errors = error_percent(graph, other)
        state = f" (errors {errors}%)" if errors else " (ok)"
        shown.append(other + (state if states else ""))
    return ", ".join(shown) or "nothing"
