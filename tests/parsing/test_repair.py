"""Neighbours of the reported faults: damaged JSON text that has one reading, and the same damage that has two."""

from __future__ import annotations

from typing import Any

import pytest

from deedrl.parsing import parse_action
from deedrl.types import Action, ToolSchema


def file_call(content: str, path: str = "a.txt") -> str:
    """A write_file call whose content is put between double quotes as it is."""
    return f'{{"tool_name":"write_file","parameters":{{"path":"{path}","content":"{content}"}}}}'


def repaired(text: str, tools: list[ToolSchema], *repairs: str) -> dict[str, Any]:
    action = parse_action(text, tools)
    assert (action.error, action.tier) == (None, "repair")
    assert action.repairs == repairs
    return action.parameters


def rejected(text: str, tools: list[ToolSchema]) -> str:
    action = parse_action(text, tools)
    assert action == Action(tier="reject", error=action.error, refused_tool=action.refused_tool)
    assert action.error
    return action.error


@pytest.mark.parametrize(
    ("source", "value"),
    [
        (r"\d+\w", r"\d+\w"),
        (r"a\_b \* \[x\]", r"a\_b \* \[x\]"),
        (r"\x41 \0 \u12", r"\x41 \0 \u12"),
        (r"C:\Users\quinn", r"C:\Users\quinn"),
        (r"\d\n", "\\d\n"),
        ("one\\\ntwo", "one\\\ntwo"),
    ],
)
def test_A73_every_illegal_escape_is_a_literal_backslash(source: str, value: str, tools: list[ToolSchema]) -> None:
    action = parse_action(file_call(source), tools)
    assert action.parameters["content"] == value
    assert "illegal_escape" in action.repairs


def test_A73_legal_escapes_of_a_valid_text_keep_their_meaning(tools: list[ToolSchema]) -> None:
    action = parse_action(file_call(r"C:\new\table"), tools)
    assert (action.tier, action.parameters["content"]) == ("strict", "C:\new\table")


def test_A73_a_path_mixing_legal_and_illegal_escapes_is_ambiguous(tools: list[ToolSchema]) -> None:
    assert "backslash" in rejected(file_call(r"C:\data\new"), tools)


def test_escaped_apostrophe_is_an_apostrophe(tools: list[ToolSchema]) -> None:
    assert repaired(file_call(r"it\'s"), tools, "escaped_apostrophe")["content"] == "it's"


@pytest.mark.parametrize(
    "content",
    ["tab\there", "cr\r\nlf", "bell\x07", "nul\x00", "// not a comment", "a\n# b", "  spaces  ", "trailing,\n}"],
)
def test_A25_raw_characters_inside_a_string_stay(content: str, tools: list[ToolSchema]) -> None:
    text = file_call(content).replace('"}}', '",}}')
    assert parse_action(text, tools).parameters["content"] == content


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ('say "go" now', 'say "go" now'),
        ('"go" now', '"go" now'),
        ('say "go"', 'say "go"'),
        ('say "go", then "stop".', 'say "go", then "stop".'),
        ('print("hi")', 'print("hi")'),
    ],
)
def test_A26_quotes_around_words_survive(source: str, value: str, tools: list[ToolSchema]) -> None:
    assert repaired(file_call(source), tools, "unescaped_quote")["content"] == value


@pytest.mark.parametrize(
    "source",
    ['5" tall', 'say "x', '{"a": 1}', '{"a": "b", "c": "d"}', 'a" "b', '"""doc"""', 'x", "path":"b'],
)
def test_A26_quotes_with_two_readings_are_rejected(source: str, tools: list[ToolSchema]) -> None:
    rejected(file_call(source), tools)


@pytest.mark.parametrize(
    "text",
    [
        '{"tool_name":"tag_items","parameters":{"items":["a "b", "c"]}}',
        '{"tool_name":"write_file","parameters":{"path":"a" "content":"b"}}',
        '{"tool_name":"write_file","parameters":{"path":"a\n,"content":"b"}}',
        '{"tool_name":"search","parameters":{"query":"x}}',
        '{"tool_name":"search","parameters":{"query":x}}',
        '{"tool_name":"search","parameters":{"query":"x"}}, "top_k":3}}',
        '{"tool_name":"search","parameters":{"query":"x"},"top_k":3}',
        '{"tool_name":"search","parameters":{"query":"x"]}',
        '{"tool_name":"search",,"parameters":{"query":"x"}}',
        '{"tool_name":"search","parameters":{"query":"x","query":"y"}}',
        '{"tool_name":"get_record","parameters":{"id":007}}',
        '{"tool_name":"get_record","parameters":{"id":+7}}',
        '{"tool_name":"get_record","parameters":{"id":0x7}}',
        '{"tool_name":"get_record","parameters":{"id":1_000}}',
        '{"tool_name":"get_record","parameters":{"id":Infinity}}',
        '{"tool_name":"get_record","parameters":{"id":-Infinity}}',
        '{"tool_name":"http_get","parameters":{"url":"x","headers":{"a":-1e400}}}',
        '{"tool_name":"search","parameters":{"query":"half \\ud83c"}}',
        '{"tool_name":"search","parameters":{"query":"half \\udf78",}}',
        '{"tool_name":"get_time" // no parameters',
        '{"tool_name":"get_time","parameters":{}, /* never closed',
    ],
    ids=[
        "quote_in_array",
        "missing_comma",
        "missing_quote",
        "missing_last_quote",
        "bare_word_value",
        "brace_too_many",
        "parameter_outside",
        "wrong_bracket",
        "double_comma",
        "A36_duplicate_inside_parameters",
        "leading_zero",
        "plus_sign",
        "hexadecimal",
        "underscore",
        "A33_infinity",
        "A33_minus_infinity",
        "A35_minus_overflow",
        "A71_half_a_pair",
        "A71_half_a_pair_in_damaged_text",
        "comment_hides_the_end",
        "block_comment_open",
    ],
)
def test_ambiguous_or_lossy_text_is_rejected(text: str, tools: list[ToolSchema]) -> None:
    rejected(text, tools)


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("'it is'", "it is"),
        ('"it\'s"', "it's"),
        ("'it's late'", "it's late"),
        (r"'it\'s late'", "it's late"),
        ("'say \"go\"'", 'say "go"'),
        ("'{a: 1, b'", "{a: 1, b"),
    ],
)
def test_A02_single_quotes_and_what_they_hold(source: str, value: str, tools: list[ToolSchema]) -> None:
    action = parse_action(f"{{'tool_name': 'search', 'parameters': {{'query': {source}}}}}", tools)
    assert action.parameters == {"query": value}
    assert "single_quotes" in action.repairs


def test_A02_apostrophe_that_could_close_the_string_is_rejected(tools: list[ToolSchema]) -> None:
    rejected("{'tool_name': 'search', 'parameters': {'query': 'the dogs' toys'}}", tools)


def test_A02_python_literals(tools: list[ToolSchema]) -> None:
    text = "{'tool_name': 'set_flag', 'parameters': {'name': 'a', 'enabled': True}, 'reasoning': None}"
    assert repaired(text, tools, "single_quotes", "python_literal") == {"name": "a", "enabled": True}


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("{“tool_name”: “search”, “parameters”: {“query”: “a, b: c”}}", "a, b: c"),
        ("{“tool_name”: “search”, “parameters”: {“query”: “他说“好”，走”}}", "他说“好”，走"),
        ('{"tool_name"："search"，"parameters"：{"query"："他：“好”，走"}}', "他：“好”，走"),
        ("｛”tool_name”：”search”，”parameters”：｛”query”：”x”｝｝", "x"),
        ("{‘tool_name’: ‘search’, ‘parameters’: {‘query’: ‘it’s’}}", "it’s"),
    ],
)
def test_A29_typographic_structure_with_untouched_values(text: str, query: str, tools: list[ToolSchema]) -> None:
    action = parse_action(text, tools)
    assert (action.tier, action.parameters) == ("repair", {"query": query})


def test_A29_full_width_comma_in_an_array(tools: list[ToolSchema]) -> None:
    text = '{"tool_name":"tag_items","parameters":{"items":["红，"，"蓝"]}}'
    assert repaired(text, tools, "full_width_punctuation") == {"items": ["红，", "蓝"]}


@pytest.mark.parametrize(
    "text",
    [
        '{"tool_name":"tag_items","parameters":{"items":["a","b",],},}',
        '{"tool_name":"tag_items","parameters":{"items":["a","b"\n,]}}',
    ],
)
def test_A05_trailing_commas_anywhere(text: str, tools: list[ToolSchema]) -> None:
    assert repaired(text, tools, "trailing_comma") == {"items": ["a", "b"]}


@pytest.mark.parametrize(
    "text",
    [
        '{"tool_name":"tag_items","parameters":{"items":["a","b"',
        '{"tool_name":"tag_items","parameters":{"items":["a","b"]',
        '{"tool_name":"tag_items","parameters":{"items":["a","b"]}\n',
        '<tool_call>{"tool_name":"tag_items","parameters":{"items":["a","b"]}</tool_call>',
        '```json\n{"tool_name":"tag_items","parameters":{"items":["a","b"]}\n```',
    ],
)
def test_A21_missing_closings_at_the_end(text: str, tools: list[ToolSchema]) -> None:
    action = parse_action(text, tools)
    assert action.parameters == {"items": ["a", "b"]}
    assert "missing_brace" in action.repairs
    assert not parse_action(text, tools, "length").valid


@pytest.mark.parametrize(
    "text",
    [
        '{"tool_name":"tag_items","parameters":{"items":["a",',
        '{"tool_name":"get_record","parameters":{"id":',
        '{"tool_name":"get_record","parameters":{"id',
        '{"tool_name":"set_flag","parameters":{"name":"x","enabled":tru',
        '{"tool_name":"get_record","parameters":{',
        "{",
        '{"tool_name":"search","parameters":{"query":"x\\',
    ],
)
def test_A19_text_that_ends_inside_a_value_is_cut_off(text: str, tools: list[ToolSchema]) -> None:
    if text.endswith("tru"):
        rejected(text, tools)
    else:
        assert "cut off" in rejected(text, tools)


def test_A19_a_complete_action_before_the_cut_still_runs(tools: list[ToolSchema]) -> None:
    action = parse_action('{"tool_name":"get_record","parameters":{"id":7}}\nNow I wi', tools, "length")
    assert action.parameters == {"id": 7}


def test_A60_comments_of_all_kinds(tools: list[ToolSchema]) -> None:
    text = '{ # python\n"tool_name": /* c */ "search", // js\n"parameters": {"query": "http://x#y /*z*/"} }'
    assert repaired(text, tools, "comment") == {"query": "http://x#y /*z*/"}


def test_A62_unquoted_keys_at_every_level(tools: list[ToolSchema]) -> None:
    text = '{tool_name: "http_get", parameters: {url: "x", headers: {Accept-Language: "de", a_1: 1.50}}}'
    assert repaired(text, tools, "unquoted_key") == {"url": "x", "headers": {"Accept-Language": "de", "a_1": 1.5}}


@pytest.mark.parametrize("blank", ["\u00a0", "\u3000", "\u200b", "\u2003"])
def test_A77_odd_blanks_between_tokens(blank: str, tools: list[ToolSchema]) -> None:
    text = f'{{"tool_name":{blank}"search",{blank}"parameters":{{"query":"a{blank}b"}}}}'
    assert repaired(text, tools, "unusual_whitespace") == {"query": f"a{blank}b"}


def test_A63_nesting_up_to_the_bound_is_read(tools: list[ToolSchema]) -> None:
    def text(levels: int) -> str:
        inner = "[" * levels + "]" * levels
        return f'{{"tool_name":"http_get","parameters":{{"url":"x","headers":{{"a":{inner}}}}}}}'

    assert parse_action(text(61), tools).tier == "strict"
    assert "nesting" in rejected(text(62), tools)


def test_A80_integers_up_to_the_bound_are_exact(tools: list[ToolSchema]) -> None:
    digits = "7" * 100
    assert parse_action(f'{{"tool_name":"get_record","parameters":{{"id":{digits}}}}}', tools).parameters == {
        "id": int(digits)
    }
    assert "101 digits" in rejected(f'{{"tool_name":"get_record","parameters":{{"id":7{digits}}}}}', tools)
