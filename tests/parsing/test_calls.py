"""Key names, tool names and parameter types: what is adapted by the schema and what is not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deedrl.errors import EnvironmentAuthorError
from deedrl.parsing import parse_action
from deedrl.policies.policy import action_text
from deedrl.types import Action, ToolSchema


def one_parameter(schema: Any, *, required: bool = True, **extra: Any) -> list[ToolSchema]:
    parameters = {"type": "object", "properties": {"v": schema}, "required": ["v"] if required else [], **extra}
    return [ToolSchema(name="t", parameters=parameters)]


def send(value: str, tools: list[ToolSchema]) -> Action:
    return parse_action(f'{{"tool_name":"t","parameters":{{"v":{value}}}}}', tools)


@pytest.mark.parametrize(
    ("schema", "source", "value", "repair"),
    [
        ({"type": "integer"}, '"-3"', -3, "text_to_integer"),
        ({"type": "integer"}, "3.0", 3, "float_to_integer"),
        ({"type": "number"}, '"2.5"', 2.5, "text_to_number"),
        ({"type": "number"}, '"7"', 7, "text_to_number"),
        ({"type": "boolean"}, '"true"', True, "text_to_boolean"),
        ({"type": "string"}, "3.10", "3.10", "number_to_text"),
        ({"type": "string"}, "1e5", "1e5", "number_to_text"),
        ({"type": "array", "items": {"type": "integer"}}, '["1", 2]', [1, 2], "text_to_integer"),
        ({"type": "array", "items": {"type": "string"}}, "[1, 2.50]", ["1", "2.50"], "number_to_text"),
        ({"type": "object"}, '"{\\"a\\": [1.5]}"', {"a": [1.5]}, "text_to_object"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, '"3"', 3, "text_to_integer"),
        ({"type": ["integer", "null"]}, '"3"', 3, "text_to_integer"),
        ({"$ref": "#/$defs/Count"}, '"3"', 3, "text_to_integer"),
        ({"type": "object", "properties": {"n": {"$ref": "#/$defs/Count"}}}, '{"n": "3"}', {"n": 3}, "text_to_integer"),
        ({"type": "object", "additionalProperties": {"type": "string"}}, '{"n": 3}', {"n": "3"}, "number_to_text"),
    ],
)
def test_A46_type_slips_are_adapted_by_the_schema(schema: Any, source: str, value: Any, repair: str) -> None:
    tools = one_parameter(schema, **{"$defs": {"Count": {"type": "integer"}}})
    action = send(source, tools)
    assert (action.error, action.repairs) == (None, (repair,))
    assert action.parameters == {"v": value}
    assert type(action.parameters["v"]) is type(value)


@pytest.mark.parametrize(
    ("schema", "source"),
    [
        ({"type": "integer"}, '"3.0"'),
        ({"type": "integer"}, '"3 items"'),
        ({"type": "integer"}, '"007"'),
        ({"type": "integer"}, '"٣"'),
        ({"type": "integer"}, "3.5"),
        ({"type": "integer"}, "true"),
        ({"type": "integer"}, "null"),
        ({"type": "integer"}, '"' + "9" * 200 + '"'),
        ({"type": "number"}, '"1e999"'),
        ({"type": "number"}, '"NaN"'),
        ({"type": "boolean"}, '"yes"'),
        ({"type": "boolean"}, "1"),
        ({"type": "string"}, "true"),
        ({"type": "string"}, '["a"]'),
        ({"type": "array"}, '"a, b"'),
        ({"type": "array"}, '"{}"'),
        ({"type": "object"}, '"{\\"a\\": 1, \\"a\\": 2}"'),
        ({"type": "string", "enum": ["low", "high"]}, '"Low"'),
        ({"type": "integer", "minimum": 1}, '"0"'),
    ],
)
def test_A49_what_does_not_fit_is_rejected_and_named(schema: Any, source: str) -> None:
    error = send(source, one_parameter(schema)).error
    assert error is not None
    assert "parameter 'v'" in error


@pytest.mark.parametrize("text", ["02134", "2134", "1.0", "true", "null", "[1]", '{"a": 1}', "NaN", " 3 ", "// x"])
def test_A12_text_for_a_string_parameter_is_never_retyped(text: str, tools: list[ToolSchema]) -> None:
    call = json.dumps({"tool_name": "lookup_zip", "parameters": {"code": text}})
    assert parse_action(call, tools).parameters == {"code": text}
    damaged = parse_action(f"```{call[:-1]},}}```", tools)
    assert (damaged.tier, damaged.parameters) == ("repair", {"code": text})


def test_A12_a_union_with_string_keeps_the_string() -> None:
    action = send('"3"', one_parameter({"anyOf": [{"type": "integer"}, {"type": "string"}]}))
    assert (action.tier, action.parameters) == ("strict", {"v": "3"})


def test_enum_error_lists_the_options() -> None:
    error = send('"mid"', one_parameter({"type": "string", "enum": ["low", "high"]})).error
    assert error is not None
    assert 'parameter \'v\' must be one of "low", "high", got "mid"' in error


def test_nested_error_names_the_path() -> None:
    schema = {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}}}
    error = send('[{"n": 1}, {"n": "x"}]', one_parameter(schema)).error
    assert error is not None
    assert "parameter 'v[1].n' must be integer, got string \"x\"" in error


def test_optional_null_counts_as_absent(tools: list[ToolSchema]) -> None:
    action = parse_action('{"tool_name":"read_file","parameters":{"path":"a","offset":null}}', tools)
    assert (action.parameters, action.repairs) == ({"path": "a"}, ("null_parameter_dropped",))


def test_null_where_the_schema_admits_it_stays() -> None:
    schema = {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    action = send("null", one_parameter(schema, required=False))
    assert (action.tier, action.parameters) == ("strict", {"v": None})


def test_unknown_parameter_is_named_with_the_nearest_one(tools: list[ToolSchema]) -> None:
    error = parse_action('{"tool_name":"search","parameters":{"query":"x","topk":3}}', tools).error
    assert error is not None
    assert "no parameter \"topk\"; did you mean 'top_k'?" in error


def test_unknown_parameter_is_rejected_even_if_the_schema_forgot_to_forbid_it() -> None:
    tools = one_parameter({"type": "integer"})
    assert not parse_action('{"tool_name":"t","parameters":{"v":1,"w":2}}', tools).valid
    open_to_more = one_parameter({}, additionalProperties=True)
    assert parse_action('{"tool_name":"t","parameters":{"v":1,"w":2}}', open_to_more).parameters == {"v": 1, "w": 2}


@pytest.mark.parametrize("sent", ["null", '""', "[]", '"{}"', "{}"])
def test_A55_nothing_sent_to_a_tool_that_takes_nothing(sent: str, tools: list[ToolSchema]) -> None:
    assert parse_action(f'{{"tool_name":"get_time","parameters":{sent}}}', tools).parameters == {}


@pytest.mark.parametrize("sent", ["null", '""', "[]", "{}"])
def test_A57_nothing_sent_to_a_tool_that_needs_something(sent: str, tools: list[ToolSchema]) -> None:
    error = parse_action(f'{{"tool_name":"search","parameters":{sent}}}', tools).error
    assert error is not None
    assert "missing required parameter 'query'" in error


@pytest.mark.parametrize("key", ["parameters", "arguments"])
def test_G08_arguments_as_text_and_as_an_object_are_one_internal_form(key: str, tools: list[ToolSchema]) -> None:
    """At the border both come in; inside, in the store and in what a template renders there is the object alone."""
    found = [
        parse_action(json.dumps({"tool_name": "search", key: sent}), tools)
        for sent in ({"query": "moss", "top_k": 3}, '{"query": "moss", "top_k": 3}', {"query": "moss", "top_k": "3"})
    ]
    assert [action.parameters for action in found] == [{"query": "moss", "top_k": 3}] * 3
    texts = {action_text(action) for action in found}
    assert [json.loads(text)["parameters"] for text in texts] == [{"query": "moss", "top_k": 3}]


@pytest.mark.parametrize("sent", ['"not json"', '"kelp"', "7", "true", '"[1]"', '"{\\"query\\": "', '"\\"kelp\\""'])
def test_A45_parameters_that_are_no_object(sent: str, tools: list[ToolSchema]) -> None:
    error = parse_action(f'{{"tool_name":"search","parameters":{sent}}}', tools).error
    assert error is not None
    assert '"parameters" must be an object' in error


@pytest.mark.parametrize("inner", ['{"query": "x"}', "{'query': 'x',}", json.dumps('{"query": "x"}')])
def test_A09_encoded_parameters(inner: str, tools: list[ToolSchema]) -> None:
    action = parse_action(json.dumps({"tool_name": "search", "parameters": inner}), tools)
    assert action.parameters == {"query": "x"}
    assert "parameters_as_text" in action.repairs


@pytest.mark.parametrize(
    "text",
    [
        '{"name":"search","parameters":{"query":"x"}}',
        '{"tool":"search","args":{"query":"x"}}',
        '{"function":"search","params":{"query":"x"}}',
        '{"type":"tool_use","name":"search","input":{"query":"x"}}',
        '{"type":"function","name":"search","arguments":"{\\"query\\":\\"x\\"}"}',
        '{"thought":"t","action":"search","action_input":{"query":"x"}}',
    ],
)
def test_A58_alias_keys(text: str, tools: list[ToolSchema]) -> None:
    action = parse_action(text, tools)
    assert (action.tool_name, action.parameters) == ("search", {"query": "x"})
    assert "alias_key" in action.repairs


def test_A15_the_canonical_key_wins_over_an_alias(tools: list[ToolSchema]) -> None:
    text = '{"tool_name":"search","name":"finish","parameters":{"query":"x"},"arguments":{"answer":"y"}}'
    action = parse_action(text, tools)
    assert (action.tool_name, action.parameters) == ("search", {"query": "x"})


@pytest.mark.parametrize(
    "text",
    [
        '{"name":"search","action":"finish","arguments":{"query":"x"}}',
        '{"tool_name":"search","arguments":{"query":"x"},"args":{"query":"y"}}',
        '{"tool_name":"search","query":"x"}',
        '{"name":"Bob","age":7}',
        '{"command":"search","parameters":{"query":"x"}}',
    ],
    ids=["two_tool_aliases", "two_parameter_aliases", "flat_parameters", "not_an_action", "not_in_the_closed_list"],
)
def test_A58_ambiguous_or_unlisted_keys_are_rejected(text: str, tools: list[ToolSchema]) -> None:
    assert not parse_action(text, tools).valid


@pytest.mark.parametrize(
    ("name", "repair"),
    [
        ("SEARCH", "tool_name_case"),
        ("Search", "tool_name_case"),
        (" search ", "tool_name_case"),
        ("functions.search", "tool_name_prefix"),
        ("mcp__web__search", "tool_name_prefix"),
        ("a/b:Search", "tool_name_prefix"),
    ],
)
def test_A41_A42_case_and_namespace_are_adapted_and_recorded(name: str, repair: str, tools: list[ToolSchema]) -> None:
    action = parse_action(json.dumps({"tool_name": name, "parameters": {"query": "x"}}), tools)
    assert (action.tool_name, action.tier, action.repairs) == ("search", "repair", (repair,))


@pytest.mark.parametrize("name", ["research", "search2", "search.delete", "search()", "", "searchs", "re-search"])
def test_A44_names_are_not_matched_by_part(name: str, tools: list[ToolSchema]) -> None:
    assert not parse_action(json.dumps({"tool_name": name, "parameters": {"query": "x"}}), tools).valid


@pytest.mark.parametrize("name", ["LOOKUP", "ns.lookup", "ns.LookUp"])
def test_A41_several_matches_are_ambiguous(name: str) -> None:
    tools = [ToolSchema(name="lookup"), ToolSchema(name="Lookup")]
    assert not parse_action(json.dumps({"tool_name": name, "parameters": {}}), tools).valid
    assert parse_action('{"tool_name":"Lookup","parameters":{}}', tools).tool_name == "Lookup"


@pytest.mark.parametrize("name", ["null", "7", "{}", "true", '["search"]'])
def test_A70_tool_names_that_are_no_text(name: str, tools: list[ToolSchema]) -> None:
    error = parse_action(f'{{"tool_name":{name},"parameters":{{"query":"x"}}}}', tools).error
    assert error is not None
    assert '"tool_name" must be a string' in error


@pytest.mark.parametrize(
    ("name", "known", "told"),
    [
        ("serach", ["search", "finish"], "There is no tool \"serach\"; did you mean 'search'?"),
        ("refund", ["search", "finish"], 'There is no tool "refund"; there are: search, finish'),
        ("refund", [], 'There is no tool "refund"; there are: none'),
        ("refund", [f"t{n}" for n in range(40)], 'There is no tool "refund"; use one of those listed at the start'),
    ],
    ids=["near", "few", "none", "many"],
)
def test_an_unknown_tool_is_told_what_helps_and_no_more(name: str, known: list[str], told: str) -> None:
    tools = [ToolSchema(name=tool, description="A long description.") for tool in known]
    assert parse_action(json.dumps({"tool_name": name, "parameters": {}}), tools).error == told


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('{"tool_name":"search","parameters":{"top_k":3}}', "search"),
        ('{"tool_name":"Search","parameters":["x"]}', "search"),
        ('I try {"tool_name":"search","query":"x"}', "search"),
        ('{"tool_name":"serach","parameters":{"query":"x"}}', None),
        ('{"tool_name":["search"],"parameters":{"query":"x"}}', None),
        ('{"tool_name":"search","parameters":{"query":"x', None),
        ("", None),
    ],
)
def test_a_known_tool_called_wrongly_is_kept_beside_the_error(
    text: str, name: str | None, tools: list[ToolSchema]
) -> None:
    action = parse_action(text, tools)
    assert (action.valid, action.tool_name, action.refused_tool) == (False, None, name)


def test_parameters_that_do_not_fit_are_named_and_nothing_else(tools: list[ToolSchema]) -> None:
    error = parse_action('{"tool_name":"search","parameters":{"top_k":"many"}}', tools).error
    assert error == (
        "search: missing required parameter 'query' (string); parameter 'top_k' must be integer, got string \"many\""
    )


def test_a_reason_that_quotes_the_model_is_cut(tools: list[ToolSchema]) -> None:
    key = "k" * 5000
    error = parse_action(f'{{"tool_name":"search","parameters":{{"{key}":1,"{key}":2}}}}', tools).error
    assert error is not None
    assert error.startswith("Not valid JSON: the key 'kkk")
    assert "…" in error
    assert len(error) < 180


def test_reasoning_of_another_type_is_kept_as_text(tools: list[ToolSchema]) -> None:
    action = parse_action('{"reasoning":["a"],"tool_name":"get_time","parameters":{}}', tools)
    assert (action.reasoning, action.repairs) == ('["a"]', ("reasoning_not_text",))


@pytest.mark.parametrize("schema", [{"type": "objct"}, {"type": "object", "$ref": "http://localhost/x.json"}])
def test_a_wrong_schema_is_the_authors_error(schema: dict[str, Any]) -> None:
    with pytest.raises(EnvironmentAuthorError, match="'t'"):
        parse_action('{"tool_name":"t","parameters":{}}', [ToolSchema(name="t", parameters=schema)])


def test_a_changed_schema_is_not_served_from_the_cache() -> None:
    tools = one_parameter({"type": "integer"})
    assert send("3", tools).tier == "strict"
    tools[0].parameters["properties"]["v"] = {"type": "boolean"}
    assert not send("3", tools).valid
