"""Schema-guided coercion: changes a value's type only where the schema leaves one reading. Strings stay strings."""

from __future__ import annotations

import re
from typing import Any

from deedrl.parsing.reader import SourceFloat, read_all
from deedrl.parsing.strict_json import MAX_INTEGER_DIGITS, Malformed

_MAX_DEPTH = 64
_MAX_REFERENCES = 8
_EXACT_FLOAT = 2**53
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_BOOLEANS = {"true": True, "True": True, "false": False, "False": False}
_CONTAINERS = {"array": list, "object": dict}


def coerce(value: Any, schema: Any, root: dict[str, Any], repairs: dict[str, None], depth: int = 0) -> Any:
    """Returns `value` adapted to `schema`; adds the names of what was done to `repairs`.

    Only a value whose type the schema excludes is touched; what does not fit in exactly one way stays as it is
    and fails validation afterwards. `root` is the whole schema, in which references are resolved.
    """
    types = expected_types(schema, root)
    if depth > _MAX_DEPTH:
        return value
    if types is not None:
        value = _coerce_type(value, types, repairs)
    if isinstance(value, dict):
        return _coerce_members(value, schema, root, repairs, depth)
    if isinstance(value, list):
        return [
            coerce(item, member_schema(schema, index, root), root, repairs, depth + 1)
            for index, item in enumerate(value)
        ]
    return value


def expected_types(schema: Any, root: dict[str, Any], depth: int = 0) -> frozenset[str] | None:
    """JSON type names that `schema` admits, read through references and alternatives; None if it names none."""
    schema = _resolve(schema, root)
    if not isinstance(schema, dict) or depth > _MAX_REFERENCES:
        return None
    if "type" in schema:
        declared = schema["type"]
        return frozenset([declared] if isinstance(declared, str) else declared)
    alternatives = _alternatives(schema)
    if not alternatives:
        return None
    types = [expected_types(alternative, root, depth + 1) for alternative in alternatives]
    return None if None in types else frozenset().union(*(named for named in types if named is not None))


def member_schema(schema: Any, part: str | int, root: dict[str, Any]) -> Any:
    """Schema of the member `part` (a key or an index) of values of `schema`; None where it says nothing."""
    kind = "array" if isinstance(part, int) else "object"
    schema = _resolve(schema, root)
    if not isinstance(schema, dict):
        return None
    branches = [_resolve(branch, root) for branch in _alternatives(schema)]
    matching = [branch for branch in branches if kind in (expected_types(branch, root) or ())]
    if len(matching) == 1:
        schema = matching[0]
    if isinstance(part, int):
        prefix = schema.get("prefixItems", [])
        return prefix[part] if part < len(prefix) else schema.get("items")
    properties = schema.get("properties", {})
    return properties[part] if part in properties else schema.get("additionalProperties")


def _alternatives(schema: dict[str, Any]) -> list[Any]:
    return [*schema.get("anyOf", ()), *schema.get("oneOf", ())]


def _resolve(schema: Any, root: dict[str, Any]) -> Any:
    for _ in range(_MAX_REFERENCES):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return schema
        schema = root
        for part in reference[2:].split("/"):
            schema = schema.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(schema, dict) else None
    return None


def _coerce_type(value: Any, types: frozenset[str], repairs: dict[str, None]) -> Any:
    if isinstance(value, str) and "string" not in types:
        return _from_text(value, types, repairs)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if "number" not in types and "integer" not in types and "string" in types:
        repairs["number_to_text"] = None
        return value.literal if isinstance(value, SourceFloat) else str(value)
    if isinstance(value, float) and "integer" in types and "number" not in types and _is_exact(value):
        repairs["float_to_integer"] = None
        return int(value)
    return value


def _is_exact(value: float) -> bool:
    return value.is_integer() and abs(value) <= _EXACT_FLOAT


def _from_text(text: str, types: frozenset[str], repairs: dict[str, None]) -> Any:
    if types & {"integer", "number"} and len(text) <= MAX_INTEGER_DIGITS:
        if _INTEGER.fullmatch(text):
            repairs["text_to_integer" if "integer" in types else "text_to_number"] = None
            return int(text)
        if "number" in types and _NUMBER.fullmatch(text):
            number = float(text)
            if number not in (float("inf"), float("-inf")):
                repairs["text_to_number"] = None
                return number
    if "boolean" in types and text in _BOOLEANS:
        repairs["text_to_boolean"] = None
        return _BOOLEANS[text]
    return _container_from_text(text, types, repairs)


def _container_from_text(text: str, types: frozenset[str], repairs: dict[str, None]) -> Any:
    wanted = types & _CONTAINERS.keys()
    if not wanted:
        return text
    try:
        value, reading_repairs = read_all(text)
    except Malformed:
        return text
    for name in sorted(wanted):
        if isinstance(value, _CONTAINERS[name]):
            repairs.update(dict.fromkeys((f"text_to_{name}", *reading_repairs)))
            return value
    return text


def _coerce_members(
    value: dict[str, Any], schema: Any, root: dict[str, Any], repairs: dict[str, None], depth: int
) -> dict[str, Any]:
    resolved = _resolve(schema, root)
    required = resolved.get("required", ()) if isinstance(resolved, dict) else ()
    members: dict[str, Any] = {}
    for key, item in value.items():
        inner = member_schema(schema, key, root)
        types = expected_types(inner, root)
        if item is None and key not in required and types is not None and "null" not in types:
            repairs["null_parameter_dropped"] = None
            continue
        members[key] = coerce(item, inner, root, repairs, depth + 1)
    return members
