"""From a decoded object to a call of a known tool: key names, tool name, parameters."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from deedrl.parsing.feedback import excerpt, type_name, unknown_tool
from deedrl.parsing.reader import plain, read_all
from deedrl.parsing.scan import PARAMETER_ALIASES, REASONING_ALIASES, TOOL_ALIASES
from deedrl.parsing.schema_check import fit_parameters
from deedrl.parsing.strict_json import Malformed, decode_strict
from deedrl.types import Record, ToolSchema

_NAMESPACE = re.compile(r"[./:]+|__")
_ACTION_KEYS = frozenset({"tool_name", "parameters", "reasoning"})
_MISSING = object()


class Call(Record, frozen=True):
    """A call that may run."""

    tool_name: str
    parameters: dict[str, Any]
    reasoning: str
    repairs: tuple[str, ...]


class Refusal(Exception):
    """Why an object is not a call, in words for the model; `tool_name` is the known tool it names, if it does."""

    tool_name: str | None = None


def is_attempt(value: dict[str, Any], tools: Sequence[ToolSchema]) -> bool:
    """Whether an object was meant as an action: it names a tool, or looks like a call by its alias keys."""
    if "tool_name" in value:
        return True
    names = [value[key] for key in TOOL_ALIASES if key in value]
    if not names:
        return False
    has_parameters = any(key in value for key in ("parameters", *PARAMETER_ALIASES))
    return has_parameters or any(isinstance(name, str) and find_tool(name, tools) for name in names)


def resolve_call(value: dict[str, Any], tools: Sequence[ToolSchema]) -> Call:
    """Makes a call of `value`; raises `Refusal` when it names no tool or its parameters do not fit."""
    repairs: dict[str, None] = {}
    name = _member(value, "tool_name", TOOL_ALIASES, repairs)
    if not isinstance(name, str):
        raise Refusal(f'"tool_name" must be a string, got {_came(name)}')
    tool = find_tool(name, tools)
    if tool is None:
        raise Refusal(unknown_tool(name, tools))
    if tool.name != name:
        same_but_case = tool.name.casefold() == name.strip().casefold()
        repairs["tool_name_case" if same_but_case else "tool_name_prefix"] = None
    try:
        return _fitted_call(value, tool, repairs)
    except Refusal as refusal:
        refusal.tool_name = tool.name
        raise


def _fitted_call(value: dict[str, Any], tool: ToolSchema, repairs: dict[str, None]) -> Call:
    """The call of `tool` that `value` means; raises `Refusal` when its parameters do not fit."""
    sent = _member(value, "parameters", PARAMETER_ALIASES, repairs)
    parameters = _parameters_object(sent, repairs)
    outside = misplaced(value, parameters, tool)
    if outside:
        names = ", ".join(excerpt(name) for name in outside[:5])
        raise Refusal(f'{tool.name}: {names} must stand inside "parameters"')
    fit = fit_parameters(parameters, tool)
    if fit.problem is not None:
        raise Refusal(f"{tool.name}: {fit.problem}")
    repairs.update(dict.fromkeys(fit.repairs))
    reasoning = _reasoning(_member(value, "reasoning", REASONING_ALIASES, repairs), repairs)
    return Call(tool_name=tool.name, parameters=fit.parameters, reasoning=reasoning, repairs=tuple(repairs))


def misplaced(value: dict[str, Any], parameters: dict[str, Any], tool: ToolSchema) -> list[str]:
    """Parameters of `tool` that stand beside ``parameters`` instead of in it; dropping them would lose intent."""
    extra = value.keys() - _ACTION_KEYS
    if not extra:
        return []
    declared = tool.parameters.get("properties", {})
    aliases = {*TOOL_ALIASES, *PARAMETER_ALIASES, *REASONING_ALIASES}
    return [key for key in value if key in extra and key in declared and key not in parameters and key not in aliases]


def find_tool(name: str, tools: Sequence[ToolSchema]) -> ToolSchema | None:
    """The tool called `name`; else the only one that equals it but for case, or but for a namespace before it."""
    for tool in tools:
        if tool.name == name:
            return tool
    wanted = name.strip().casefold()
    same = [tool for tool in tools if tool.name.casefold() == wanted]
    if not same:
        endings = {wanted[separator.end() :] for separator in _NAMESPACE.finditer(wanted[:256])}
        same = [tool for tool in tools if tool.name.casefold() in endings]
    return same[0] if len(same) == 1 else None


def _came(value: Any) -> str:
    return f"{type_name(value)} {excerpt(plain(value))}"


def _member(value: dict[str, Any], key: str, aliases: tuple[str, ...], repairs: dict[str, None]) -> Any:
    """The value under `key`; under an alias only where the canonical key is absent; `_MISSING` if nowhere."""
    if key in value:
        return value[key]
    present = [alias for alias in aliases if alias in value]
    if len(present) > 1:
        both = " and ".join(f'"{alias}"' for alias in present)
        raise Refusal(f'{both} could both mean "{key}"; use the key "{key}"')
    if not present:
        return _MISSING
    repairs["alias_key"] = None
    return value[present[0]]


def _parameters_object(sent: Any, repairs: dict[str, None]) -> dict[str, Any]:
    """The parameters as an object; nothing at all stands for ``{}``, which the schema then judges."""
    if sent is _MISSING or sent is None or sent == [] or sent == "":
        repairs["parameters_missing"] = None
        return {}
    if isinstance(sent, str):
        repairs["parameters_as_text"] = None
        return _parameters_from_text(sent, repairs)
    if not isinstance(sent, dict):
        raise Refusal(f'"parameters" must be an object with named values, got {_came(sent)}')
    return sent


def _parameters_from_text(text: str, repairs: dict[str, None]) -> dict[str, Any]:
    try:
        if text.lstrip().startswith('"'):  # encoded twice
            text = str(decode_strict(text))
        value, reading_repairs = read_all(text)
    except Malformed:
        value, reading_repairs = None, ()
    if not isinstance(value, dict):
        raise Refusal(f'"parameters" must be an object, got a string {excerpt(text)} that holds none')
    repairs.update(dict.fromkeys(reading_repairs))
    return value


def _reasoning(sent: Any, repairs: dict[str, None]) -> str:
    if isinstance(sent, str):
        return sent
    if sent is _MISSING or sent is None:
        return ""
    repairs["reasoning_not_text"] = None
    return json.dumps(plain(sent), ensure_ascii=False)
