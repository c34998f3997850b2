"""The simulated service graph: what is wrong with each service, what it shows, and what remedies change."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

Cause = Literal["leak", "bad_deploy", "overload", "config", "false_alarm"]
RemedyAction = Literal["restart", "roll_back", "scale_up"]


class Service(msgspec.Struct, kw_only=True):
    """One service as it runs now. What is wrong with it is never shown as such, only its effects."""

    depends: list[str]
    version: str
    previous: str
    """Where a roll-back leads."""
    deployed: str
    """When the running version was deployed, in words."""
    replicas: int
    load: int
    """Requests a second."""
    capacity: int
    """Requests a second that one replica can serve."""
    config: dict[str, int]
    bounds: dict[str, tuple[int, int]]
    """Lowest and highest valid value of each setting."""
    bad_versions: list[str] = []
    leaking: bool = False
    restarts: int = 0
    complaints: dict[str, str] = {}
    """What the service writes into its log while a cause holds, by cause."""

    @property
    def needed_replicas(self) -> int:
        return math.ceil(self.load / self.capacity)

    @property
    def invalid(self) -> list[str]:
        """Settings out of their bounds."""
        return [key for key, value in self.config.items() if not self.bounds[key][0] <= value <= self.bounds[key][1]]

    def causes(self) -> Iterator[Cause]:
        """What is wrong with this service itself."""
        if self.leaking:
            yield "leak"
        if self.version in self.bad_versions:
            yield "bad_deploy"
        if self.replicas < self.needed_replicas:
            yield "overload"
        if self.invalid:
            yield "config"


Graph = dict[str, Service]

_OWN_ERRORS: Mapping[Cause, int] = {"leak": 31, "bad_deploy": 42, "overload": 23, "config": 55}
"""Share of requests that fail while a cause holds, in percent."""


def read_graph(state: Mapping[str, object]) -> Graph:
    """The services of a task's ``initial_state``."""
    return msgspec.convert(state["services"], Graph)


def error_percent(graph: Graph, name: str) -> int:
    """Requests to a service that fail: of its own causes the worst, and half of what its dependencies fail."""
    service = graph[name]
    own = max((_OWN_ERRORS[cause] for cause in service.causes()), default=0)
    passed_on = max((error_percent(graph, other) // 2 for other in service.depends), default=0)
    return min(99, own + passed_on)


def healthy(graph: Graph) -> bool:
    return not any(any(service.causes()) for service in graph.values())


def repaired(service: Service) -> Service:
    """The service as it should be in the end, given how it was at the start; its settings aside."""
    return msgspec.structs.replace(
        service,
        version=service.previous if service.version in service.bad_versions else service.version,
        previous=service.version if service.version in service.bad_versions else service.previous,
        replicas=max(service.replicas, service.needed_replicas),
        leaking=False,
        restarts=int(service.leaking),
    )


def as_asked(before: Service, now: Service) -> bool:
    """Whether a service is repaired and otherwise as it was: no needless restart, replica, roll-back or setting."""
    wanted = repaired(before)
    settings = all(
        before.bounds[key][0] <= value <= before.bounds[key][1]
        if key in before.invalid
        else value == before.config[key]
        for key, value in now.config.items()
    )
    return settings and msgspec.structs.replace(now, config={}) == msgspec.structs.replace(wanted, config={})
