"""RFC 8259 decoding without Python's liberties, and the bounds both decoders share."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec

MAX_DEPTH = 64
"""Deepest nesting of objects and arrays that is read."""
MAX_INTEGER_DIGITS = 100
"""Longest integer that is read; Python itself refuses only at 4300 digits, and with a plain ValueError."""


class Malformed(Exception):
    """Text that is not the JSON it should be. `position` is where reading stopped, in characters."""

    def __init__(self, reason: str, position: int = 0, *, cut_off: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.position = position
        self.cut_off = cut_off
        """True when the text ended before the value did."""


def read_integer(literal: str) -> int:
    """Reads an integer literal; raises `Malformed` beyond `MAX_INTEGER_DIGITS`."""
    if len(literal) > MAX_INTEGER_DIGITS:
        raise Malformed(f"an integer of {len(literal)} digits is too long (at most {MAX_INTEGER_DIGITS})")
    return int(literal)


def read_finite(literal: str) -> float:
    """Reads a decimal literal; raises `Malformed` if it overflows to infinity."""
    number = float(literal)
    if not math.isfinite(number):
        raise Malformed(f"the number {literal[:40]} is too large")
    return number


def _refuse_constant(name: str) -> Any:
    raise Malformed(f"{name} is not JSON")


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise Malformed(f"the key {key!r} appears twice in one object")
            seen.add(key)
    return members


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique_members,
    parse_constant=_refuse_constant,
    parse_int=read_integer,
    parse_float=read_finite,
)


def decode_strict(text: str) -> Any:
    """Decodes `text` as one JSON value.

    Raises `Malformed` for anything outside RFC 8259 and for duplicate keys, numbers that overflow, integers
    longer than `MAX_INTEGER_DIGITS`, nesting deeper than `MAX_DEPTH` and lone surrogates, none of which a tool
    or a store could use.
    """
    try:
        value = _DECODER.decode(text)
        msgspec.json.encode(value)
    except RecursionError:
        raise Malformed(f"nesting deeper than {MAX_DEPTH} levels") from None
    except UnicodeEncodeError:
        raise Malformed("a string holds half of a surrogate pair") from None
    except json.JSONDecodeError as error:
        raise Malformed(error.msg, error.pos) from None
    # Counting brackets is cheap and bounds the depth from above, so the exact walk is rare.
    if text.count("{") + text.count("[") > MAX_DEPTH and _depth(value) > MAX_DEPTH:
        raise Malformed(f"nesting deeper than {MAX_DEPTH} levels")
    return value


def _depth(value: Any) -> int:
    deepest = 0
    pending = [(value, 1)]
    while pending:
        item, depth = pending.pop()
        if isinstance(item, dict):
            children = list(item.values())
        elif isinstance(item, list):
            children = item
        else:
            continue
        deepest = max(deepest, depth)
        pending.extend((child, depth + 1) for child in children)
    return deepest
