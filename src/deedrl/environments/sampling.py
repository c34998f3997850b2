"""Calls made up from tool schemas, for checks that need something to do in any environment."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from deedrl.tools.toolbox import Toolbox
from deedrl.types import Action, ToolSchema

WRONG_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 10**30, float("nan"), "", " ", "%", "*", "'; --", "\x00", "\ud800", "Ünïcödé 中文 🦉",
    "x" * 5000, "../../etc/passwd", [], ["x"], {}, {"x": {}},
)  # fmt: skip
"""Values that a model may write where something else was asked for."""

EMPTY_QUERIES = ("", " ", "%", "*", "no-such-thing")
"""Texts that should find nothing, or nothing in particular."""


def random_actions(toolbox: Toolbox, count: int, stream: random.Random, known: Sequence[Any] = ()) -> list[Action]:
    """`count` calls of random tools with parameters of the right types; values are drawn from `known` too."""
    schemas = toolbox.schemas()
    return [random_action(stream.choice(schemas), stream, known) for _ in range(count)] if schemas else []


def random_action(schema: ToolSchema, stream: random.Random, known: Sequence[Any] = ()) -> Action:
    """One call of a tool with parameters of the right types; optional ones are left out half of the time."""
    required = schema.parameters.get("required", ())
    parameters = {
        name: random_value(entry, stream, known)
        for name, entry in schema.parameters.get("properties", {}).items()
        if name in required or stream.random() < 0.5
    }
    return Action(tool_name=schema.name, parameters=parameters)


def random_value(schema: Mapping[str, Any], stream: random.Random, known: Sequence[Any] = ()) -> Any:
    """A value that fits `schema`, as far as `schema` says what fits."""
    if "enum" in schema:
        return stream.choice(schema["enum"])
    if "const" in schema:
        return schema["const"]
    if "anyOf" in schema:
        return random_value(stream.choice(schema["anyOf"]), stream, known)
    low = int(schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1))
    high = int(schema.get("maximum", schema.get("exclusiveMaximum", low + 21) - 1))
    match schema.get("type"):
        case "integer":
            fitting = [value for value in known if type(value) is int and low <= value <= schema.get("maximum", value)]
            return stream.choice([*fitting, stream.randint(low, high)])
        case "number":
            return round(stream.uniform(low, high), 2)
        case "boolean":
            return stream.random() < 0.5
        case "array":
            return [random_value(schema.get("items", {}), stream, known) for _ in range(stream.randint(0, 2))]
        case "object":
            inside = schema.get("properties", {})
            return {name: random_value(inside[name], stream, known) for name in schema.get("required", inside)}
        case "null":
            return None
        case _:
            return stream.choice([*(value for value in known if isinstance(value, str)), "apple", "7", ""])


def wrong_actions(schema: ToolSchema, stream: random.Random) -> list[Action]:
    """Calls of one tool as a model gets them wrong: nothing, too much, and each wrong value in each parameter."""
    right = {key: random_value(entry, stream) for key, entry in schema.parameters.get("properties", {}).items()}
    calls: list[dict[str, Any]] = [{}, {**right, "no_such_parameter": 1}]
    calls += [{**right, key: value} for key in right for value in WRONG_VALUES]
    return [Action(tool_name=schema.name, parameters=parameters) for parameters in calls]


def empty_queries(schema: ToolSchema) -> list[Action]:
    """Calls that ask for nothing in particular: each of `EMPTY_QUERIES` in every text parameter, zero in numbers."""
    blank: dict[str | None, Any] = {"integer": 0, "number": 0, "boolean": False, "array": [], "object": {}}
    properties = schema.parameters.get("properties", {})
    calls = []
    for query in EMPTY_QUERIES:
        values = {key: entry.get("enum", [blank.get(entry.get("type"), query)])[0] for key, entry in properties.items()}
        calls.append(Action(tool_name=schema.name, parameters=values))
    return [Action(tool_name=schema.name), *calls]
