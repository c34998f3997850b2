"""What holds for every text: no exception, no altered value, linear cost."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deedrl.parsing import format_score, parse_action
from deedrl.parsing.reader import plain, read_all
from deedrl.types import Action, ToolSchema

FREE = [
    ToolSchema(name="free", parameters={"type": "object"}),
    ToolSchema(
        name="note",
        parameters={"type": "object", "properties": {"text": {"type": "string"}, "n": {"type": "integer"}}},
    ),
]
SCALARS = st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    SCALARS | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12
)
OBJECTS = st.dictionaries(st.text(), VALUES, max_size=5)
PIECES = st.sampled_from(
    [
        '{"tool_name":"note","parameters":{"text":"x"}}', '{"tool_name":', '"parameters":', "{", "}", "[", "]", '"',
        "'", "“", "”", "\\", "\\u", ":", ",", "：", "<think>", "</think>", "```", "Observation: 1\n", "//", "/*", "#",
        "\n", "\ufeff", "\ud83c", "note", "1", "-", "1e999", "NaN", "True", " ",
    ]
)  # fmt: skip
LAYOUTS = st.fixed_dictionaries(
    {
        "indent": st.none() | st.integers(0, 3),
        "ensure_ascii": st.booleans(),
        "separators": st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t: ")]),
        "sort_keys": st.booleans(),
    }
)


@given(
    st.text() | st.lists(PIECES | st.text(max_size=3), max_size=25).map("".join), st.sampled_from(["stop", "length"])
)
@settings(max_examples=400, deadline=None)
def test_no_text_raises_and_every_result_is_well_formed(text: str, finish_reason: Any) -> None:
    action = parse_action(text, FREE, finish_reason)
    assert (action.error is None) == (action.tool_name is not None)
    assert bool(action.repairs) == (action.tier == "repair")
    assert (action.tier == "reject") == (action.error is not None)
    assert action.error != ""
    assert 0.0 <= format_score(action) <= 1.0
    json.dumps([action.parameters, action.reasoning, action.error], ensure_ascii=False).encode()


@given(OBJECTS, st.text(), LAYOUTS)
@settings(max_examples=200, deadline=None)
def test_valid_actions_are_strict_and_unaltered(parameters: dict[str, Any], reasoning: str, layout: Any) -> None:
    text = json.dumps({"reasoning": reasoning, "tool_name": "free", "parameters": parameters}, **layout)
    assert parse_action(text, FREE) == Action(tool_name="free", parameters=parameters, reasoning=reasoning)


@given(OBJECTS, LAYOUTS)
@settings(max_examples=200, deadline=None)
def test_the_repairing_reader_reads_valid_json_as_json_does(value: dict[str, Any], layout: Any) -> None:
    read, repairs = read_all(json.dumps(value, **layout))
    assert plain(read) == value
    assert repairs == ()


@given(
    st.text(), st.sampled_from(["```json\n{}\n```", "So: {}\nDone.", "<tool_call>{}</tool_call>", "<think>t</think>{}"])
)
@settings(max_examples=200, deadline=None)
def test_A12_no_repair_changes_a_string(text: str, frame: str) -> None:
    call = json.dumps({"tool_name": "note", "parameters": {"text": text, "n": "3"}}, ensure_ascii=False)
    action = parse_action(frame.replace("{}", call[:-1] + ",}"), FREE)
    assert action.parameters == {"text": text, "n": 3}


@given(st.lists(PIECES, max_size=12).map("".join))
@settings(max_examples=200, deadline=None)
def test_the_canonical_text_of_a_result_is_strict_and_the_same_call(noise: str) -> None:
    action = parse_action(noise + '{"name":"note","arguments":{"text":7,"n":"3",}}', FREE)
    if action.valid:
        canonical = {"reasoning": action.reasoning, "tool_name": action.tool_name, "parameters": action.parameters}
        again = parse_action(json.dumps(canonical), FREE)
        assert again.tier == "strict"
        assert (again.tool_name, again.parameters) == (action.tool_name, action.parameters)


UNITS = [
    "{", '"', "\\", "[", "'", "}", "{}", '{"a":', '{"a":[', "{'a':'b' c", "{“", "{ ", "{/*", "<think>", "</think>",
    "\n", '{"tool_name":"</think>', '{"tool_name":“</think>', '{"tool_name":"note","parameters":{}}', '{"a":"b","', "“",
    ",'", "Observation: \n", '" "', '",“', "{'\"", '{"a":"\\"', "{x:1,y:", " \t", "\u3000", "-", "1",
]  # fmt: skip


@pytest.mark.parametrize(
    "start", ["", '{"tool_name":"', '{"tool_name":“', '{"tool_name":'], ids=["bare", "q", "c", "v"]
)
@pytest.mark.parametrize("unit", UNITS)
def test_A81_cost_grows_linearly_with_the_text(unit: str, start: str) -> None:
    def seconds(length: int) -> float:
        text = start + unit * (length // len(unit))
        began = time.process_time()
        parse_action(text, FREE)
        return time.process_time() - began

    def ratio_is_linear() -> bool:
        short = min(seconds(10_000) for _ in range(3))
        # Eight times the text: linear is 8, quadratic 64. The constant absorbs the clock's grain.
        return seconds(80_000) < 30 * short + 0.05

    # A busy machine spoils single measurements upwards only; a quadratic reader fails every one of them.
    assert any(ratio_is_linear() for _ in range(5))
