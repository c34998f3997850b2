"""An ordered, read-only mapping from names to tools."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from deedrl.errors import EnvironmentAuthorError, ToolError, suggest
from deedrl.tools.tool import Tool
from deedrl.types import ToolSchema


class Toolbox(Mapping[str, Tool]):
    """Tools by name, in the order given; two tools of one name raise `EnvironmentAuthorError`."""

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        for entry in tools:
            if entry.name in self._tools:
                raise EnvironmentAuthorError(f"two tools are called '{entry.name}'; give one another name")
            self._tools[entry.name] = entry

    def __getitem__(self, name: str) -> Tool:
        return self._tools[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tools)

    def __len__(self) -> int:
        return len(self._tools)

    def __repr__(self) -> str:
        return f"Toolbox({', '.join(self)})"

    def find(self, name: str) -> Tool:
        """The tool called `name`; `ToolError` with the nearest name, in words for the model, if there is none."""
        if name not in self._tools:
            raise ToolError(f"there is no tool '{name}'{suggest(name, self)}")
        return self._tools[name]

    def schemas(self) -> tuple[ToolSchema, ...]:
        """What a model is told, in order."""
        return tuple(entry.schema for entry in self._tools.values())

    def restricted(self, names: Iterable[str]) -> Toolbox:
        """Only the tools in `names`, in this toolbox's order; no names at all means every tool."""
        wanted = set(names)
        for name in sorted(wanted - self._tools.keys()):
            raise EnvironmentAuthorError(f"a task allows the tool '{name}', which does not exist{suggest(name, self)}")
        return Toolbox(entry for entry in self._tools.values() if not wanted or entry.name in wanted)

    def bind(self, instance: object) -> Toolbox:
        """The same tools bound to `instance`."""
        return Toolbox(entry.bind(instance) for entry in self._tools.values())

    def versions(self) -> dict[str, str]:
        """Version of each tool, for a trajectory's provenance."""
        return {name: entry.version for name, entry in self._tools.items()}
