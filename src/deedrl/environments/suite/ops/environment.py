"""The ops room as an environment: six tools over a simulated service graph with its files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import ClassVar

import msgspec

from deedrl.environments.environment import Environment
from deedrl.environments.fixtures import Fixture
from deedrl.environments.suite.ops import generator, views
from deedrl.environments.suite.ops.demonstrations import demonstrate
from deedrl.environments.suite.ops.fixtures import fixtures
from deedrl.environments.suite.ops.goal import read_goal
from deedrl.environments.suite.ops.graph import Cause, Graph, RemedyAction, Service, read_graph
from deedrl.environments.suite.ops.verifier import Entry, judge
from deedrl.errors import ToolError, suggest
from deedrl.tools.tool import tool
from deedrl.types import Action, Split, Task, Verdict


class OpsRoom(Environment):
    """On call: the prompt is an alert, an episode ends when the incident is closed.

    Remedies change the simulated services, wrong ones too: a needless restart drops requests and cannot be taken back,
    all other changes can. Log and configuration files are written into the workspace when one is first asked for.
    """

    instructions = (
        "You are on call. Inspect the service of the alert; if a service it depends on has errors, inspect that one. "
        "Remedy the service at fault, and nothing else: restart for a memory leak, roll_back for a bad version, "
        "scale_up for too many requests, set_config for a wrong value. Then close the incident with its cause: leak, "
        "bad_deploy, overload or config; false_alarm if nothing is wrong."
    )
    max_steps: ClassVar[int] = 14
    blocking: ClassVar[bool] = False
    graph: Graph
    log: list[Entry]
    closed_as: Cause | None
    earlier: list[tuple[str, Service]]
    written: bool

    def setup(self, task: Task) -> None:
        self.graph = read_graph(task.initial_state)
        self.log, self.closed_as, self.earlier, self.written = [], None, [], False

    def verify(self, task: Task) -> Verdict:
        return judge(read_graph(task.initial_state), self.graph, read_goal(task), self.log, self.closed_as)

    def demonstrate(self, task: Task) -> Sequence[Action]:
        return demonstrate(task)

    def state_hash(self) -> str:
        """Hash over the services and how the incident was closed: looking leaves it as it was."""
        return hashlib.sha256(msgspec.json.encode([self.graph, self.closed_as])).hexdigest()[:16]

    @classmethod
    def fixtures(cls, task: Task) -> Sequence[Fixture]:
        return fixtures(task)

    @classmethod
    def gold_strings(cls, task: Task) -> list[str]:
        """The services at fault where the alert names another: an agent finds them by looking, and nowhere else."""
        return [name for name in read_goal(task).roots if name not in task.prompt]

    @classmethod
    def generate_tasks(
        cls,
        split: Split,
        count: int,
        seed: int,
        families: Sequence[str] | None = None,
        difficulties: Sequence[str] | None = None,
    ) -> list[Task]:
        """`count` incidents, balanced over families and difficulties (all, or those named); see `generator`."""
        return generator.generate_tasks(split, count, seed, families, difficulties)

    # ------------------------------------------------------------ looking

    @tool(read_only=True)
    def inspect(self, service: str) -> str:
        """Shows a service's figures, its last log line and what it depends on."""
        name = self._known(service)
        self.log.append(Entry(kind="look", service=name))
        return views.describe(self.graph, name, self._detail)

    @tool(read_only=True)
    def read_file(self, path: str) -> str:
        """Shows a file: SERVICE.log or SERVICE.conf."""
        name, _, kind = path.strip().rpartition(".")
        if kind not in ("log", "conf") or name not in self.graph:
            raise ToolError(f"there is no file '{path[:60]}'; expected a service's name with .log or .conf")
        if not self.written:
            self._write_files()
        return (self.workspace / f"{name}.{kind}").read_text(encoding="utf-8").rstrip()

    # ------------------------------------------------------------ changing

    @tool
    def remedy(self, service: str, action: RemedyAction) -> str:
        """Changes how a service runs."""
        self._open()
        name = self._known(service)
        now = self.graph[name]
        if action == "restart":
            self.log.append(Entry(kind="change", service=name))
            wasted = not now.leaking
            self.graph[name] = msgspec.structs.replace(now, leaking=False, restarts=now.restarts + 1)
            return views.after(self.graph, name, "restarted, requests were dropped" if wasted else "restarted")
        if action == "roll_back":
            swapped = msgspec.structs.replace(now, version=now.previous, previous=now.version)
            return self._change(name, swapped, f"rolled back to {now.previous}")
        grown = msgspec.structs.replace(now, replicas=now.replicas + 1)
        return self._change(name, grown, f"scaled up to {grown.replicas} replicas")

    @tool
    def set_config(self, service: str, key: str, value: int) -> str:
        """Writes a setting into a service's configuration file and reloads it."""
        self._open()
        name = self._known(service)
        now = self.graph[name]
        if key not in now.config:
            raise ToolError(
                f"{name} has no setting '{key[:60]}'{suggest(key, now.config)}; it has {', '.join(now.config)}"
            )
        changed = msgspec.structs.replace(now, config={**now.config, key: value})
        told = self._change(name, changed, f"reloaded with {key} {value}")
        return f"{key} {value} is still wrong. {told}" if key in changed.invalid else told

    @tool
    def undo(self) -> str:
        """Takes back the last change; a restart cannot be taken back."""
        self._open()
        if not self.earlier:
            raise ToolError("there is no change that could be taken back")
        name, service = self.earlier.pop()
        self.graph[name] = msgspec.structs.replace(
            service, restarts=self.graph[name].restarts, leaking=self.graph[name].leaking
        )
        self._refresh_files()
        return views.after(self.graph, name, "is as it was before the last change")

    @tool(ends_episode=True)
    def close_incident(self, cause: Cause) -> str:
        """Closes the incident."""
        self._open()
        self.closed_as = cause
        self.log.append(Entry(kind="close"))
        return f"Incident closed: {cause}."

    # ------------------------------------------------------------ inside

    @property
    def _detail(self) -> str:
        return str(self.task.initial_state["detail"])

    def _open(self) -> None:
        if self.closed_as is not None:
            raise ToolError("the incident is closed; nothing can be changed any more")

    def _known(self, service: str) -> str:
        name = service.strip()
        if name not in self.graph:
            # Near names are not suggested: which services there are is to be found out.
            raise ToolError(f"there is no service '{name[:60]}'; copy the name from the alert or from an answer")
        return name

    def _change(self, name: str, changed: Service, done: str) -> str:
        self.log.append(Entry(kind="change", service=name))
        self.earlier.append((name, self.graph[name]))
        self.graph[name] = changed
        self._refresh_files()
        return views.after(self.graph, name, done)

    def _refresh_files(self) -> None:
        if self.written:
            self._write_files()

    def _write_files(self) -> None:
        """Files of all services: listing the folder tells nothing."""
        texts: dict[str, Callable[[str], str]] = {
            "conf": lambda name: views.config_text(self.graph[name], self._detail),
            "log": lambda name: views.log_text(self.graph, name),
        }
        for name in self.graph:
            for kind, text in texts.items():
                (self.workspace / f"{name}.{kind}").write_text(text(name), encoding="utf-8")
        self.written = True
