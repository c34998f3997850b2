"""Typed callables that a model may call. The signature is the schema, the docstring is the manual."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MethodType
from typing import Any, overload

import msgspec

from deedrl.errors import EnvironmentAuthorError, ToolError, suggest
from deedrl.tools.limits import run_coroutine
from deedrl.tools.schema import build_schema, takes_self
from deedrl.tools.text import LONE_SURROGATE, MAX_OUTPUT_CHARS, cut, to_text
from deedrl.types import ToolSchema

__all__ = ["MAX_OUTPUT_CHARS", "Tool", "ToolCrash", "ToolError", "to_text", "tool"]


class ToolCrash(EnvironmentAuthorError):
    """A tool raised something other than `ToolError`: the author's bug, so it never becomes an observation."""

    def __init__(self, tool_name: str, original: BaseException, parameters: Mapping[str, Any] | None = None) -> None:
        self.tool_name = tool_name
        self.original = original
        self.parameters = dict(parameters or {})
        super().__init__(
            f"tool '{tool_name}' called with {cut(repr(self.parameters), 500)} raised "
            f"{type(original).__name__}: {original}; expected a result, or ToolError if the model was wrong"
        )


@dataclass(frozen=True, eq=False)
class Tool:
    """A callable with its schema. As a class attribute it behaves like a method: ``env.look(3)`` calls it directly."""

    name: str
    schema: ToolSchema
    function: Callable[..., Any]
    timeout_s: float = 10.0
    """Limit of one call; whoever runs the call keeps it (the runner, `ProcessEnvironment`)."""
    ends_episode: bool = False
    """True: a call that succeeds ends the episode."""
    read_only: bool = False
    """True: the author promises that a call changes no state."""
    version: str = "1"
    replayable: bool = True
    """False: the author says that results depend on more than the state, the parameters and the episode's seed."""
    types: Mapping[str, Any] = field(default_factory=dict)
    """Python type of each parameter."""

    def __get__(self, instance: object, owner: type | None = None) -> Tool:
        return self if instance is None else self.bind(instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def bind(self, instance: object) -> Tool:
        """This tool with `instance` as its ``self``; a tool made of a plain function is returned unchanged."""
        return replace(self, function=MethodType(self.function, instance)) if self._wants_self else self

    @cached_property
    def _wants_self(self) -> bool:
        """Kept, since it is asked of every tool at every reset and reading a signature is slow."""
        return not isinstance(self.function, MethodType) and takes_self(self.function)

    def call(self, parameters: Mapping[str, Any]) -> str:
        """Runs the tool and returns its result as text (see `to_text`).

        Raises `ToolError` with words for the model if a parameter is missing, unknown or of the wrong type, or if
        the tool itself refuses; `ToolCrash` if the tool raises anything else.
        """
        arguments = self.arguments(parameters)
        try:
            if inspect.iscoroutinefunction(self.function):
                return to_text(run_coroutine(self.function(**arguments), self.timeout_s, f"tool '{self.name}'"))
            return to_text(self.function(**arguments))
        except ToolError:
            raise
        except Exception as error:
            raise ToolCrash(self.name, error, parameters) from error

    def arguments(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """`parameters` as the Python values the function expects; all that is wrong comes in one `ToolError`."""
        known = self.schema.parameters.get("properties", {})
        problems = [f"unknown parameter '{key}'{suggest(key, known)}" for key in parameters if key not in known]
        missing = [key for key in self.schema.parameters.get("required", ()) if key not in parameters]
        problems += [f"missing parameter '{key}' ({_type_name(known[key])})" for key in missing]
        arguments: dict[str, Any] = {}
        for key, value in parameters.items():
            if key not in known:
                continue
            if unusable := _unusable(value):
                problems.append(f"parameter '{key}' {unusable}")
                continue
            try:
                arguments[key] = msgspec.convert(value, self.types[key], str_keys=True)
            except msgspec.ValidationError as error:
                problems.append(f"parameter '{key}' must be {_type_name(known[key])}: {error}")
        if problems:
            raise ToolError(f"{self.name}: {'; '.join(problems)}")
        return arguments


def _only_text(name: str, types: Mapping[str, Any]) -> str:
    """The one parameter of a tool with these types, if it is a string; else `EnvironmentAuthorError`."""
    if list(types.values()) != [str]:
        found = ", ".join(f"{key}: {getattr(kind, '__name__', kind)}" for key, kind in types.items()) or "none"
        raise EnvironmentAuthorError(
            f"tool '{name}': with plain_text=True expected one parameter, of type str, which takes what the model "
            f"writes; got {found}"
        )
    return next(iter(types))


def _unusable(value: Any) -> str | None:
    """What in `value` is legal for a JSON reader and breaks databases, files and arithmetic; None if nothing."""
    if isinstance(value, str):
        return "holds half of a surrogate pair, which is not text" if LONE_SURROGATE.search(value) else None
    if isinstance(value, float):
        return None if math.isfinite(value) else "must be a finite number"
    if isinstance(value, int):
        return None if -(2**63) <= value < 2**63 else "must be a number of at most 64 bits"
    inside = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((reason for reason in map(_unusable, inside) if reason), None)


def _type_name(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return "one of " + ", ".join(map(repr, schema["enum"]))
    if "anyOf" in schema:
        return " or ".join(_type_name(option) for option in schema["anyOf"])
    kind = str(schema.get("type", "a value"))
    return f"array of {_type_name(schema['items'])}" if kind == "array" and "items" in schema else kind


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    timeout_s: float = 10.0,
    ends_episode: bool = False,
    read_only: bool = False,
    plain_text: bool = False,
    version: str = "1",
    replayable: bool = True,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    timeout_s: float = 10.0,
    ends_episode: bool = False,
    read_only: bool = False,
    plain_text: bool = False,
    version: str = "1",
    replayable: bool = True,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Marks a method or function as a tool; its type hints and docstring become the schema.

    `name` defaults to the function's. A type hint that is missing or has no JSON form raises
    `EnvironmentAuthorError` here, at the definition. ``async def`` works: the call runs to its end or its limit.
    `plain_text`: a completion is no JSON but the text of this tool's one parameter, a string; an environment that has
    such a tool has no other. `replayable`: False for what reads a clock, the network or else something that a
    replay will not find as it was; see docs/replay.md.
    """
    if timeout_s <= 0:
        raise EnvironmentAuthorError(f"tool '{name}': expected timeout_s above 0, got {timeout_s}")

    def decorate(target: Callable[..., Any]) -> Tool:
        if not inspect.isfunction(target):
            raise EnvironmentAuthorError(
                f"@tool expected a function or method, got {target!r}; put @tool above a plain 'def'"
            )
        title = name or target.__name__
        schema, types = build_schema(title, target)
        if plain_text:
            schema = msgspec.structs.replace(schema, plain_text=_only_text(title, types))
        return Tool(title, schema, target, timeout_s, ends_episode, read_only, version, replayable, types)

    return decorate if function is None else decorate(function)
