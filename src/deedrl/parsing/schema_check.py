"""Checks parameters against a tool's JSON schema and, where they miss it, adapts them only as the schema says."""

from __future__ import annotations

from functools import lru_cache
from itertools import islice
from typing import Any

import jsonschema_rs
import msgspec

from deedrl.errors import EnvironmentAuthorError, suggest
from deedrl.parsing.coercion import coerce, expected_types, member_schema
from deedrl.parsing.feedback import excerpt, type_name
from deedrl.parsing.reader import plain
from deedrl.types import Record, ToolSchema

_MAX_PROBLEMS = 3


class Fit(Record, frozen=True):
    """Parameters as the schema wants them, or (when `problem` is set) why they cannot be."""

    parameters: dict[str, Any]
    repairs: tuple[str, ...] = ()
    problem: str | None = None


def fit_parameters(parameters: dict[str, Any], tool: ToolSchema) -> Fit:
    """Returns `parameters` unchanged if they satisfy the tool's schema, else adapted, else the problem.

    Names that the schema does not declare are a problem even where it forgot ``additionalProperties: false``,
    since a tool cannot take them. A broken schema raises `EnvironmentAuthorError`.
    """
    as_sent = plain(parameters)
    if satisfies(as_sent, tool):
        return Fit(parameters=as_sent)
    repairs: dict[str, None] = {}
    adapted = plain(coerce(parameters, tool.parameters, tool.parameters, repairs))
    if _is_valid(adapted, tool):
        return Fit(parameters=adapted, repairs=tuple(repairs))
    return Fit(parameters=parameters, problem=_describe_problems(adapted, tool))


def satisfies(parameters: dict[str, Any], tool: ToolSchema) -> bool:
    """Whether `parameters` may run as they are; False also for 3.0 where an integer is required."""
    if not _is_valid(parameters, tool):
        return False
    if not _holds_float(parameters):
        return True
    repairs: dict[str, None] = {}
    coerce(parameters, tool.parameters, tool.parameters, repairs)
    return not repairs


def check_schema(tool: ToolSchema) -> None:
    """Raises `EnvironmentAuthorError` if the tool's parameters are not a valid JSON schema."""
    _validator(tool)


def _holds_float(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_holds_float(item) for item in value.values())
    if isinstance(value, list):
        return any(_holds_float(item) for item in value)
    return isinstance(value, float)


def _is_valid(parameters: dict[str, Any], tool: ToolSchema) -> bool:
    return not _undeclared(parameters, tool.parameters) and bool(_validator(tool).is_valid(parameters))


def _undeclared(parameters: dict[str, Any], schema: dict[str, Any]) -> list[str]:
    declared = schema.get("properties")
    if declared is None or schema.get("additionalProperties") or "patternProperties" in schema:
        return []
    return [name for name in parameters if name not in declared]


def _validator(tool: ToolSchema) -> Any:
    try:
        return _compile(msgspec.json.encode(tool.parameters))
    except ValueError as error:
        raise EnvironmentAuthorError(
            f"the parameters of tool {tool.name!r} must be a valid JSON schema, but: {error}; correct the tool's schema"
        ) from error


@lru_cache(maxsize=512)
def _compile(schema: bytes) -> Any:
    """Keyed by content, so that equal schemas share a validator and a changed one never meets a stale one."""
    return jsonschema_rs.validator_for(msgspec.json.decode(schema), retriever=_refuse_remote)


def _refuse_remote(uri: str) -> Any:
    raise ValueError(f"the schema refers to {uri}, and parsing never reads from elsewhere; write it into $defs")


def _describe_problems(parameters: dict[str, Any], tool: ToolSchema) -> str:
    schema = tool.parameters
    problems = [_undeclared_problem(name, tool) for name in _undeclared(parameters, schema)[:_MAX_PROBLEMS]]
    errors = list(islice(_validator(tool).iter_errors(parameters), 8))
    # Missing names first: they tell the model most.
    errors.sort(key=lambda error: error.kind.name != "required")
    problems += [_error_problem(error, schema) for error in errors if error.kind.name != "additionalProperties"]
    return "; ".join(dict.fromkeys(problems[:_MAX_PROBLEMS])) or "the parameters do not fit"


def _undeclared_problem(name: str, tool: ToolSchema) -> str:
    declared = tool.parameters.get("properties", {})
    hint = suggest(name, declared) if declared else "; it takes none"
    return f"no parameter {excerpt(name)}{hint}"


def _error_problem(error: Any, schema: dict[str, Any]) -> str:
    path = list(error.instance_path)
    kind = error.kind.name
    if kind == "required":
        missing = error.kind.as_dict()["property"]
        expected = _expected(schema, [*path, missing])
        return f"missing required parameter {_dotted([*path, missing])!r}" + (f" ({expected})" if expected else "")
    where = f"parameter {_dotted(path)!r}" if path else "parameters"
    if kind in ("type", "anyOf", "oneOf"):
        came = f"{type_name(error.instance)} {excerpt(error.instance)}"
        return f"{where} must be {_expected(schema, path) or 'of another type'}, got {came}"
    if kind == "enum":
        options = ", ".join(excerpt(option) for option in error.kind.as_dict()["options"][:20])
        return f"{where} must be one of {options}, got {excerpt(error.instance)}"
    return f"{where}: {error.message[:200]}"


def _dotted(path: list[Any]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _expected(schema: dict[str, Any], path: list[Any]) -> str:
    at: Any = schema
    for part in path:
        at = member_schema(at, part, schema)
    types = expected_types(at, schema)
    return " or ".join(sorted(types)) if types else ""
