from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec
import pytest

from deedrl.benchmarks import parser
from deedrl.benchmarks.measure import BenchmarkResult
from deedrl.benchmarks.parser import (
    HOSTILE,
    VALID_CHARS,
    ParserSettings,
    benchmark_parser,
    exponent,
    hostile_lengths,
    hostile_text,
    valid_text,
)
from deedrl.errors import BenchmarkError, ConfigError
from deedrl.parsing import parse_action
from deedrl.types import Action, ToolSchema

TINY = ParserSettings(longest=62_500, calls=2, repetitions=2)
FEW = {name: HOSTILE[name] for name in ("open braces", "braces", "blanks", "many calls")}


@pytest.fixture
def few_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parser, "HOSTILE", FEW)
    monkeypatch.setattr(parser, "VALID_CHARS", VALID_CHARS[:4])


@pytest.fixture
def result(few_kinds: None) -> BenchmarkResult:
    return benchmark_parser(TINY)


@pytest.mark.parametrize("chars", [*VALID_CHARS, 101, 137])
def test_valid_texts_are_actions_of_exactly_that_length(chars: int) -> None:
    text = valid_text(chars)
    assert len(text) == chars
    assert json.loads(text)["tool_name"] == "reply_customer"


def test_a_length_that_holds_no_action_is_refused() -> None:
    with pytest.raises(BenchmarkError, match="expected 10 characters"):
        valid_text(10)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_texts_grow_with_the_length_and_hold_what_they_should(name: str) -> None:
    short, long = hostile_text(name, 1000), hostile_text(name, 4000)
    assert 900 < len(short) <= 1000
    assert 3900 < len(long) <= 4000
    assert parse_action(short, parser.SupportDesk.tools.schemas()).valid is (name == "many calls")


def test_lengths_are_powers_of_four_apart() -> None:
    assert hostile_lengths(1_000_000) == [15_625, 62_500, 250_000, 1_000_000]
    assert hostile_lengths(62_500) == [15_625, 62_500]


@pytest.mark.parametrize("power", [1.0, 1.5, 2.0])
def test_the_exponent_of_a_power_law_is_its_power(power: float) -> None:
    lengths = [10, 100, 1000]
    assert exponent(lengths, [3e-6 * length**power for length in lengths]) == pytest.approx(power)


def test_figures_are_there_for_every_length_and_kind(result: BenchmarkResult) -> None:
    names = [one.name for one in result.figures]
    assert names[:4] == [f"valid action of {chars:,} characters" for chars in VALID_CHARS[:4]]
    assert [name.split(":")[0] for name in names[4:]] == ["worst exponent", "worst growth a character", "slowest text"]
    assert len(result.details) == 3 * len(FEW)
    assert result.counts == {"valid lengths": 4, "hostile kinds": 4, "hostile lengths": 2}
    assert all(len(one.values) == 2 for one in (*result.figures, *result.details))
    assert all(one.low > 0 for one in result.figures[:4])


def test_the_worst_figures_are_the_worst_of_the_details(result: BenchmarkResult) -> None:
    for worst, each in (("worst exponent", "exponent"), ("worst growth", "growth a character"), ("slowest", "longest")):
        [shown] = [one for one in result.figures if one.name.startswith(worst)]
        assert shown.median == max(one.median for one in result.details if one.name.startswith(each))


@pytest.mark.usefixtures("few_kinds")
def test_a_parser_that_changes_what_is_valid_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(text: str, tools: Sequence[ToolSchema]) -> Action:
        action = parse_action(text, tools)
        return msgspec.structs.replace(action, parameters={"message": "Hello."})

    monkeypatch.setattr(parser, "parse_action", careless)
    with pytest.raises(BenchmarkError, match="to be taken as it is"):
        benchmark_parser(TINY)


@pytest.mark.usefixtures("few_kinds")
def test_a_parser_that_runs_hostile_text_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    def gullible(text: str, tools: Sequence[ToolSchema]) -> Action:
        return parse_action(text, tools) if text.startswith('{"reas') else Action(tool_name="escalate")

    monkeypatch.setattr(parser, "parse_action", gullible)
    with pytest.raises(BenchmarkError, match="expected 0 actions in a text of open braces, got 1"):
        benchmark_parser(TINY)


def test_settings_too_small_to_show_growth_are_refused() -> None:
    with pytest.raises(ConfigError, match="longest: expected at least 62500"):
        ParserSettings(longest=1000)
