"""What stands around an action: reasoning, drafts, wrappers, further actions, invented results."""

from __future__ import annotations

import pytest

from deedrl.parsing import format_score, note_on_ignored, parse_action
from deedrl.reasoning import REASONING_TAGS
from deedrl.types import ToolSchema

REAL = '{"tool_name":"search","parameters":{"query":"real"}}'
DRAFT = '{"tool_name":"finish","parameters":{"answer":"draft"}}'


@pytest.mark.parametrize(
    "text",
    [
        f"<think>{DRAFT}</think>{REAL}",
        f"<think>a {DRAFT}</think><think>{DRAFT}</think>{REAL}",
        f"{DRAFT}</think>{REAL}",
        f"I could send {DRAFT} or {DRAFT}.\n</think>\n{REAL}",
        f"<think>{DRAFT}</think>{DRAFT}</think>{REAL}",
        f"<think>a<think>{DRAFT}</think>{DRAFT}</think>{REAL}",
        f'broken draft {{"tool_name": oops </think>{REAL}',
        f'<think>a tag "</think>" in {DRAFT}</think>{REAL}',
        f"<thinking>{DRAFT}</thinking>\n{REAL}",
        f"<THINK>{DRAFT}</THINK>\n{REAL}",
    ],
)
def test_A38_drafts_in_reasoning_never_run(text: str, tools: list[ToolSchema]) -> None:
    action = parse_action(text, tools)
    assert (action.tool_name, action.parameters) == ("search", {"query": "real"})
    assert action.ignored_actions == 0


@pytest.mark.parametrize(("opening", "closing"), REASONING_TAGS)
def test_A38_A40_drafts_in_the_reasoning_of_any_model_family_never_run(
    opening: str, closing: str, tools: list[ToolSchema]
) -> None:
    for text in (f"{opening}\nI could send {DRAFT}\n{closing}\n{REAL}", f"I could send {DRAFT}\n{closing}{REAL}"):
        action = parse_action(text, tools)
        assert (action.tool_name, action.ignored_actions, format_score(action)) == ("search", 0, 1.0)
        assert action.reasoning == f"I could send {DRAFT}"
    assert not parse_action(f"{opening}{DRAFT}{closing}", tools).valid
    assert not parse_action(f"{opening}{DRAFT}", tools).valid
    quoted = parse_action(f'{{"tool_name":"finish","parameters":{{"answer":"{opening} and {closing}"}}}}', tools)
    assert quoted.parameters == {"answer": f"{opening} and {closing}"}


@pytest.mark.parametrize(
    "text", [f"<think>{DRAFT}</think>", f"<think>hm {DRAFT}", f"{DRAFT}</think>", f"<think>a</think>{DRAFT}</think>"]
)
def test_A38_an_action_only_in_reasoning_is_rejected(text: str, tools: list[ToolSchema]) -> None:
    assert not parse_action(text, tools).valid


def test_A40_reasoning_of_the_block_is_kept(tools: list[ToolSchema]) -> None:
    assert parse_action(f"look it up\n</think>{REAL}", tools).reasoning == "look it up"


def test_own_reasoning_key_wins_over_the_block(tools: list[ToolSchema]) -> None:
    text = '<think>long</think>{"reasoning":"short","tool_name":"get_time","parameters":{}}'
    assert parse_action(text, tools).reasoning == "short"


@pytest.mark.parametrize("tag", ["<think>", "</think>", "<tool_call>", "```", "Observation: 1", "\n<tool_response>"])
def test_A18_tags_inside_a_string_are_text(tag: str, tools: list[ToolSchema]) -> None:
    text = f'Here:\n{{"tool_name":"finish","parameters":{{"answer":"a {tag} b"}}}}'
    action = parse_action(text, tools)
    assert action.parameters == {"answer": f"a {tag} b"}
    assert action.ignored_actions == 0


@pytest.mark.parametrize(
    "text",
    [
        f"```json\r\n{REAL}\r\n```\r\n",
        f"````md\n```json\n{REAL}\n```\n````",
        f"~~~\n{REAL}\n~~~",
        f"```\n{REAL}",
    ],
)
def test_A06_fences_of_all_kinds(text: str, tools: list[ToolSchema]) -> None:
    action = parse_action(text, tools)
    assert (action.parameters, action.repairs) == ({"query": "real"}, ("code_fence",))


@pytest.mark.parametrize(
    "text",
    [
        f"mkdir -p out/{{a,b}} and then {REAL}",
        f"f(x) = {{ x if x > 0 }} {REAL}",
        f"it's {{}} or {{'a': 1}} {REAL}",
        f'a note {{"mood": "good"}} {REAL}',
        f"set {{1, 2}} {REAL} {{",
        f"[{REAL}]",
        f"{REAL}}}}}",
        f"{REAL} trailing garbage \\ \" ' ]",
    ],
)
def test_A07_braces_in_prose_are_prose(text: str, tools: list[ToolSchema]) -> None:
    action = parse_action(text, tools)
    assert (action.parameters, action.repairs) == ({"query": "real"}, ("surrounding_text",))


@pytest.mark.parametrize(
    "text",
    [
        '{"plan": [{"tool_name":"finish","parameters":{"answer":"x"}}]}',
        '{"tool_name":"write_file","parameters":{"path":"a","content":"x" y ' + DRAFT + '"}}',
        '{"parameters":{"a": oops ' + DRAFT,
    ],
)
def test_an_action_inside_another_object_never_runs(text: str, tools: list[ToolSchema]) -> None:
    assert not parse_action(text, tools).valid


def test_A13_the_first_valid_action_wins_and_invalid_ones_count(tools: list[ToolSchema]) -> None:
    action = parse_action('{"tool_name":"nope","parameters":{}}\n' + REAL + REAL, tools)
    assert (action.parameters, action.ignored_actions) == ({"query": "real"}, 2)


def test_A13_a_broken_second_action_counts(tools: list[ToolSchema]) -> None:
    assert parse_action(REAL + '{"tool_name":"sea', tools).ignored_actions == 1


def test_A13_the_model_is_told_what_was_ignored(tools: list[ToolSchema]) -> None:
    assert "1 further" in note_on_ignored(parse_action(REAL + DRAFT, tools))
    assert note_on_ignored(parse_action(REAL, tools)) == ""


@pytest.mark.parametrize(
    "mark", ["Observation: 36", "tool result: 36", "<tool_response>36</tool_response>", "Result: 36", "Error: no"]
)
def test_A65_nothing_that_rests_on_an_invented_result_runs(mark: str, tools: list[ToolSchema]) -> None:
    action = parse_action(f'{{"tool_name":"nope","parameters":{{}}}}\n{mark}\n{DRAFT}', tools)
    assert action.error is not None
    assert '"nope"' in action.error


@pytest.mark.parametrize(
    "mark", ["Observation: 36", "TOOL OUTPUT: 36", "<tool_response>36</tool_response>", "result：36"]
)
def test_A65_invented_results_count(mark: str, tools: list[ToolSchema]) -> None:
    assert parse_action(f"{REAL}\n{mark}", tools).ignored_actions == 1


@pytest.mark.parametrize("text", ["{}", "null", "[]", "7", '""', '"no action"', "\ud83c", "{}" * 9, "\x00", "```"])
def test_A67_json_without_an_action_is_rejected(text: str, tools: list[ToolSchema]) -> None:
    error = parse_action(text, tools).error
    assert error is not None
    error.encode()


def test_A68_no_tools_and_no_text() -> None:
    error = parse_action("", []).error
    assert error is not None
    assert "empty" in error


@pytest.mark.parametrize(
    ("text", "repairs"),
    [
        ('[TOOL_CALLS] [{"name": "search", "arguments": {"query": "real"}}]', ("surrounding_text", "alias_key")),
        (
            '<|python_tag|>{"name": "search", "parameters": {"query": "real"}}<|eom_id|>',
            ("surrounding_text", "alias_key"),
        ),
        (f"{REAL}<|eot_id|>", ("surrounding_text",)),
        (f"\u202b{REAL}\u202c", ("surrounding_text",)),
    ],
    ids=["mistral", "llama", "end_of_turn", "marks_of_direction"],
)
def test_A15_wrappers_of_other_model_families(text: str, repairs: tuple[str, ...], tools: list[ToolSchema]) -> None:
    action = parse_action(text, tools)
    assert (action.parameters, action.repairs) == ({"query": "real"}, repairs)


@pytest.mark.parametrize(
    "text",
    [
        '[TOOL_CALLS]search[ARGS]{"query": "real"}',
        '<｜tool▁call▁begin｜>function<｜tool▁sep｜>search\n```json\n{"query": "real"}\n```<｜tool▁call▁end｜>',
        '{"type":"function","function":{"name":"search","arguments":"{\\"query\\": \\"real\\"}"}}',
    ],
    ids=["mistral_with_the_name_outside", "deepseek", "openai_with_a_level_more"],
)
def test_A76_calls_outside_the_contract_are_told_its_shape(text: str, tools: list[ToolSchema]) -> None:
    error = parse_action(text, tools).error
    assert error is not None
    assert '{"tool_name": "...", "parameters": {...}}' in error


@pytest.mark.parametrize("text", [r"{\"tool_name\":\"get_record\",\"parameters\":{\"id\":7}}"])
def test_A11_an_object_with_every_quote_escaped(text: str, tools: list[ToolSchema]) -> None:
    action = parse_action(text, tools)
    assert (action.parameters, action.repairs) == ({"id": 7}, ("action_in_string",))
