"""Faults reported in public, one row each; ids are those of the reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deedrl.parsing import format_score, parse_action
from deedrl.types import ToolSchema

ROWS = [json.loads(line) for line in Path(__file__).with_name("malformed_calls.jsonl").read_text("utf-8").splitlines()]
STRICT, REPAIR, REJECT = ([row for row in ROWS if row["tier"] == tier] for tier in ("strict", "repair", "reject"))


def ids(rows: list[dict[str, Any]]) -> list[str]:
    return [f"{row['id']}_{row['name']}" for row in rows]


def text_of(row: dict[str, Any]) -> str:
    pieces = row["text"]
    return pieces if isinstance(pieces, str) else "".join(piece * times for piece, times in pieces)


@pytest.mark.parametrize("row", STRICT, ids=ids(STRICT))
def test_valid_text_is_taken_as_it_is(row: dict[str, Any], tools: list[ToolSchema]) -> None:
    action = parse_action(text_of(row), tools, row.get("finish_reason", "stop"))
    assert (action.tier, action.error, action.repairs, action.ignored_actions) == ("strict", None, (), 0)
    assert {"tool_name": action.tool_name, "parameters": action.parameters} == row["call"]
    assert format_score(action) == 1.0


@pytest.mark.parametrize("row", REPAIR, ids=ids(REPAIR))
def test_damaged_text_is_repaired_without_guessing(row: dict[str, Any], tools: list[ToolSchema]) -> None:
    action = parse_action(text_of(row), tools, row.get("finish_reason", "stop"))
    assert (action.tier, action.error) == ("repair", None)
    assert {"tool_name": action.tool_name, "parameters": action.parameters} == row["call"]
    assert action.repairs


@pytest.mark.parametrize("row", REJECT, ids=ids(REJECT))
def test_what_is_no_action_gets_an_error_for_the_model(row: dict[str, Any], tools: list[ToolSchema]) -> None:
    action = parse_action(text_of(row), tools, row.get("finish_reason", "stop"))
    assert (action.tier, action.tool_name, action.parameters, action.repairs) == ("reject", None, {}, ())
    assert action.error is not None
    assert action.error.strip(), "the model is told something"
    # About four characters a token; the model pays for them on every later turn. A44 has to list the tools.
    assert len(action.error) <= (180 if row["id"] == "A44" else 130)
    assert format_score(action) == 0.0


def values(action: Any) -> list[Any]:
    return [type(value) for value in action.parameters.values()]


def test_A51_keeps_the_integer_exact_and_an_int(tools: list[ToolSchema]) -> None:
    action = parse_action('{"tool_name":"get_record","parameters":{"id":"9007199254740993"}}', tools)
    assert values(action) == [int]


def test_A21_is_rejected_when_the_limit_cut_it(tools: list[ToolSchema]) -> None:
    action = parse_action('{"tool_name":"calculator","parameters":{"expression":"120+45"', tools, "length")
    assert action.error is not None
    assert "cut off" in action.error


def test_A19_says_that_the_output_was_cut_off(tools: list[ToolSchema]) -> None:
    row = next(row for row in ROWS if row["id"] == "A19")
    for reason in ("stop", "length"):
        error = parse_action(text_of(row), tools, reason).error  # type: ignore[arg-type]
        assert error is not None
        assert "output was cut off" in error


def test_A13_counts_the_second_action(tools: list[ToolSchema]) -> None:
    row = next(row for row in ROWS if row["id"] == "A13")
    assert parse_action(text_of(row), tools).ignored_actions == 1


def test_A65_counts_the_invented_result_and_the_answer(tools: list[ToolSchema]) -> None:
    row = next(row for row in ROWS if row["id"] == "A65")
    assert parse_action(text_of(row), tools).ignored_actions == 2


@pytest.mark.parametrize("id", ["A19", "A33", "A67", "A68", "A76"])
def test_what_cannot_be_read_is_told_the_shape_and_no_tools(id: str, tools: list[ToolSchema]) -> None:
    row = next(row for row in ROWS if row["id"] == id)
    error = parse_action(text_of(row), tools).error
    assert error is not None
    assert '{"tool_name": "...", "parameters": {...}}' in error
    assert not any(tool.name in error for tool in tools)


def test_A44_lists_every_tool(tools: list[ToolSchema]) -> None:
    error = parse_action('{"tool_name":"search_and_delete","parameters":{"query":"x"}}', tools).error
    assert error is not None
    assert all(tool.name in error for tool in tools)


def test_A49_names_the_field_and_the_type(tools: list[ToolSchema]) -> None:
    error = parse_action('{"tool_name":"read_file","parameters":{"path":"a","offset":"end"}}', tools).error
    assert error is not None
    assert "parameter 'offset' must be integer, got string \"end\"" in error


def test_A57_names_the_missing_field(tools: list[ToolSchema]) -> None:
    error = parse_action('{"tool_name":"search","reasoning":"go"}', tools).error
    assert error is not None
    assert "missing required parameter 'query' (string)" in error


@pytest.mark.parametrize(
    "text",
    [
        '<think>a</think><think>b</think>{"tool_name":"get_time","parameters":{}}',
        '<think>a</think></think>{"tool_name":"get_time","parameters":{}}',
        '<think>a<think>b</think>{"tool_name":"get_time","parameters":{}}</think>{"tool_name":"get_time","parameters":{}}',
        '{"tool_name":"get_time","parameters":{}}\n' * 3,
    ],
    ids=["two_think_blocks", "doubled_closing_tag", "nested_blocks", "three_actions"],
)
def test_F08_repeated_blocks_lower_the_format_score(text: str, tools: list[ToolSchema]) -> None:
    action = parse_action(text, tools)
    assert action.valid
    assert 0.0 < format_score(action) <= 0.5


@pytest.mark.parametrize(
    "text",
    [
        '{"tool_name":"get_time","parameters":{}}',
        '<think>the clock</think>\n{"tool_name":"get_time","parameters":{}}',
        'the clock</think>\n{"tool_name":"get_time","parameters":{}}',
    ],
)
def test_F08_a_lone_well_formed_output_scores_one(text: str, tools: list[ToolSchema]) -> None:
    assert format_score(parse_action(text, tools)) == 1.0


def test_F08_three_actions_score_less_than_two(tools: list[ToolSchema]) -> None:
    call = '{"tool_name":"get_time","parameters":{}}'
    assert format_score(parse_action(call * 3, tools)) < format_score(parse_action(call * 2, tools))
