"""Reads one JSON object that may be slightly damaged, never guessing: what has two readings is an error."""

from __future__ import annotations

import re
from typing import Any

from deedrl.parsing.strict_json import MAX_DEPTH, Malformed, read_finite, read_integer
from deedrl.parsing.strings import (
    MEMBER_AFTER_COMMA,
    OPENING_QUOTES,
    TAIL,
    decode_string,
    find_key_end,
    find_string_end,
)

_BLANK = re.compile(r"[ \t\r\n]*")
_ODD_BLANK = re.compile(r"[\s\u200b\u2060\ufeff]+")
_IDENTIFIER = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
_WORD = re.compile(r"[^\s,:{}\[\]\"'，：｝］]+")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_FULL_WIDTH = {"：": ":", "，": ",", "｛": "{", "｝": "}", "［": "[", "］": "]"}
_LITERALS: dict[str, Any] = {"true": True, "false": False, "null": None}
_PYTHON_LITERALS: dict[str, Any] = {"True": True, "False": False, "None": None}


class SourceFloat(float):
    """A decimal number that remembers how it was written, so that 3.10 sent for a string stays "3.10"."""

    literal: str

    @classmethod
    def read(cls, literal: str) -> SourceFloat:
        number = cls(read_finite(literal))
        number.literal = literal
        return number


def plain(value: Any) -> Any:
    """Returns `value` with every `SourceFloat` replaced by the float it stands for."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return float(value) if isinstance(value, SourceFloat) else value


def read_all(text: str) -> tuple[Any, tuple[str, ...]]:
    """Reads `text` as exactly one object or array; returns it and the repairs used, or raises `Malformed`."""
    reader = Reader(text, 0, may_close=False)
    if reader.peek() not in ("{", "["):
        raise Malformed("neither an object nor an array", reader.position)
    value = reader.read_value(0, in_object=False)
    if reader.peek():
        raise Malformed("text follows the value", reader.position)
    return value, tuple(reader.repairs)


class Reader:
    """One pass over one object. After a `Malformed`, `keys` tells how far it got, as does the later of the two
    positions (the error's lies ahead when a string had no end).

    `may_close` allows missing closing braces at the very end of the text; only sound when the model itself
    ended its turn.
    """

    def __init__(self, text: str, start: int, *, may_close: bool) -> None:
        self.text = text
        self.position = start
        self.may_close = may_close
        self.repairs: dict[str, None] = {}
        self.keys: list[str] = []
        """Keys of the outermost object, in the order they were met."""

    def read_object(self, depth: int = 1) -> dict[str, Any]:
        """Reads the object at `position` (its opening brace) and leaves `position` behind its end."""
        self._enter(depth)
        members: dict[str, Any] = {}
        after_comma = False
        while True:
            char = self.peek()
            if char == "}":
                self._close(after_comma)
                return members
            if members and not after_comma and self._ends_here():
                return members
            key = self._read_key(char)
            if key in members:
                raise self._malformed(f"the key {key!r} appears twice in one object")
            if depth == 1:
                self.keys.append(key)
            if self.peek() != ":":
                raise self._malformed(f"expected ':' after the key {key[:40]!r}")
            self.position += 1
            members[key] = self.read_value(depth, in_object=True)
            after_comma = self._separator("}")

    def read_value(self, depth: int, *, in_object: bool) -> Any:
        """Reads any value; `depth` is the nesting around it."""
        char = self.peek()
        if char == "{":
            return self.read_object(depth + 1)
        if char == "[":
            return self._read_array(depth + 1)
        if char in OPENING_QUOTES:
            return self._read_string(in_object)
        number = _NUMBER.match(self.text, self.position)
        if number is not None:
            return self._read_number(number)
        return self._read_literal()

    def peek(self) -> str:
        """Skips blanks and comments; returns the structural character at `position`, "" at the end."""
        while True:
            blank = _BLANK.match(self.text, self.position)
            assert blank is not None
            self.position = blank.end()
            char = self.text[self.position : self.position + 1]
            if char == "#" or (char == "/" and self.text.startswith(("//", "/*"), self.position)):
                self._skip_comment()
            elif char and not char.isascii() and (odd := _ODD_BLANK.match(self.text, self.position)):
                self.repairs["unusual_whitespace"] = None
                self.position = odd.end()
            elif char in _FULL_WIDTH:
                self.repairs["full_width_punctuation"] = None
                return _FULL_WIDTH[char]
            else:
                return char

    def refuse_continuation(self) -> None:
        """Raises `Malformed` if members follow the object's end: a brace too many, and they would be lost."""
        if MEMBER_AFTER_COMMA.match(self.text, self.position):
            raise self._malformed("the object is closed before its last key")

    def _read_array(self, depth: int) -> list[Any]:
        self._enter(depth)
        items: list[Any] = []
        after_comma = False
        while True:
            if self.peek() == "]":
                self._close(after_comma)
                return items
            if items and not after_comma and self._ends_here():
                return items
            items.append(self.read_value(depth, in_object=False))
            after_comma = self._separator("]")

    def _enter(self, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise self._malformed(f"nesting deeper than {MAX_DEPTH} levels")
        self.position += 1

    def _close(self, after_comma: bool) -> None:
        if after_comma:
            self.repairs["trailing_comma"] = None
        self.position += 1

    def _separator(self, closing: str) -> bool:
        """Steps over a comma and says whether there was one; anything else must be `closing` or the end."""
        char = self.peek()
        if char == ",":
            self.position += 1
            return True
        if char != closing and not self._ends_here():
            raise self._malformed(f"expected ',' or '{closing}'")
        return False

    def _ends_here(self) -> bool:
        """Whether only closing braces are missing here; raises `Malformed` if they may not be added."""
        if TAIL.match(self.text, self.position) is None:
            return False
        if not self.may_close:
            raise Malformed("the closing braces are missing", self.position, cut_off=True)
        self.repairs["missing_brace"] = None
        return True

    def _read_key(self, char: str) -> str:
        start = self.position
        if char and char in OPENING_QUOTES:
            end = find_key_end(self.text, start)
            self._note_quotes(char)
            self.position = end + 1
            return self._decode(start + 1, end)
        identifier = _IDENTIFIER.match(self.text, start)
        if identifier is None:
            raise self._malformed("expected a key in double quotes")
        self.repairs["unquoted_key"] = None
        self.position = identifier.end()
        return identifier.group()

    def _note_quotes(self, opener: str) -> None:
        if opener == "'":
            self.repairs["single_quotes"] = None
        elif opener != '"':
            self.repairs["typographic_quotes"] = None

    def _read_string(self, in_object: bool) -> str:
        start = self.position
        end, repairs = find_string_end(self.text, start, in_object)
        self.repairs.update(dict.fromkeys(repairs))
        self.position = end + 1
        return self._decode(start + 1, end)

    def _decode(self, start: int, end: int) -> str:
        value, repairs = decode_string(self.text[start:end])
        self.repairs.update(dict.fromkeys(repairs))
        return value

    def _read_number(self, number: re.Match[str]) -> int | float:
        word = _WORD.match(self.text, self.position)
        literal = number.group()
        if word is not None and word.group().rstrip("/") != literal and not self._comment_after(number.end()):
            raise self._malformed(f"{word.group()[:40]} is not a JSON number")
        try:
            value = SourceFloat.read(literal) if number.group(1) or number.group(2) else read_integer(literal)
        except Malformed as error:
            raise self._malformed(error.reason) from None
        self.position = number.end()
        return value

    def _comment_after(self, position: int) -> bool:
        return self.text.startswith(("//", "/*", "#", "```", "</tool_call>"), position)

    def _read_literal(self) -> Any:
        word = _WORD.match(self.text, self.position)
        name = word.group() if word is not None else ""
        if name in _LITERALS or name in _PYTHON_LITERALS:
            self.position += len(name)
            if name in _LITERALS:
                return _LITERALS[name]
            self.repairs["python_literal"] = None
            return _PYTHON_LITERALS[name]
        if name.lstrip("-+") in ("NaN", "Infinity", "inf", "nan"):
            raise self._malformed(f"{name} is not a JSON number")
        if name:
            raise self._malformed(f"{name[:40]!r} is not a JSON value; text needs double quotes")
        raise self._malformed("a value is missing")

    def _skip_comment(self) -> None:
        block = self.text.startswith("/*", self.position)
        end = self.text.find("*/" if block else "\n", self.position + 1 + block)
        if end < 0:
            self.position = len(self.text)
            raise self._malformed("a comment runs to the end of the text")
        self.repairs["comment"] = None
        self.position = end + (2 if block else 1)

    def _malformed(self, reason: str) -> Malformed:
        return Malformed(reason, self.position, cut_off=self.position >= len(self.text))
