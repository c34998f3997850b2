"""A question with its answer and the way to it, and short ways to write one down."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction

from deedrl.environments.suite.data.goal import Call
from deedrl.environments.suite.data.office import Office
from deedrl.rewards.answers import Expected


class Unfit(Exception):
    """The office drawn has no clear answer to this question (a tie, nothing to count)."""


@dataclass(frozen=True)
class Draft:
    """What a family makes of an office."""

    prompt: str
    answer: Expected
    evidence: Sequence[str]
    way: Sequence[Call]


@dataclass(frozen=True)
class Family:
    """How the questions of a family may come out on each level, and what asks them."""

    outcomes: Mapping[str, Sequence[str]]
    ask: Mapping[str, Callable[[Office, str], Draft]]
    """Level → a function of office and outcome; raises `Unfit`."""


def describe(table: str, reasoning: str = "I need the columns.") -> Call:
    return Call(tool_name="describe", parameters={"table": table}, reasoning=reasoning)


def query(sql: str, reasoning: str) -> Call:
    return Call(tool_name="query", parameters={"sql": sql}, reasoning=reasoning)


def search(file: str, text: str, limit: int | None, reasoning: str) -> Call:
    parameters = {"file": file, "text": text} | ({} if limit is None else {"limit": limit})
    return Call(tool_name="search_log", parameters=parameters, reasoning=reasoning)


def answer(expected: Expected, reasoning: str = "") -> Call:
    """The last call of a way, which says the answer as the demonstration writes it."""
    value = written(expected)
    return Call(tool_name="answer", parameters={"value": value}, reasoning=reasoning or f"The result is {value}.")


def written(expected: Expected) -> str:
    """The answer as a text, numbers rounded to their decimals."""
    value = expected.value
    if expected.kind == "nothing" or value == []:
        return "none"
    if isinstance(value, list):
        return ", ".join(", ".join(member) if isinstance(member, list) else member for member in value)
    if expected.decimals is not None:
        return str(Decimal(str(value)).quantize(Decimal(1).scaleb(-expected.decimals), ROUND_HALF_UP))
    return str(value)


def number(value: int) -> Expected:
    return Expected(kind="number", value=value)


def rounded(value: Fraction, decimals: int) -> Expected:
    """A number that may be rounded; kept to 20 digits, more than any two roundings could differ in."""
    exact = Decimal(value.numerator) / Decimal(value.denominator)
    return Expected(kind="number", value=str(exact), decimals=decimals, percent="points")


def text(value: str) -> Expected:
    return Expected(kind="text", value=value)
