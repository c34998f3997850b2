"""What the action parser costs: valid actions of several lengths, and hostile texts up to a million characters."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from statistics import median

from deedrl.benchmarks.measure import BenchmarkResult, Figure, check_count, figure, this_machine, timed
from deedrl.config import require
from deedrl.environments.suite.support.environment import SupportDesk
from deedrl.errors import BenchmarkError
from deedrl.parsing.parser import parse_action
from deedrl.types import Record, ToolSchema

MAX_VALID_US = 50.0
MAX_EXPONENT = 1.2
MAX_RATIO = 2.0
VALID_CHARS = (100, 300, 1000, 3000, 10_000, 100_000)
LONGEST_WITH_TARGET = 3000
"""Characters; the time of longer actions is that of reading so much JSON, which has no bound."""
SHORTEST_HOSTILE = 15_625

_CALL = '{"tool_name":"reply_customer","parameters":{"message":"Hello."}}'
_WRONG_CALL = '{"tool_name":"escalate","parameters":{"a":1}}'
HOSTILE: dict[str, tuple[str, str, str]] = {
    "open braces": ("", "{", ""),
    "braces": ("", "{}", ""),
    "objects in objects": ("", '{"a":', ""),
    "arrays in arrays": ('{"tool_name":', "[", ""),
    "objects in arrays": ("", '{"a":[', ""),
    "quotes": ("", '"', ""),
    "quotes in a string": ('{"tool_name":"', '"', ""),
    "quoted words in a string": ('{"tool_name":"', ' "a" ', ""),
    "strings in a row": ('{"tool_name":"', '","', ""),
    "typographic quotes": ('{"tool_name":“', "“", ""),
    "single quotes": ("", "{'a':'b' c", ""),
    "backslashes": ('{"tool_name":"', "\\", ""),
    "escaped quotes": ('{"tool_name":"', '\\"', ""),
    "halves of characters": ('{"tool_name":"', "\\ud83c", '"}'),
    "think tags in strings": ("", '{"tool_name":"</think>', ""),
    "open think tags": ("", "<think>", ""),
    "closing think tags": ("", "</think>", ""),
    "code fences": ("", "```json\n", ""),
    "comments": ('{"tool_name":"x",', "#\n", ""),
    "made-up results": ("", "Observation: \n", ""),
    "open comments": ("", "{/*", "*/"),
    "open keys": ("", '{"a', ""),
    "full-width punctuation": ("", "｛a：1，", ""),
    "unknown tools": ("", '{"tool_name":"escalat","parameters":{}}', ""),
    "namespaces": ("", '{"name":"a.b.c.d.e.f.g.h"}', ""),
    "decimals": ('{"tool_name":1.', "1", ""),
    "digits": ('{"tool_name":', "1", ""),
    "blanks": ("", " \t", ""),
    "short members": ("", "{x:1,y:", ""),
    "a long list": ('{"tool_name":"escalate","parameters":{"order_id":[', "1,", "1]}}"),
    "a long parameter": ('{"tool_name":"escalate","parameters":{"', "b", '":1}}'),
    "wrong calls": ("", _WRONG_CALL, ""),
    "many calls": ("", _CALL, ""),
}
"""Name → how a hostile text begins, what it repeats, and how it ends."""
_VALID_AFTER_ALL = frozenset({"many calls"})
"""The first call of many is run and the others are counted; all other texts hold no action."""


class ParserSettings(Record, frozen=True):
    """How much to parse."""

    longest: int = 1_000_000
    """Characters of the longest hostile texts; the others have a quarter of that, a sixteenth and so on."""
    calls: int = 1000
    """Of the shortest valid action a repetition; longer ones get fewer."""
    repetitions: int = 3

    def __post_init__(self) -> None:
        least = 4 * SHORTEST_HOSTILE
        require(
            self.longest >= least, "longest", f"expected at least {least}, for a growth to show; got {self.longest}"
        )
        for name in ("calls", "repetitions"):
            require(getattr(self, name) >= 1, name, f"expected at least 1, got {getattr(self, name)}")


class _Growth(Record, frozen=True):
    """How the time of one kind of text grows, one value a repetition."""

    name: str
    exponents: tuple[float, ...]
    """Slope of log(time) over log(length): 1 is linear, 2 is quadratic."""
    ratios: tuple[float, ...]
    """Time a character in the longest text over that in the shortest."""
    longest_ns: tuple[float, ...]
    """Nanoseconds a character in the longest text."""


def benchmark_parser(settings: ParserSettings) -> BenchmarkResult:
    """Parses everything `repetitions` times. Raises `BenchmarkError` for an action that is not what was written."""
    machine = this_machine()
    tools = SupportDesk.tools.schemas()
    valid = [_valid_figure(chars, settings, tools) for chars in VALID_CHARS]
    lengths = hostile_lengths(settings.longest)
    growths = [_growth(name, lengths, settings.repetitions, tools) for name in HOSTILE]
    by_exponent = max(growths, key=lambda growth: median(growth.exponents))
    by_ratio = max(growths, key=lambda growth: median(growth.ratios))
    by_time = max(growths, key=lambda growth: median(growth.longest_ns))
    worst = [
        figure(f"worst exponent: {by_exponent.name}", "", by_exponent.exponents, at_most=MAX_EXPONENT),
        figure(f"worst growth a character: {by_ratio.name}", "x", by_ratio.ratios, at_most=MAX_RATIO),
        figure(f"slowest text: {by_time.name}", "ns/char", by_time.longest_ns),
    ]
    details = [
        each
        for growth in growths
        for each in (
            figure(f"exponent: {growth.name}", "", growth.exponents),
            figure(f"growth a character: {growth.name}", "x", growth.ratios),
            figure(f"longest text: {growth.name}", "ns/char", growth.longest_ns),
        )
    ]
    return BenchmarkResult(
        benchmark="parser",
        settings={**{name: getattr(settings, name) for name in settings.__struct_fields__}, "shortest": lengths[0]},
        counts={"valid lengths": len(valid), "hostile kinds": len(growths), "hostile lengths": len(lengths)},
        figures=(*valid, *worst),
        machine=machine,
        details=tuple(details),
    )


# ---------------------------------------------------------------- valid actions


def valid_text(chars: int) -> str:
    """A strict action of so many characters, with quotes, line breaks and letters beyond ASCII in its message."""
    sentence = 'Your "order 4821" left on Monday.\nIt arrives in Köln on Friday. '
    message = ""
    while (missing := chars - len(_as_action(message))) > 0:
        # Half of what is missing, since a character may be written as two.
        message += (sentence * (missing // len(sentence) + 1))[: max(1, missing // 2)]
    text = _as_action(message)
    check_count("characters of a valid action", chars, len(text))
    return text


def _as_action(message: str) -> str:
    fields = {"reasoning": "The customer asks.", "tool_name": "reply_customer", "parameters": {"message": message}}
    return json.dumps(fields, ensure_ascii=False)


def _valid_figure(chars: int, settings: ParserSettings, tools: Sequence[ToolSchema]) -> Figure:
    text = valid_text(chars)
    _check_strict(text, tools)
    calls = max(1, settings.calls * VALID_CHARS[0] // chars)

    def parse() -> None:
        for _ in range(calls):
            parse_action(text, tools)

    values = [timed(parse)[1].cpu_s / calls * 1e6 for _ in range(settings.repetitions)]
    target = MAX_VALID_US if chars <= LONGEST_WITH_TARGET else None
    return figure(f"valid action of {chars:,} characters", "µs", values, at_most=target)


def _check_strict(text: str, tools: Sequence[ToolSchema]) -> None:
    action = parse_action(text, tools)
    sent = json.loads(text)
    if action.tier != "strict" or action.parameters != sent["parameters"] or action.reasoning != sent["reasoning"]:
        raise BenchmarkError(
            f"expected a valid action of {len(text)} characters to be taken as it is, got tier '{action.tier}' "
            f"({action.error}); this is a bug of the parser: run its tests"
        )


# ---------------------------------------------------------------- hostile texts


def hostile_lengths(longest: int) -> list[int]:
    """Powers of four apart, up to `longest` and from about 16,000 on, the shortest first."""
    lengths = [longest]
    while lengths[0] // 4 >= SHORTEST_HOSTILE:
        lengths.insert(0, lengths[0] // 4)
    return lengths


def hostile_text(name: str, chars: int) -> str:
    """At most so many characters of the kind `name`, whole repetitions only."""
    start, unit, end = HOSTILE[name]
    return start + unit * ((chars - len(start) - len(end)) // len(unit)) + end


def exponent(lengths: Sequence[float], seconds: Sequence[float]) -> float:
    """Slope of the least-squares line through (log length, log seconds)."""
    xs = [math.log(length) for length in lengths]
    ys = [math.log(max(second, 1e-9)) for second in seconds]
    x_mean, y_mean = math.fsum(xs) / len(xs), math.fsum(ys) / len(ys)
    products = math.fsum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True))
    return products / math.fsum((x - x_mean) ** 2 for x in xs)


def _growth(name: str, lengths: Sequence[int], repetitions: int, tools: Sequence[ToolSchema]) -> _Growth:
    texts = [hostile_text(name, length) for length in lengths]
    sizes = [len(text) for text in texts]
    calls = [max(1, lengths[-1] // (4 * length)) for length in lengths]  # short ones take too little to be timed once

    def seconds_of(text: str, calls: int) -> float:
        action, spent = timed(lambda: [parse_action(text, tools) for _ in range(calls)][-1])
        check_count(f"actions in a text of {name}", int(name in _VALID_AFTER_ALL), int(action.valid))
        return spent.cpu_s / calls

    rounds = [[seconds_of(text, times) for text, times in zip(texts, calls, strict=True)] for _ in range(repetitions)]
    return _Growth(
        name=name,
        exponents=tuple(exponent(sizes, seconds) for seconds in rounds),
        ratios=tuple((seconds[-1] / sizes[-1]) / (seconds[0] / sizes[0]) for seconds in rounds),
        longest_ns=tuple(seconds[-1] / sizes[-1] * 1e9 for seconds in rounds),
    )
