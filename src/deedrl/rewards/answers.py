"""Whether an answer a model wrote is the answer wanted: numbers, texts, dates, sets, rankings, or that there is none.

All comparisons are exact up to what the author allows, and none accepts a part of a text. An answer that gives two
different values, or hedges, is no answer: whoever lists all options would be right every time. Nothing here reads
state, evaluates text or keeps anything; every function may be used by itself.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import date
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal

from deedrl.errors import TaskError
from deedrl.rewards.numerals import chinese_number
from deedrl.types import Record

LONGEST_ANSWER = 2000
"""Characters; a longer text is no answer."""

NOTHING = frozenset({"none", "null", "nothing", "n/a", "nil", "empty", "no rows", "[]", "{}"})
"""Ways to say that there is nothing; a blank answer is not one of them."""

HEDGES = re.compile(
    r"\b(?:or|not|never|no|neither|nor|either|maybe|perhaps|about|around|roughly|approximately|almost|nearly|between|"
    r"than|least|most|except|unless|minus|plus|times|if|unknown|unsure)\b|n['’]t\b|[?~≈<>≤≥±]"
)
_CURRENCY = "$€£¥"
_GROUPED = r"[1-9]\d{0,2}(?:(?:,\d{3})+|(?:[ '’]\d{3})+)(?:\.\d+)?"
_CONTINENTAL = r"[1-9]\d{0,2}(?:[. ]\d{3})+,\d+|0,\d+|\d+,\d{1,2}(?!\d)"
_NUMBER = re.compile(
    rf"(?<![^\s(\[\"'=:])(?P<sign>[+-]?)(?P<currency>[{_CURRENCY}]?)\s?(?P<sign2>[+-]?)"
    rf"(?P<digits>{_CONTINENTAL}|{_GROUPED}|\d+(?:\.\d*)?|\.\d+)(?P<exponent>[eE][+-]?\d{{1,3}}(?!\d))?"
    rf"\s?(?P<unit>%|[{_CURRENCY}]|[^\W\d_]+(?:[²³]|/[^\W\d_]+)?)?(?=$|\s|[.,;:!?)\]\"'](?:\s|$|[.,;:!?)\]\"']))"
)
_ENDING = re.compile(r"[\s.,;:!]+$")
_LEAD = re.compile(r"^(?:(?:the|my)\s+)?(?:final\s+)?(?:answer|result)(?:\s+is\b\s*:?|\s*[:=])\s*", re.IGNORECASE)


class Expected(Record, frozen=True, kw_only=True):
    """The answer wanted, as an author stores it in ``goal_state``; compared by `same_answer`."""

    kind: Literal["number", "text", "date", "set", "ranking", "nothing"]
    value: str | float | int | list[Any] | None = None
    """A number (or its digits as text, exact), a text, an ISO date, the members of a set, or the groups of a ranking:
    those of one group are tied and may come in any order."""
    tolerance: float = 0.0
    """Largest absolute difference of a number."""
    decimals: int | None = None
    """A number may also be rounded to so many decimals; at a half both neighbours are right."""
    percent: Literal["refuse", "points", "fraction"] = "refuse"
    """What ``42%`` is: wrong, 42, or 0.42."""
    in_sentence: bool = False
    """A number may stand in a sentence; see `number_in_sentence`."""
    units: dict[str, float] = {}
    """Unit → its size in the unit of `value`; with any, a word after the number must be one of them."""


def same_answer(given: str, expected: Expected) -> bool:
    """Whether `given` says what `expected` asks for; `TaskError` if `expected` does not fit its own kind."""
    value = expected.value
    if expected.kind == "nothing":
        return same_nothing(given)
    if expected.kind == "number" and isinstance(value, str | int | float) and not isinstance(value, bool):
        read = number_in_sentence if expected.in_sentence else read_number
        return is_near(read(given, expected.percent, expected.units), value, expected.tolerance, expected.decimals)
    if expected.kind == "text" and isinstance(value, str):
        return same_text(given, value)
    if expected.kind == "date" and isinstance(value, str):
        return same_date(given, value)
    if expected.kind == "set" and _are_texts(value):
        return same_set(given, value)  # type: ignore[arg-type]
    if expected.kind == "ranking" and isinstance(value, list) and all(map(_are_texts, value)):
        return same_ranking(given, value)
    raise TaskError(f"an answer of the kind '{expected.kind}' cannot have the value {value!r}; see docs/answers.md")


def same_number(
    given: str,
    wanted: str | float | int | Decimal | Fraction,
    tolerance: float = 0.0,
    decimals: int | None = None,
    percent: Literal["refuse", "points", "fraction"] = "refuse",
    units: Mapping[str, float] | None = None,
) -> bool:
    """Whether `given` is the number `wanted`, within `tolerance` or rounded to `decimals`; see `read_number`."""
    return is_near(read_number(given, percent, units), wanted, tolerance, decimals)


def is_near(
    number: Fraction | None,
    wanted: str | float | int | Decimal | Fraction,
    tolerance: float = 0.0,
    decimals: int | None = None,
) -> bool:
    """Whether `number` is `wanted`, within `tolerance` or rounded to `decimals`; never if it is None."""
    goal, slack = _exact(wanted), _exact(tolerance)
    if number is None:
        return False
    return abs(number - goal) <= slack or (decimals is not None and number in roundings(goal, decimals))


def read_number(
    text: str,
    percent: Literal["refuse", "points", "fraction"] = "refuse",
    units: Mapping[str, float] | None = None,
) -> Fraction | None:
    """The number that all of `text` is, exact, with at most one word (a unit) after it; None if it is anything else.

    Separators of thousands are commas, spaces and apostrophes between groups of three; a comma before one or two last
    digits is a decimal comma.
    """
    text = final_text(text)
    if len(text) > LONGEST_ANSWER:
        return None
    chinese = chinese_number(text)
    if chinese is not None:
        return Fraction(chinese)
    match = _NUMBER.fullmatch(_ENDING.sub("", text))
    return None if match is None or HEDGES.search(text.casefold()) else _value(match, percent, units)


def number_in_sentence(
    text: str,
    percent: Literal["refuse", "points", "fraction"] = "refuse",
    units: Mapping[str, float] | None = None,
) -> Fraction | None:
    """The one number that `text` holds, as in ``The total is 72 clips.``; None if there are several, or if it hedges.

    The same number may stand there several times. A sentence that has nothing to do with the question is read all the
    same (``Solved: 1``): where the answer can be asked for by itself, `read_number` is the better one.
    """
    alone = read_number(text, percent, units)
    text = final_text(text)
    if alone is not None or len(text) > LONGEST_ANSWER or HEDGES.search(text.casefold()):
        return alone
    rest, found = text, set()
    for match in reversed(list(_NUMBER.finditer(text))):
        value = _value(match, percent, units)
        if value is None:
            return None
        found.add(value)
        rest = rest[: match.start()] + " " + rest[match.end() :]
    if len(found) != 1 or any(character.isnumeric() for character in rest):
        return None
    return found.pop()


def roundings(value: Fraction, decimals: int) -> set[Fraction]:
    """`value` rounded to `decimals`, half up, half down and half to even."""
    scaled = value * 10**decimals
    below = math.floor(scaled)
    left = scaled - below
    nearest = {below} if left < Fraction(1, 2) else {below + 1} if left > Fraction(1, 2) else {below, below + 1}
    return {Fraction(number) / 10**decimals for number in nearest}


def same_text(given: str, wanted: str) -> bool:
    """Whether the whole of `given` is `wanted`, whatever the case, width, spaces, quotes and the full stop."""
    return _plain(given) == _plain(wanted)


def same_nothing(given: str) -> bool:
    """Whether `given` says that there is nothing, in a word of `NOTHING`; a blank answer says nothing at all."""
    return _plain(given) in NOTHING


def same_date(given: str, wanted: str) -> bool:
    """Whether `given` is the ISO date `wanted`; a date that could be two days (03/04/2024) is no date."""
    try:
        goal = date.fromisoformat(wanted)
    except ValueError as error:
        raise TaskError(f"expected a date as YYYY-MM-DD, got '{wanted}'") from error
    return read_date(given) == goal


_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_FULL_MONTHS = (
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
)


def read_date(text: str) -> date | None:
    """The date that `text` is: ISO (also with midnight), 5.3.2024, 13/3/2024, 5 March 2024 or March 5, 2024."""
    text = _plain(text)
    if match := re.fullmatch(r"(\d{4})([-/.])(\d{1,2})\2(\d{1,2})(?:[t ]00:00(?::00(?:\.0+)?)?z?)?", text):
        return _date(match[1], match[3], match[4])
    if match := re.fullmatch(r"(\d{1,2})\.\s?(\d{1,2})\.\s?(\d{4})", text):
        return _date(match[3], match[2], match[1])
    if match := re.fullmatch(r"(\d{1,2})/(\d{1,2})/(\d{4})", text):
        readings = {_date(match[3], match[2], match[1]), _date(match[3], match[1], match[2])} - {None}
        return readings.pop() if len(readings) == 1 else None
    if match := re.fullmatch(r"(\d{1,2})(?:st|nd|rd|th|\.)?\s(?:of\s)?([a-z]+)\.?,?\s(\d{4})", text):
        return _date(match[3], _month(match[2]), match[1])
    if match := re.fullmatch(r"([a-z]+)\.?\s(\d{1,2})(?:st|nd|rd|th)?,?\s(\d{4})", text):
        return _date(match[3], _month(match[1]), match[2])
    return None


def same_set(given: str, wanted: Sequence[str]) -> bool:
    """Whether `given` lists the members of `wanted` in any order and no others; repetitions do not count.

    Separated by new lines, semicolons or commas, with ``and`` before the last, or as a JSON list. An empty set is
    answered in a word of `NOTHING`.
    """
    goal = {_plain(member) for member in wanted}
    if not goal:
        return same_nothing(given)
    return any(set(items) == goal for items in _splits(given, goal))


def same_ranking(given: str, wanted: Sequence[Sequence[str]]) -> bool:
    """Whether `given` lists all members of the groups of `wanted`, group after group, each once."""
    groups = [sorted(_plain(member) for member in group) for group in wanted]
    goal = {member for group in groups for member in group}
    if not goal:
        return same_nothing(given)
    return any(_in_order(items, groups) for items in _splits(given, goal))


def final_text(text: str) -> str:
    r"""`text` in normal width, or what stands in its last ``\boxed{}``, without ``The answer is`` before it."""
    text = unicodedata.normalize("NFKC", text[: LONGEST_ANSWER + 1]).replace("−", "-").replace("{,}", ",").strip()
    start = text.rfind("\\boxed{")
    if start >= 0:
        text = _braced(text, start + len("\\boxed"))
    text = text.strip()
    if len(text) > 2 and text[0] == text[-1] == "$":
        text = text[1:-1].strip()
    text = re.sub(r"^\\(?:text|mathrm|mathbf)\{([^{}]*)\}$", r"\1", text)
    return _LEAD.sub("", text.strip())


# ------------------------------------------------------------ inside


def _braced(text: str, start: int) -> str:
    """What stands between the brace at `start` and the one that closes it; empty if none does."""
    depth = 0
    for index in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:
            return text[start + 1 : index]
    return ""


def _value(match: re.Match[str], percent: str, units: Mapping[str, float] | None) -> Fraction | None:
    """The number of `match` in the wanted unit; None if percent or unit are not what the task allows."""
    if match["sign"] and match["sign2"]:
        return None
    digits = match["digits"].replace(" ", "").replace("'", "").replace("’", "")
    if re.fullmatch(_CONTINENTAL, match["digits"]):
        digits = digits.replace(".", "").replace(",", ".")
    sign = "-" if "-" in match["sign"] + match["sign2"] else ""
    number = Fraction(Decimal(f"{sign}{digits.replace(',', '')}{match['exponent'] or ''}"))
    unit = match["unit"] or match["currency"]
    if unit == "%" or unit.casefold() == "percent":
        return {"points": number, "fraction": number / 100}.get(percent)
    if not units or not unit:
        return number
    sizes = {name.casefold(): size for name, size in units.items()} | dict(units)
    size = units.get(unit, sizes.get(unit.casefold()))
    return None if size is None else number * _exact(size)


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(member, str) for member in value)


def _exact(value: str | float | int | Decimal | Fraction) -> Fraction:
    """`value` as it is written: 0.1 is a tenth; `TaskError` if it is no finite number."""
    try:
        return value if isinstance(value, Fraction) else Fraction(Decimal(str(value)))
    except (ArithmeticError, ValueError) as error:
        raise TaskError(f"expected a finite number to compare with, got {value!r}") from error


def _plain(text: str) -> str:
    """Without what does not matter: case, width, quotes, repeated spaces, a full stop at the end."""
    text = _ENDING.sub("", " ".join(final_text(text).casefold().split()))
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'`":
        text = text[1:-1].strip()
    return text


def _date(year: str, month: str, day: str) -> date | None:
    try:
        return date(int(year), int(month), int(day))
    except ValueError:
        return None


def _month(word: str) -> str:
    """Number of a month by its name or its first three letters; 0 if it is none."""
    if word in _FULL_MONTHS:
        return str(_FULL_MONTHS.index(word) + 1)
    short = word[:3] if word == "sept" else word
    return str(_MONTHS.index(short) + 1 if short in _MONTHS else 0)


def _splits(given: str, goal: set[str]) -> list[list[str]]:
    """`given` as a list: read as JSON, or cut at its strongest separator; names with commas in them stay whole."""
    text = final_text(given)
    if len(text) > LONGEST_ANSWER:
        return []
    if text.startswith("["):
        try:
            items = json.loads(text)
        except (ValueError, RecursionError):
            items = None
        if isinstance(items, list):
            return [[_plain(str(item)) for item in items]]
        text = text.strip("[]")
    separator = next((mark for mark in ("\n", ";", ",") if mark in text), None)
    pieces = (
        [_plain(re.sub(r"^\s*(?:[-*•]|\d+[.)])\s+", "", piece)) for piece in text.split(separator)]
        if separator
        else [_plain(text)]
    )
    pieces = [re.sub(r"^and ", "", piece) if piece not in goal else piece for piece in pieces if piece]
    last = pieces[-1].split(" and ") if pieces and pieces[-1] not in goal else pieces[-1:]
    return [[*pieces[:-1], *last], [_plain(text)]]


def _in_order(items: list[str], groups: list[list[str]]) -> bool:
    start = 0
    for group in groups:
        if sorted(items[start : start + len(group)]) != group:
            return False
        start += len(group)
    return start == len(items)
