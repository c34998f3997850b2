"""The words a model reads when its completion was not an action: what was wrong, what to do.

About twenty tokens each, since a small model pays for them on every turn that follows. Tools and their parameters stand
in the system prompt and are not listed again; only the names are, for a name that resembles none.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from deedrl.errors import suggest
from deedrl.types import ToolSchema

SHAPE = '{"tool_name": "...", "parameters": {...}}'
CUT_OFF = f"The output was cut off; answer shorter, with {SHAPE}"
PLAIN_CUT_OFF = "The answer was cut off; answer shorter"
PLAIN_EMPTY = "The answer was empty; write it as plain text"
PLAIN_OPEN_REASONING = "The reasoning was never closed; close it, then write the answer"
_MAX_EXCERPT = 60
_MAX_NAMES = 12


def with_shape(problem: str) -> str:
    """`problem`, then the shape of an action: for completions in which there was none to be more precise about."""
    return f"{problem}; answer with {SHAPE}"


def unknown_tool(name: str, tools: Sequence[ToolSchema]) -> str:
    """Says that no tool is called `name`, and the nearest name; without one the names, if they are few."""
    names = [tool.name for tool in tools]
    near = suggest(name[:100], names)
    if "did you mean" in near:
        return f"There is no tool {excerpt(name)}{near}"
    if len(names) > _MAX_NAMES:
        return f"There is no tool {excerpt(name)}; use one of those listed at the start"
    return f"There is no tool {excerpt(name)}; there are: {', '.join(names) or 'none'}"


def excerpt(value: Any) -> str:
    """`value` as JSON, shortened, safe to encode even if the model wrote lone surrogates."""
    if isinstance(value, str):
        value = value[: _MAX_EXCERPT + 1]
    return shortened(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace").decode())


def shortened(text: str, limit: int = _MAX_EXCERPT) -> str:
    """The first `limit` characters of `text`, and a sign that there were more."""
    return text if len(text) <= limit else f"{text[:limit]}…"


def type_name(value: Any) -> str:
    """JSON's name for the type of `value`."""
    if value is None:
        return "null"
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "number")
