"""Constrained decoding: a random model writes actions that parse."""

from __future__ import annotations

import asyncio
import json

import jsonschema_rs
import pytest
import torch

from deedrl.policies.local.guide import MAX_REASONING_CHARS, ActionGuides, action_schema
from deedrl.policies.local.policy import LocalPolicy
from deedrl.types import ToolSchema

pytest.importorskip("llguidance")


@pytest.fixture(scope="module")
def loaded(kit):
    return kit.load()


@pytest.fixture(scope="module")
def guided(kit, loaded):
    """Forty turns of a random model under the guide."""

    async def sample():
        policy = LocalPolicy(loaded.model, loaded.renderer, guided=True)
        return await asyncio.gather(*(policy.complete(kit.request(f"e{i}", seed=i, max_tokens=200)) for i in range(40)))

    return asyncio.run(sample())


def guides(loaded):
    vocabulary = loaded.model.get_output_embeddings().weight.shape[0]
    return ActionGuides(loaded.tokenizer, vocabulary, loaded.renderer.turn_end_id)


def allowed(guide, loaded):
    logits = torch.zeros(loaded.model.get_output_embeddings().weight.shape[0])
    guide.mask(logits)
    return {index for index, value in enumerate(logits.tolist()) if value == 0}


def feed(guide, loaded, text):
    for token in loaded.tokenizer(text)["input_ids"]:
        assert token in allowed(guide, loaded), f"{loaded.tokenizer.decode([token])!r} of {text!r} is forbidden"
        guide.accept(token)


def test_every_finished_turn_of_a_random_model_is_an_action_of_the_toolset(kit, guided):
    finished = [c for c in guided if c.finish_reason == "stop"]
    assert len(finished) >= 30
    for completion in finished:
        action = json.loads(completion.text)
        assert list(action) == ["reasoning", "tool_name", "parameters"]
        tool = {t.name: t for t in kit.TOOLS}[action["tool_name"]]
        assert jsonschema_rs.validator_for(tool.parameters).is_valid(action["parameters"])
        assert len(action["reasoning"]) <= MAX_REASONING_CHARS


def test_random_model_reaches_every_tool_and_every_value_of_an_enum(guided):
    actions = [json.loads(c.text) for c in guided if c.finish_reason == "stop"]
    assert {action["tool_name"] for action in actions} == {"set_value", "finish"}
    assert {action["parameters"].get("unit") for action in actions} == {"cm", "inch", None}


def test_guided_completions_say_so(guided):
    assert all(completion.guided for completion in guided)


def test_logprobs_are_those_of_the_constrained_distribution(kit, loaded):
    """Where the guide leaves one token, its log-probability is 0."""

    async def sample():
        policy = LocalPolicy(loaded.model, loaded.renderer, guided=True)
        return await policy.complete(kit.request("e", max_tokens=200))

    completion = asyncio.run(sample())
    guide = guides(loaded).start(kit.TOOLS)
    forced = 0
    for token, logprob in zip(completion.token_ids, completion.logprobs, strict=True):
        choices = allowed(guide, loaded)
        assert token in choices
        if len(choices) == 1:
            forced += 1
            assert logprob == 0.0
        guide.accept(token)
    assert forced > 3


def test_turn_may_end_only_when_the_action_is_complete(kit, loaded):
    guide = guides(loaded).start(kit.TOOLS)
    end = loaded.renderer.turn_end_id
    assert end not in allowed(guide, loaded)
    feed(guide, loaded, '{"reasoning": "Done.", "tool_name": "finish", "parameters": {}}')
    assert allowed(guide, loaded) == {end}


def test_B15_control_tokens_are_never_allowed_inside_strings(kit, loaded):
    guide = guides(loaded).start(kit.TOOLS)
    feed(guide, loaded, '{"reasoning": "a')
    choices = allowed(guide, loaded)
    assert loaded.renderer.turn_end_id not in choices
    assert loaded.tokenizer.convert_tokens_to_ids("<|im_start|>") not in choices


def test_guides_of_turns_are_independent(kit, loaded):
    source = guides(loaded)
    first, second = source.start(kit.TOOLS), source.start(kit.TOOLS)
    feed(first, loaded, '{"reasoning": "a')
    feed(second, loaded, '{"reasoning": "Done.", "tool_name": "finish", "parameters": {}}')
    feed(first, loaded, '", "tool_name": "set_value')


def test_value_outside_an_enum_is_forbidden(kit, loaded):
    guide = guides(loaded).start(kit.TOOLS)
    feed(guide, loaded, '{"reasoning": "", "tool_name": "set_value", "parameters": {"value": 3, "unit": "')
    texts = {loaded.tokenizer.decode([token]) for token in allowed(guide, loaded)}
    assert texts
    assert all("cm".startswith(text) or "inch".startswith(text) or text in ('cm"', 'inch"') for text in texts)


def test_definitions_of_a_tools_schema_are_found(loaded):
    tool = ToolSchema(
        name="paint",
        parameters={
            "type": "object",
            "properties": {"color": {"$ref": "#/$defs/Color"}},
            "required": ["color"],
            "$defs": {"Color": {"enum": ["red", "blue"]}},
        },
    )
    feed(
        guides(loaded).start([tool]), loaded, '{"reasoning": "", "tool_name": "paint", "parameters": {"color": "red"}}'
    )


def test_equal_names_of_definitions_in_two_tools_do_not_mix(loaded):
    def paint(name, *colors):
        properties = {"color": {"$ref": "#/$defs/Color"}}
        definitions = {"Color": {"enum": list(colors)}}
        parameters = {"type": "object", "properties": properties, "required": ["color"], "$defs": definitions}
        return ToolSchema(name=name, parameters=parameters)

    source = guides(loaded)
    tools = [paint("paint", "red"), paint("dye", "blue")]
    for name, color in (("paint", "red"), ("dye", "blue")):
        feed(
            source.start(tools),
            loaded,
            f'{{"reasoning": "", "tool_name": "{name}", "parameters": {{"color": "{color}"}}}}',
        )
    guide = source.start(tools)
    feed(guide, loaded, '{"reasoning": "", "tool_name": "dye", "parameters": {"color": "')
    assert loaded.tokenizer("r")["input_ids"][0] not in allowed(guide, loaded)


@pytest.mark.parametrize(
    "field",
    [
        {"type": "string"},
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
        {"type": "array", "items": {"type": "string"}},
        {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    ],
    ids=["plain", "optional", "list", "nested"],
)
def test_strings_are_bounded_wherever_they_stand(field):
    [branch] = action_schema(
        [ToolSchema(name="t", parameters={"type": "object", "properties": {"x": field}, "required": ["x"]})]
    )["anyOf"]
    [x] = branch["properties"]["parameters"]["properties"].values()
    strings = [x, *x.get("anyOf", []), x.get("items", {}), *x.get("properties", {}).values()]
    assert all("maxLength" in schema for schema in strings if schema.get("type") == "string")


def test_the_tools_own_schema_is_not_changed(kit):
    before = json.dumps([tool.parameters for tool in kit.TOOLS])
    action_schema(kit.TOOLS)
    assert json.dumps([tool.parameters for tool in kit.TOOLS]) == before
