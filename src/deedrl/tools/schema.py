"""From a function's signature and docstring to the JSON schema that a model is told of."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import docstring_parser
import msgspec

from deedrl.errors import EnvironmentAuthorError
from deedrl.types import ToolSchema

_REFERENCE = "#/$defs/"
_UNTYPED = (Any, object, bytes, bytearray, memoryview)
_NO_DEFAULT = inspect.Parameter.empty


def build_schema(name: str, function: Callable[..., Any]) -> tuple[ToolSchema, Mapping[str, Any]]:
    """The schema of `function` under `name`, and the Python type of each parameter.

    `self` is left out. Every other parameter needs a type hint that has a JSON form; anything else raises
    `EnvironmentAuthorError` naming the tool and the parameter.
    """
    parameters = _parameters(name, function)
    types = _resolve_types(name, function, parameters)
    documentation = docstring_parser.parse(inspect.getdoc(function) or "")
    descriptions = {entry.arg_name: " ".join((entry.description or "").split()) for entry in documentation.params}
    properties = {
        key: _property(name, key, types[key], parameter.default, descriptions.get(key, ""))
        for key, parameter in parameters.items()
    }
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    required = [key for key, parameter in parameters.items() if parameter.default is _NO_DEFAULT]
    if required:
        schema["required"] = required
    definitions: dict[str, Any] = {}
    for entry in properties.values():
        definitions.update(entry.pop("$defs", {}))
    if definitions:
        schema["$defs"] = definitions
    about = [documentation.short_description, documentation.long_description]
    return ToolSchema(name=name, description="\n".join(part for part in about if part), parameters=schema), types


def takes_self(function: Callable[..., Any]) -> bool:
    """True if the first parameter of `function` is called ``self``."""
    return next(iter(inspect.signature(function).parameters), None) == "self"


def _parameters(name: str, function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    parameters = dict(inspect.signature(function).parameters)
    if takes_self(function):
        del parameters["self"]
    for key, parameter in parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise EnvironmentAuthorError(
                f"tool '{name}', parameter '{key}': expected a parameter that can be given by name, got "
                f"a {parameter.kind.description} one; write each parameter out with its type"
            )
        if parameter.annotation is _NO_DEFAULT:
            raise EnvironmentAuthorError(
                f"tool '{name}', parameter '{key}': expected a type hint, got none; write '{key}: str' or the like"
            )
    return parameters


def _resolve_types(
    name: str, function: Callable[..., Any], parameters: Mapping[str, inspect.Parameter]
) -> dict[str, Any]:
    """Type of each parameter with string hints evaluated; the return hint stays unread, it may be anything."""
    namespace = getattr(inspect.unwrap(function), "__globals__", {})
    types: dict[str, Any] = {}
    for key, parameter in parameters.items():
        holder = SimpleNamespace(__annotations__={key: parameter.annotation})
        try:
            types[key] = typing.get_type_hints(holder, globalns=namespace, include_extras=True)[key]
        except (NameError, AttributeError, SyntaxError, TypeError) as error:
            raise EnvironmentAuthorError(
                f"tool '{name}', parameter '{key}': the type hint {parameter.annotation!r} cannot be read ({error}); "
                "define or import the type at the top level of the module, above the class"
            ) from error
    return types


def _property(name: str, key: str, hint: Any, default: Any, description: str) -> dict[str, Any]:
    """JSON schema of one parameter; definitions that are recursive stay under ``$defs``."""
    if hint in _UNTYPED:
        shown = getattr(hint, "__name__", str(hint))
        raise EnvironmentAuthorError(
            f"tool '{name}', parameter '{key}': a model cannot be told what '{shown}' is; expected str, int, float, "
            "bool, Literal, Enum, list[...], dict[str, ...], Optional, a dataclass, TypedDict or msgspec.Struct"
        )
    try:
        (schema,), components = msgspec.json.schema_components([hint], ref_template=_REFERENCE + "{name}")
    except (TypeError, NameError) as error:
        raise EnvironmentAuthorError(
            f"tool '{name}', parameter '{key}': the type {hint!r} has no JSON form ({error}); expected str, int, "
            "float, bool, Literal, Enum, list[...], dict[str, ...], Optional, a dataclass, TypedDict or msgspec.Struct"
        ) from error
    recursive: dict[str, Any] = {}
    entry: dict[str, Any] = dict(_inline(schema, components, (), recursive))
    if description:
        entry["description"] = description
    if default is not _NO_DEFAULT:
        entry["default"] = _checked_default(name, key, hint, default)
    if recursive:
        entry["$defs"] = recursive
    return entry


def _checked_default(name: str, key: str, hint: Any, default: Any) -> Any:
    try:
        plain = msgspec.to_builtins(default, str_keys=True)
        msgspec.convert(plain, hint, str_keys=True)
    except (msgspec.ValidationError, TypeError) as error:
        advice = f"; write '{key}: ... | None = None'" if default is None else ""
        raise EnvironmentAuthorError(
            f"tool '{name}', parameter '{key}': the default {default!r} does not fit the type hint ({error}){advice}"
        ) from error
    return plain


def _inline(schema: Any, components: Mapping[str, Any], path: tuple[str, ...], recursive: dict[str, Any]) -> Any:
    """`schema` with references replaced by what they point to, so that small models and grammars need no ``$ref``."""
    if isinstance(schema, list):
        return [_inline(item, components, path, recursive) for item in schema]
    if not isinstance(schema, dict):
        return schema
    reference = schema.get("$ref")
    if not isinstance(reference, str):
        return {key: _inline(value, components, path, recursive) for key, value in schema.items()}
    target = reference.removeprefix(_REFERENCE)
    if target in path:
        recursive.setdefault(target, components[target])
        return schema
    return _inline(components[target], components, (*path, target), recursive)
