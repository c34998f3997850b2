"""YAML in, frozen settings out, with errors that name the path, what was expected and what came.

YAML is read by the rules of YAML 1.2: ``1e-4`` is a number, ``no`` and ``on`` are words, a key given twice is an
error. Paths are dotted; an element of a list is addressed by its ``name`` or ``stage`` if it has one, else by index.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import msgspec
import yaml
from msgspec import Meta, inspect

from deedrl.errors import ConfigError, suggest

T = TypeVar("T")

# Upper bounds are where arithmetic of 32 bits ends, in torch as in the clocks that time limits are given to.
PositiveInt = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
PositiveFloat = Annotated[float, Meta(gt=0, le=1e30)]
NonNegative = Annotated[float, Meta(ge=0, le=1e30)]
# Of what a run holds in memory all at once: tasks, the episodes of a round, the samples of a step.
Many = Annotated[int, Meta(ge=1, le=1_000_000)]
ManyOrNone = Annotated[int, Meta(ge=0, le=1_000_000)]
Seconds = Annotated[float, Meta(gt=0, le=1e6)]
LearningRate = Annotated[float, Meta(gt=0, le=1)]
Share = Annotated[float, Meta(ge=0, le=1)]


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of everything a recipe may hold: immutable, keyword-only, unknown keys refused."""


# ---------------------------------------------------------------- reading YAML


class _Loader(yaml.SafeLoader):
    """Safe YAML 1.2 scalars; refuses a key that is given twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            line = f"line {key_node.start_mark.line + 1}"
            if key_node.tag == "tag:yaml.org,2002:merge":
                raise ConfigError(f"{line}: expected a plain key, got '<<', which YAML 1.2 lacks; write the keys out")
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, (dict, list)):
                raise ConfigError(f"{line}: expected a plain key, got a {_kind(key)}")
            if key in seen:
                raise ConfigError(f"{line}: key '{key}' is given twice; keep one")
            seen.add(key)
        return cast(dict[Any, Any], super().construct_mapping(node, deep))


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag.rsplit(":", 1)[-1] in {"null", "merge"}]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(0|[1-9][0-9_]*)", "-+0123456789"),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan",
        "-+.0123456789",
    ),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list(_first))


def parse_yaml(text: str, origin: str) -> Any:
    """Reads YAML text safely; `origin` names the place in errors. Raises `ConfigError` with the line."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{origin}: not valid YAML: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{origin}: {error}") from None
    except (ValueError, RecursionError, OverflowError, LookupError, AttributeError, TypeError) as error:
        # Python reads no number of thousands of digits, PyYAML no nesting of hundreds of levels; and its constructors
        # raise anything for a text that does not fit a tag such as !!bool or !!timestamp.
        raise ConfigError(
            f"{origin}: a number is too long or the nesting too deep, or a value is not what its tag says: {error!r}"
        ) from error


def read_yaml(path: Path) -> dict[str, Any]:
    """Reads a YAML file that holds a mapping."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; expected a recipe in YAML") from None
    except (IsADirectoryError, PermissionError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: expected a text file in UTF-8, cannot be read as one: {error}") from None
    data = parse_yaml(text, str(path))
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: expected a mapping of settings, got {_kind(data)}")
    return data


def dump_yaml(data: Any) -> str:
    """Writes plain data as YAML that `parse_yaml` reads back to the same values."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


class _Dumper(yaml.SafeDumper):
    """Writes numbers the way people do, and no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


# The dumper quotes by the loader's own rules, so that text like '1e5' or 'no' survives a round trip.
_Dumper.yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers
_Dumper.add_representer(
    str,
    # Quoted where a plain or single-quoted line break of Unicode would come back as a space.
    lambda dumper, value: dumper.represent_scalar(
        "tag:yaml.org,2002:str", value, style=None if value.isprintable() else '"'
    ),
)
_Dumper.add_representer(
    float,
    lambda dumper, value: dumper.represent_scalar(
        "tag:yaml.org,2002:float", repr(value).replace("inf", ".inf").replace("nan", ".nan")
    ),
)


# ---------------------------------------------------------------- overrides


def parse_override(text: str) -> tuple[str, Any]:
    """Splits ``path.to.key=value``; the value is read as a YAML scalar or flow collection."""
    path, separator, value = text.partition("=")
    if not separator or not path.strip():
        raise ConfigError(f"override '{text}': expected path.to.key=value, e.g. stages.grpo.learning_rate=1e-4")
    return path.strip(), parse_yaml(value, f"override '{path.strip()}'")


def apply_override(data: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of `data` with `value` at the dotted `path`; mappings on the way are made, list elements must exist."""
    return cast(dict[str, Any], _replaced(data, path.split("."), value, ""))


def _replaced(node: Any, keys: Sequence[str], value: Any, at: str) -> Any:
    if not keys:
        return value
    key, rest = keys[0], keys[1:]
    here = _join(at, key)
    if isinstance(node, list):
        index = _element(node, key, here)
        return [_replaced(item, rest, value, here) if i == index else item for i, item in enumerate(node)]
    if node is None or isinstance(node, dict):
        node = node or {}
        return {**node, key: _replaced(node.get(key), rest, value, here)}
    raise ConfigError(f"override '{here}': '{at}' is {_kind(node)} and has no keys")


def _element(items: list[Any], key: str, at: str) -> int:
    labels = [_label(item, i) for i, item in enumerate(items)]
    for index, label in enumerate(labels):
        if key in (label, str(index)):
            return index
    raise ConfigError(f"override '{at}': no element '{key}'{suggest(key, labels)}")


# ---------------------------------------------------------------- conversion


def convert(data: Any, kind: type[T], origin: str = "") -> T:
    """Turns plain data into the frozen settings `kind`.

    Raises `ConfigError` for the first unknown key (nearest known one named), wrong choice, wrong type or value out of
    range; each message starts with the dotted path.
    """
    prefix = f"{origin}: " if origin else ""
    for problem in _structure_problems(data, inspect.type_info(kind), ""):
        raise ConfigError(prefix + problem)
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(prefix + _reworded(str(error), data)) from None


def require_text(data: Any, at: str = "") -> None:
    """Raises `ConfigError` for a text anywhere in plain data that no file name and no tokenizer takes."""
    if isinstance(data, dict):
        for key, value in data.items():
            require_text(key, at)
            require_text(value, _join(at, str(key)))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            require_text(value, _join(at, _label(value, index)))
    elif isinstance(data, str):
        sound = "\0" not in data and not any("\ud800" <= letter <= "\udfff" for letter in data)
        require(sound, at, f"expected text without NUL and halves of surrogate pairs, got {_shown(data)}")


def to_plain(settings: Any) -> Any:
    """Settings as dicts, lists and scalars, defaults included."""
    return _with_lists(msgspec.to_builtins(settings))


def _with_lists(data: Any) -> Any:
    """Tuples as the lists that YAML gives back, so that settings equal what was written of them."""
    if isinstance(data, dict):
        return {key: _with_lists(value) for key, value in data.items()}
    return [_with_lists(value) for value in data] if isinstance(data, (list, tuple)) else data


def _structure_problems(data: Any, info: inspect.Type, at: str) -> Iterator[str]:
    """What `msgspec` cannot say well: unknown keys, tags and choices, in reading order."""
    if isinstance(info, inspect.UnionType):
        structs = [member for member in info.types if isinstance(member, inspect.StructType)]
        if isinstance(data, dict) and structs:
            yield from _struct_union_problems(data, structs, at)
        elif isinstance(data, (list, str)):
            wanted = (inspect.VarTupleType, inspect.ListType) if isinstance(data, list) else (inspect.LiteralType,)
            if not (isinstance(data, str) and any(isinstance(member, inspect.StrType) for member in info.types)):
                for member in info.types:
                    if isinstance(member, wanted):
                        yield from _structure_problems(data, member, at)
    elif isinstance(info, inspect.StructType) and isinstance(data, dict):
        yield from _struct_problems(data, info, at)
    elif isinstance(info, (inspect.VarTupleType, inspect.ListType)) and isinstance(data, list):
        for index, item in enumerate(data):
            yield from _structure_problems(item, info.item_type, _join(at, _label(item, index)))
    elif isinstance(info, inspect.DictType) and isinstance(data, dict):
        for key, item in data.items():
            yield from _structure_problems(key, info.key_type, _join(at, str(key)))
            yield from _structure_problems(item, info.value_type, _join(at, str(key)))
    elif isinstance(info, inspect.LiteralType) and data not in info.values:
        choices = ", ".join(map(str, info.values))
        near = suggest(data, map(str, info.values)) if isinstance(data, str) else ""
        yield f"{at}: expected one of {choices}; got {_shown(data)}{near if 'did you mean' in near else ''}"


def _struct_union_problems(data: dict[str, Any], structs: list[inspect.StructType], at: str) -> Iterator[str]:
    tag_field = structs[0].tag_field
    if tag_field is None:
        yield from _struct_problems(data, structs[0], at)
        return
    by_tag = {str(struct.tag): struct for struct in structs}
    tag = data.get(tag_field)
    if tag is None:
        yield f"{at}: expected a key '{tag_field}' that is one of {', '.join(by_tag)}; got none"
    elif not isinstance(tag, str) or tag not in by_tag:
        yield f"{_join(at, tag_field)}: unknown {tag_field} {_shown(tag)}{suggest(str(tag), by_tag)}"
    else:
        yield from _struct_problems(data, by_tag[tag], at)


def _struct_problems(data: dict[str, Any], info: inspect.StructType, at: str) -> Iterator[str]:
    known = {field.encode_name: field.type for field in info.fields}
    allowed = [*known, info.tag_field] if info.tag_field else list(known)
    for key, value in data.items():
        if key not in allowed:
            yield f"unknown key '{_join(at, str(key))}'{suggest(str(key), allowed)}"
        elif key in known:
            yield from _structure_problems(value, known[key], _join(at, key))


def _reworded(message: str, data: Any) -> str:
    """``Expected `int`, got `str` - at `$.stages[2].steps``` → ``stages.grpo.steps: expected int, got 'ten' (str)``."""
    text, _, raw = message.partition(" - at ")
    if raw.startswith("`key"):
        return f"{raw.rpartition('$.')[2].strip('`')}: expected words as keys; write numbers and the like in quotes"
    keys = re.findall(r"\[(\d+)\]|\.?([^.\[\]$`]+)", raw)
    at, node = "", data
    for index, key in keys:
        if index and isinstance(node, list):
            node = node[int(index)]
            at = _join(at, _label(node, int(index)))
        else:
            node = node.get(key) if isinstance(node, dict) else None
            at = _join(at, key)
    expected, comma, _ = text.replace("`", "").partition(", got")
    if expected.startswith("Expected"):
        # "int | null" is how msgspec spells an optional value, and its words are those of JSON.
        expected = expected.replace(" | ", " or ").replace("object", "mapping").replace("array", "list")
        text = f"expected{expected.removeprefix('Expected')}, got {_shown(node)}"
    else:
        text = expected + comma
        if text.startswith("Object missing required field "):
            text = f"expected a key '{text.rpartition(' ')[2]}', got none"
    return f"{at}: {text}" if at else text


# ---------------------------------------------------------------- fingerprints and differences


def fingerprint(data: Any) -> str:
    """SHA-256 (64 hex digits) of plain data, independent of key order."""
    return hashlib.sha256(msgspec.json.encode(data, order="deterministic")).hexdigest()


def differences(old: Any, new: Any, at: str = "") -> list[str]:
    """Lines ``path: old → new`` for every leaf where two plain structures differ."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = dict.fromkeys([*old, *new])
        return [line for key in keys for line in differences(old.get(key), new.get(key), _join(at, str(key)))]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        return [line for i, (a, b) in pairs for line in differences(a, b, _join(at, _label(b, i)))]
    return [] if old == new else [f"{at}: {_shown(old)} → {_shown(new)}"]


def _label(item: Any, index: int) -> str:
    if isinstance(item, dict):
        return str(item.get("name") or item.get("stage") or index)
    return str(index)


def _join(at: str, key: str) -> str:
    return f"{at}.{key}" if at else key


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({_kind(value)})" if value is not None else "null"


_KINDS: tuple[tuple[type, str], ...] = ((bool, "bool"), (dict, "mapping"), (list, "list"))


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    return next((name for kind, name in _KINDS if isinstance(value, kind)), type(value).__name__)


def require(condition: bool, path: str, problem: str) -> None:
    """Raises `ConfigError` ``path: problem`` unless `condition` holds."""
    if not condition:
        raise ConfigError(f"{path}: {problem}")
