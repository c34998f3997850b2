"""Incidents from seeds: a service graph with one or two faults, and an alert that names a symptom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from random import Random
from typing import Any

import msgspec

from deedrl.environments.dealing import DIFFICULTIES, deal_tasks
from deedrl.environments.suite.ops.demonstrations import shortest_steps
from deedrl.environments.suite.ops.goal import Goal
from deedrl.environments.suite.ops.graph import Service
from deedrl.environments.suite.ops.worlds import KNOWN, UNSEEN, World
from deedrl.types import Split, Task

_OUTCOMES: Mapping[str, tuple[str, ...]] = {
    "errors": ("leak", "bad_deploy", "config"),
    "slow": ("overload", "leak", "bad_deploy"),
    "crash": ("config", "bad_deploy", "leak"),
    "dependency": ("leak", "bad_deploy", "overload"),
    "recovered": ("false_alarm", "leak", "overload"),
    "busy": ("overload", "false_alarm", "bad_deploy"),
}
DETAIL = {"easy": "plain", "medium": "full", "hard": "bare"}
"""How much services and their files say, by difficulty; see `views`."""

OUTCOMES = {family: dict.fromkeys(DIFFICULTIES, outcomes) for family, outcomes in _OUTCOMES.items()}
"""Family → difficulty → causes. No family has one remedy: what the alert says never decides."""


def generate_tasks(
    split: Split,
    count: int,
    seed: int,
    families: Sequence[str] | None = None,
    difficulties: Sequence[str] | None = None,
) -> list[Task]:
    """`count` distinct incidents, balanced over families, difficulties and causes; see `deal_tasks`."""
    return deal_tasks("ops-room", OUTCOMES, _draw, split, count, seed, families, difficulties)


def _draw(family: str, level: str, outcome: str, split: Split, rng: Random) -> Task:
    story = _Story(rng, UNSEEN if split == "test_unseen" else KNOWN, level)
    alert, goal = story.tell(family, outcome)
    services = {name: story.services[name] for name in sorted(story.services)}
    task = Task.create(
        prompt=rng.choice(story.world.greetings) + alert,
        initial_state={"services": _plain(services), "detail": DETAIL[level]},
        goal_state=_plain(goal),
        difficulty=level,
        family=family,
        split=split,
    )
    return msgspec.structs.replace(task, shortest_steps=shortest_steps(task))


def _plain(value: Any) -> Any:
    """As a reader of JSON would get it: lists where there are tuples."""
    return msgspec.json.decode(msgspec.json.encode(value))


class _Story:
    """Draws a graph in the words of a world."""

    def __init__(self, rng: Random, world: World, level: str) -> None:
        self.rng, self.world, self.level = rng, world, level
        self.names = rng.sample(world.services, len(world.services))
        self.services: dict[str, Service] = {}

    def tell(self, family: str, outcome: str) -> tuple[str, Goal]:
        """The alert's text and the goal; fills `services`."""
        hops = 0 if family != "dependency" else 2 if self.level == "hard" else 1
        chain = [self._service() for _ in range(hops + 1)]
        for name, below in pairwise(chain):
            self.services[name].depends.append(below)
        roots = [] if outcome == "false_alarm" else [chain[-1]]
        for name in roots:
            self._break(name, outcome)
        causes = [outcome]
        self._surroundings(chain)
        if self.level == "hard" and family == "errors":
            second = self._service()
            self.services[chain[0]].depends.append(second)
            causes.append(self.rng.choice(["leak", "overload", "bad_deploy"]))
            self._break(second, causes[-1])
            roots.append(second)
        alert = self.rng.choice(self.world.alerts[family]).format(s=chain[0])
        return alert, Goal(alert=chain[0], roots=tuple(roots), causes=msgspec.convert(causes, Any))

    def _service(self) -> str:
        rng, name = self.rng, self.names.pop()
        major, minor, replicas, capacity = (
            rng.randint(1, 6),
            rng.randint(1, 8),
            rng.randint(2, 4),
            10 * rng.randint(5, 20),
        )
        config, bounds = {}, {}
        for key in rng.sample(self.world.settings, 1 if self.level == "easy" else 2):
            low = 10 * rng.randint(5, 40)
            bounds[key] = (low, 4 * low)
            config[key] = low * rng.randint(1, 3)
        self.services[name] = Service(
            depends=[],
            version=f"{major}.{minor}",
            previous=f"{major}.{minor - 1}",
            deployed=rng.choice(self.world.deployed),
            replicas=replicas,
            load=replicas * capacity - 10 * rng.randint(1, 4),
            capacity=capacity,
            config=config,
            bounds=bounds,
        )
        return name

    def _break(self, name: str, cause: str) -> None:
        """Makes `cause` hold for a service, and says so in its log as this difficulty does."""
        rng, service = self.rng, self.services[name]
        words: dict[str, Any] = {"service": name, "version": service.version, "previous": service.previous}
        if cause == "leak":
            service.leaking = True
        elif cause == "bad_deploy":
            service.bad_versions, service.deployed = [service.version], rng.choice(self.world.recent)
        elif cause == "overload":
            missing = 2 if self.level == "hard" else 1
            service.load = (service.replicas + missing) * service.capacity - 10 * rng.randint(1, 4)
        else:
            key = next(iter(service.config))
            low, high = service.bounds[key]
            if self.level == "hard":
                # The right value follows from the log: twice what is usual.
                service.bounds[key] = (low, low + low // 4)
            words |= {"key": key, "value": rng.choice([low // 10, high * 10]), "good": service.config[key]}
            if self.level == "hard":
                words["value"] = low // 10
            service.config[key] = words["value"]
        words["replicas"] = service.replicas
        service.complaints = {cause: rng.choice(self.world.complaints[self.level][cause]).format(**words)}

    def _surroundings(self, chain: Sequence[str]) -> None:
        """Healthy services around the chain; on hard the one that is alerted was deployed a moment ago, harmlessly."""
        for name in chain if self.level != "easy" else chain[-1:]:
            self.services[name].depends.append(self._service())
        for _ in range({"easy": 1, "medium": 2, "hard": 3}[self.level]):
            self.services[self._service()].depends.append(chain[0])
        if self.level == "hard":
            self.services[chain[0]].deployed = self.rng.choice(self.world.recent)
