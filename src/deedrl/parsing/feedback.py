"""The words a model reads when its completion was not an action: what was expected, what came, what to do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from deedrl.parsing.coercion import expected_types
from deedrl.types import ToolSchema

CUT_OFF = "The output was cut off before the action was complete, so nothing was run. Send a shorter, complete action."
_MAX_EXCERPT = 60
_MAX_NAMES = 50


def with_shape(message: str, tools: Sequence[ToolSchema], tool: ToolSchema | None = None) -> str:
    """Ends `message` with the shape of an action (that of `tool` where it is known) and the available tools."""
    return f"{message} Reply with one JSON object like {shape(tool)}. Available tools: {tool_names(tools)}."


def shape(tool: ToolSchema | None = None) -> str:
    """An action as the contract wants it, with types in place of values."""
    if tool is None:
        return '{"reasoning": "<why>", "tool_name": "<tool>", "parameters": {"<name>": <value>}}'
    properties = tool.parameters.get("properties", {})
    required = tool.parameters.get("required", ())
    members = []
    for name, schema in properties.items():
        types = expected_types(schema, tool.parameters)
        kind = " or ".join(sorted(types)) if types else "value"
        members.append(f"{json.dumps(name)}: <{kind}{'' if name in required else ', optional'}>")
    return f'{{"reasoning": "<why>", "tool_name": {json.dumps(tool.name)}, "parameters": {{{", ".join(members)}}}}}'


def tool_names(tools: Sequence[ToolSchema]) -> str:
    """Names of `tools` in their order, shortened when there are very many."""
    names = [tool.name for tool in tools]
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return (", ".join(names[:_MAX_NAMES]) + more) or "none"


def excerpt(value: Any) -> str:
    """`value` as JSON, shortened, safe to encode even if the model wrote lone surrogates."""
    if isinstance(value, str):
        value = value[: _MAX_EXCERPT + 1]
    text = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace").decode()
    return text if len(text) <= _MAX_EXCERPT else f"{text[:_MAX_EXCERPT]}…"


def type_name(value: Any) -> str:
    """JSON's name for the type of `value`."""
    if value is None:
        return "null"
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "number")
