"""Where a damaged string ends and what its escapes mean: the part of repair that could change a value, kept apart.

A closing quote is believed only when structure follows it. Quotes inside a string are accepted when they come in
pairs that open after a gap and close before one, as around a quoted word; every other reading is an error.
"""

from __future__ import annotations

import re

from deedrl.parsing.strict_json import Malformed
from deedrl.reasoning import CLOSING_TAG, OPENING_TAG

DOUBLE, SINGLE = '"', "'"
OPENING_QUOTES = frozenset("\"'“”„‘’＂")
_CURLY_CLOSING = {"“": "”", "”": "”", "„": "”“", "‘": "’", "’": "’", "＂": "＂"}

_BLANK = r"[\s\u200b\u2060\ufeff]*+"
_COMMENT = r"//|/\*|\#"
_KEY = (
    r'(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"'
    r"|'[^'\\]*+(?:\\.[^'\\]*+)*+'"
    r'|[“”„‘’＂][^“”„‘’＂"\n]*+[“”’＂]'
    r"|[A-Za-z_][\w.-]*+)"
)
TAIL = re.compile(_BLANK + r"(?:</tool_call>|```|<\|im_end\|>)?" + _BLANK + r"\Z")
"""What may follow a complete value when only closing braces are missing."""
_AFTER_IN_OBJECT = re.compile(
    rf"{_BLANK}(?:[}}｝]|{_COMMENT}|[,，]{_BLANK}(?:[}}｝]|\Z|{_COMMENT}|{_KEY}{_BLANK}[:：]))", re.DOTALL
)
MEMBER_AFTER_COMMA = re.compile(rf"{_BLANK}[,，]{_BLANK}{_KEY}{_BLANK}[:：]", re.DOTALL)
_AFTER_IN_ARRAY = re.compile(rf"{_BLANK}(?:[\]］,，]|{_COMMENT})")
_BLANK_THEN_COLON = re.compile(_BLANK + "[:：]")
_STOPS = {
    DOUBLE: re.compile(r'\\.|"', re.DOTALL),
    SINGLE: re.compile(r"\\.|'", re.DOTALL),
}
_CURLY_STOPS = re.compile(r"\\.|[“”„‘’＂\"]", re.DOTALL)
_GAP_BEFORE = frozenset(" \t\r\n([=")
_GAP_AFTER = frozenset(" \t\r\n.,;!?)]>。，；！？）")
_LOOKS_LIKE_STRUCTURE = re.compile(rf"{OPENING_TAG}|{CLOSING_TAG}|<tool_call|[{{\[]\s*\"|\"\"\"", re.IGNORECASE)

_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_LEGAL_ESCAPES = {
    '"': '"',
    "\\": "\\",
    "/": "/",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
}
_WINDOWS_PATH = re.compile(r"[A-Za-z]:\\|\\\\")
_CONTROL = re.compile(r"[\x00-\x1f]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def find_string_end(text: str, start: int, in_object: bool) -> tuple[int, tuple[str, ...]]:
    """Returns the position of the closing quote of the string value opened at `start`, and the repairs used.

    `in_object` says whether the value is a member of an object (else of an array, where stray quotes are always
    ambiguous). Raises `Malformed` if no end or more than one reading is possible. Linear in the string's length:
    each look-ahead stops at the next quote.
    """
    opener = text[start]
    if opener in _STOPS:
        return _find_straight_end(text, start, in_object)
    return _find_curly_end(text, start, in_object), ("typographic_quotes",)


def find_key_end(text: str, start: int) -> int:
    """Returns the position of the quote that closes the key opened at `start`; keys hold no stray quotes."""
    opener = text[start]
    stops = _STOPS.get(opener, _CURLY_STOPS)
    for stop in stops.finditer(text, start + 1):
        if stop.group()[0] != "\\":
            return stop.start()
    raise Malformed("the text ends inside a key", len(text), cut_off=True)


def decode_string(raw: str) -> tuple[str, tuple[str, ...]]:
    """Resolves the escapes of a string's source `raw`; returns the value and the repairs used.

    Legal escapes mean what they mean; ``\\'`` is an apostrophe; every other escape is a literal backslash. A
    Windows path that mixes illegal escapes with ``\\n``-like legal ones is ambiguous and raises `Malformed`.
    """
    repairs: dict[str, None] = {}
    if _CONTROL.search(raw):
        repairs["raw_control_character"] = None
    value = raw
    if "\\" in raw:
        value = _ESCAPE.sub(lambda match: _unescape(match, repairs), raw)
        if "illegal_escape" in repairs and "control_escape" in repairs and _WINDOWS_PATH.match(raw):
            raise Malformed("a path mixes escapes such as \\n with plain backslashes; write every backslash as \\\\")
        repairs.pop("control_escape", None)
    if not value.isascii() and _SURROGATE.search(value):
        value = _join_surrogates(value)
    return value, tuple(repairs)


def _unescape(match: re.Match[str], repairs: dict[str, None]) -> str:
    code, char = match.groups()
    if code is not None:
        return chr(int(code, 16))
    if char in _LEGAL_ESCAPES:
        if char in "bfnrt":
            repairs["control_escape"] = None
        return _LEGAL_ESCAPES[char]
    if char == "'":
        repairs["escaped_apostrophe"] = None
        return "'"
    repairs["illegal_escape"] = None
    return "\\" + char


def _join_surrogates(value: str) -> str:
    try:
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        raise Malformed("a string holds half of a surrogate pair") from None


def _structure_follows(text: str, position: int, in_object: bool) -> bool:
    after = _AFTER_IN_OBJECT if in_object else _AFTER_IN_ARRAY
    return after.match(text, position) is not None or TAIL.match(text, position) is not None


def _find_straight_end(text: str, start: int, in_object: bool) -> tuple[int, tuple[str, ...]]:
    quote = text[start]
    inner: list[int] = []
    apostrophe = False
    for stop in _STOPS[quote].finditer(text, start + 1):
        position = stop.start()
        if text[position] == "\\":
            continue
        if _structure_follows(text, position + 1, in_object):
            if inner:
                _check_inner_quotes(text, start, inner, position)
            return position, _quote_repairs(quote, bool(inner) or apostrophe)
        if quote == SINGLE and text[position - 1].isalnum() and text[position + 1].isalnum():
            apostrophe = True
            continue
        if not in_object or _BLANK_THEN_COLON.match(text, position + 1):
            raise Malformed("a quote inside a string is not escaped, or a comma is missing", position)
        inner.append(position)
    raise Malformed("the text ends inside a string", len(text), cut_off=True)


def _quote_repairs(quote: str, unescaped: bool) -> tuple[str, ...]:
    repairs = ("single_quotes",) if quote == SINGLE else ()
    return (*repairs, "unescaped_quote") if unescaped else repairs


def _check_inner_quotes(text: str, start: int, inner: list[int], end: int) -> None:
    """Raises unless the unescaped quotes at `inner` pair up like the quotes around a word."""
    ambiguous = Malformed('a quote inside a string is not escaped; write it as \\"', inner[0])
    if len(inner) % 2 or _LOOKS_LIKE_STRUCTURE.search(text, start + 1, end):
        raise ambiguous
    for opening, closing in zip(inner[::2], inner[1::2], strict=True):
        opens = (opening == start + 1 or text[opening - 1] in _GAP_BEFORE) and text[opening + 1] not in _GAP_BEFORE
        closes = (closing + 1 == end or text[closing + 1] in _GAP_AFTER) and not text[closing - 1].isspace()
        if not (opens and closes):
            raise ambiguous


def _find_curly_end(text: str, start: int, in_object: bool) -> int:
    """Typographic quotes nest, so a quotation inside the string closes itself before the string does."""
    opener = text[start]
    closing = _CURLY_CLOSING[opener]
    nested = 0
    for stop in _CURLY_STOPS.finditer(text, start + 1):
        char = stop.group()
        position = stop.start()
        if char == "’" == closing and text[position - 1].isalnum() and text[position + 1 : position + 2].isalnum():
            continue
        if char == opener and char not in closing:
            nested += 1
        elif char in closing and nested:
            nested -= 1
        elif (char in closing or char == DOUBLE) and _structure_follows(text, position + 1, in_object):
            return position
        elif char in closing:
            raise Malformed("a typographic quote inside a string leaves its end unclear", position)
    raise Malformed("the text ends inside a string", len(text), cut_off=True)
