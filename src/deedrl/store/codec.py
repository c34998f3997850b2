"""One trajectory ↔ one line of strict JSON.

What the writer changes, and nothing else: lone surrogates (which UTF-8 cannot hold) become U+FFFD, and text shaped
like a well-known key becomes ``[redacted]``. The sampled token ids are kept as they are in both cases. What it refuses:
NaN and infinities, because a number that is not one must never come back as a reward or a log-probability.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, get_origin

import msgspec

from deedrl.errors import StoreError
from deedrl.redaction import holds_key, mask_keys
from deedrl.types import SCHEMA_VERSION, Trajectory


class TornRecord(StoreError):
    """The line is not JSON: cut off, overwritten or damaged."""


class InvalidRecord(StoreError):
    """The line is JSON but not a trajectory: a field is missing or has the wrong type."""


class NewerSchema(StoreError):
    """The line was written by a newer DeedRL than this one."""


class _Version(msgspec.Struct, frozen=True):
    schema_version: int = 0


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Trajectory)
_version_decoder = msgspec.json.Decoder(_Version)


def encode(trajectory: Trajectory) -> bytes:
    """The trajectory as one line of UTF-8 JSON, newline included.

    Raises StoreError that names the field for NaN, an infinity, or a value JSON has no form for.
    """
    try:
        line = _plain_line(trajectory)
    except RecursionError as error:
        raise _no_form(trajectory, error) from error
    except (TypeError, OverflowError) as error:
        place = find_nonfinite(trajectory)
        raise (_no_form(trajectory, error) if place is None else _not_finite(trajectory, place)) from error
    texts = _finite_texts(trajectory)
    if texts is None:
        raise _not_finite(trajectory, find_nonfinite(trajectory))
    return _encode_cleaned(trajectory) if line is None or holds_key("\n".join(texts)) else line


def decode(line: bytes) -> Trajectory:
    """The trajectory in one line; unknown fields are ignored, so lines of later minor versions can be read.

    Raises TornRecord, InvalidRecord or NewerSchema, all of them StoreErrors.
    """
    try:
        trajectory = _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _diagnose(line, error) from error
    if trajectory.schema_version > SCHEMA_VERSION:
        raise _newer(trajectory.schema_version)
    return trajectory


def _diagnose(line: bytes, error: Exception) -> StoreError:
    try:
        msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as syntax:
        return TornRecord(f"not JSON ({syntax})")
    try:
        version = _version_decoder.decode(line).schema_version
    except msgspec.DecodeError:
        version = 0
    return _newer(version) if version > SCHEMA_VERSION else InvalidRecord(f"not a trajectory ({error})")


def _no_form(trajectory: Trajectory, error: Exception) -> StoreError:
    return StoreError(
        f"episode '{trajectory.episode_id}': expected values that JSON can hold, got: {error}; "
        "let tools and verifiers return plain numbers, texts, lists and mappings"
    )


def _not_finite(trajectory: Trajectory, place: str | None) -> StoreError:
    return StoreError(
        f"episode '{trajectory.episode_id}': expected a finite number in {place}, got NaN or infinity; a value that "
        "could not be measured is None (see what produced it: a reward term or a logit overflow)"
    )


def _newer(version: int) -> NewerSchema:
    return NewerSchema(
        f"expected trajectory schema version {SCHEMA_VERSION} or older, got {version}; "
        "upgrade DeedRL to read this file (it was written by a newer one)"
    )


# ---------------------------------------------------------------- cleaning


def _plain_line(trajectory: Trajectory) -> bytes | None:
    """The line without any change; None if a text holds half of a surrogate pair.

    Raises TypeError, OverflowError or RecursionError (for what contains itself) where JSON has no form.
    """
    try:
        return _encoder.encode_lines((trajectory,))
    except UnicodeEncodeError:
        msgspec.to_builtins(trajectory)
        return None


def _encode_cleaned(trajectory: Trajectory) -> bytes:
    return _encoder.encode_lines((_map_text(msgspec.to_builtins(trajectory), as_stored),))


def as_stored(text: str) -> str:
    """`text` as it comes back from a store.

    UTF-16 joins surrogates that are a pair and replaces those that stand alone.
    """
    return mask_keys(text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"))


def _map_text(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {_map_text(name, change): _map_text(item, change) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return value if _is_numeric(value) else [_map_text(item, change) for item in value]
    return value


# ---------------------------------------------------------------- inspecting

_NUMBERS = frozenset({int, float})
_PLAIN = frozenset({int, bool, type(None)})
_NEITHER = frozenset({int, bool, int | None, tuple[int, ...]})
"""Annotations of fields that hold neither text nor decimal numbers; so do Literals."""
_ROWS = frozenset({tuple, list})


def _finite_texts(trajectory: Trajectory) -> list[str] | None:
    """Every text in `trajectory`, names of parameters included; None if one of its numbers is NaN or infinite.

    Done carelessly this costs several times what encoding does. So one list takes what is still to be looked at, exact
    types are asked for first, and rows of numbers are added up instead of looked at one by one.
    """
    texts: list[str] = []
    pending: list[Any] = [trajectory]
    for value in pending:
        kind: Any = type(value)
        if kind is str:
            texts.append(value)
        elif kind in _PLAIN:
            continue
        elif kind is float:
            if not math.isfinite(value):
                return None
        elif kind in _ROWS:
            if value and not (type(value[0]) in _NUMBERS and math.isfinite(_total(value))):
                pending.extend(value)
        elif kind is dict:
            pending.extend(value)
            pending.extend(value.values())
        elif isinstance(value, msgspec.Struct):
            pending.extend(_reader(kind)(value))
        else:
            pending.extend(_as_plain(value))
    return texts


@functools.cache
def _reader(kind: type[msgspec.Struct]) -> Callable[[Any], Sequence[Any]]:
    """Takes from a record of this class the fields that may hold text or decimal numbers, by their annotations."""
    names = [
        field.name
        for field in msgspec.structs.fields(kind)
        if field.type not in _NEITHER and get_origin(field.type) is not Literal
    ]
    return operator.attrgetter(*names) if len(names) > 1 else msgspec.structs.astuple


def _as_plain(value: Any) -> Iterable[Any]:
    """A value of a rarer type as one or none of the types above (an enum's name, a NumPy float)."""
    if isinstance(value, str):
        return (str.__str__(value),)
    if isinstance(value, float):
        return (float(value),)
    if isinstance(value, Mapping):
        return (dict(value),)
    return (list(value),) if isinstance(value, list | tuple) else ()


def find_nonfinite(value: Any) -> str | None:
    """Path of the first NaN or infinity anywhere in `value`, like ``steps[3].completion.logprobs[17]``; else None."""
    path = _path_of_nonfinite(value)
    return None if path is None else path.lstrip(".") or "the value itself"


def _path_of_nonfinite(value: Any) -> str | None:
    if isinstance(value, float):
        return None if math.isfinite(value) else ""
    if isinstance(value, msgspec.Struct):
        parts = [(f".{name}", getattr(value, name)) for name in value.__struct_fields__]
    elif isinstance(value, Mapping):
        parts = [(f".{name}", item) for name, item in value.items()]
    elif isinstance(value, list | tuple):
        parts = [(f"[{index}]", item) for index, item in enumerate(value)]
    else:
        return None
    for name, item in parts:
        below = _path_of_nonfinite(item)
        if below is not None:
            return name + below
    return None


def _is_numeric(values: list[Any] | tuple[Any, ...]) -> bool:
    return _NUMBERS.issuperset(map(type, values))


def _total(values: list[Any] | tuple[Any, ...]) -> float:
    """Sum of the numbers; not finite if one of them is not, if the sum overflows, or if there are other things."""
    try:
        return float(sum(values))
    except (TypeError, OverflowError):
        return math.nan
