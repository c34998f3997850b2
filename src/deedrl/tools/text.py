"""One rule for turning whatever a tool returns into text that a tokenizer can take."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

MAX_OUTPUT_CHARS = 4000
"""Longest text that a tool's output becomes, the note about what was cut included."""

LONE_SURROGATE = re.compile("[\ud800-\udfff]")
"""Matches what a Python string can hold and UTF-8 cannot."""

_UNSAFE = re.compile("[\x00\ud800-\udfff]")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def to_text(value: Any) -> str:
    """`value` as text of at most `MAX_OUTPUT_CHARS` characters, free of NUL and lone surrogates (U+FFFD instead).

    A string stays as it is, None becomes "", bytes are read as UTF-8 with replacement, an exception becomes
    "Name: message", all else becomes JSON (sets as sorted lists; objects without a JSON form are shown by their `repr`
    without address).
    """
    if isinstance(value, str):
        text = str(value)
    elif value is None:
        text = ""
    elif isinstance(value, bytes | bytearray | memoryview):
        text = bytes(value).decode("utf-8", errors="replace")
    elif isinstance(value, BaseException):
        text = f"{type(value).__name__}: {value}"
    else:
        text = _as_json(value)
    return cut(_UNSAFE.sub("\ufffd", text))


def cut(text: str, limit: int = MAX_OUTPUT_CHARS) -> str:
    """The beginning of `text` and a note on how many characters were left out, `limit` characters together."""
    if len(text) <= limit:
        return text
    room = limit - len(_cut_note(len(text), len(text)))
    return text[:room] + _cut_note(len(text) - room, len(text))


def _cut_note(left_out: int, total: int) -> str:
    return f"\n[cut: {left_out} of {total} characters left out]"


def _as_json(value: Any) -> str:
    try:
        plain = msgspec.to_builtins(
            _ordered(value), str_keys=True, enc_hook=_plain, builtin_types=(bytes, bytearray, memoryview)
        )
        return json.dumps(plain, ensure_ascii=False, default=_plain)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return _without_address(value)


def _ordered(value: Any) -> Any:
    """`value` with sets as sorted lists: their own order differs from process to process, and so would a replay's."""
    if isinstance(value, set | frozenset):
        items = [_ordered(item) for item in value]
        try:
            return sorted(items)
        except TypeError:  # of several kinds
            return sorted(items, key=_without_address)
    if isinstance(value, dict):
        return {key: _ordered(item) for key, item in value.items()}
    return [_ordered(item) for item in value] if type(value) in (list, tuple) else value


def _plain(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", errors="replace")
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {value}"
    if hasattr(value, "tolist"):
        return value.tolist()
    return _without_address(value)


def _without_address(value: Any) -> str:
    """`repr` without memory addresses, which would differ from run to run."""
    try:
        return _ADDRESS.sub("", repr(value))
    except (ValueError, RecursionError):  # an integer of more digits than Python writes, lists in lists in lists
        return f"({type(value).__name__} that cannot be shown)"
