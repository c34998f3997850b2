"""The policies that ship for tests, baselines and demonstrations."""

import json
import random

import anyio
import jsonschema_rs
import pytest

from deedrl.errors import EnvironmentAuthorError
from deedrl.policies.policy import CompletionRequest, action_text
from deedrl.policies.scripted import (
    DemonstrationPolicy,
    EchoPolicy,
    FlakyPolicy,
    NoOpPolicy,
    RandomPolicy,
    ScriptedPolicy,
    SlowPolicy,
    random_value,
)
from deedrl.types import Action, Completion, Message, SamplingParams, Task, ToolSchema

TOOL = ToolSchema(
    name="search",
    parameters={
        "type": "object",
        "properties": {
            "query": {"type": "string", "minLength": 3, "maxLength": 12},
            "kind": {"enum": ["a", "b"]},
            "page": {"type": "integer", "minimum": 1, "maximum": 5},
            "price": {"type": "number", "minimum": 0, "maximum": 2},
            "exact": {"type": "boolean"},
            "tags": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 3},
            "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "where": {"$ref": "#/$defs/Where"},
            "mode": {"const": "fast"},
            "either": {"type": ["integer", "null"], "exclusiveMinimum": 3},
        },
        "required": ["query", "kind", "page", "where"],
        "additionalProperties": False,
        "$defs": {"Where": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}},
    },
)


def request(turn: int = 0, episode_id: str = "e", seed: int = 0) -> CompletionRequest:
    said = [Message(role="assistant", content="a"), Message(role="tool", content="Result: 1")] * turn
    opening = [Message(role="system", content="s"), Message(role="user", content="find blue boots")]
    return CompletionRequest(
        episode_id=episode_id, messages=(*opening, *said), tools=(TOOL,), sampling=SamplingParams(), seed=seed
    )


def ask(policy, **fields) -> Completion:
    return anyio.run(policy.complete, request(**fields))


def test_action_text_is_one_json_object_in_the_order_of_the_format():
    text = action_text(Action(tool_name="search", parameters={"query": "über"}, reasoning="why"))
    assert text == '{"reasoning": "why", "tool_name": "search", "parameters": {"query": "über"}}'


def test_request_knows_its_turn_and_prompt():
    assert (request(0).turn, request(3).turn) == (0, 3)
    assert request(2).task_prompt == "find blue boots"


def test_script_is_played_in_turn_and_then_falls_silent():
    policy = ScriptedPolicy([Action(tool_name="search"), "text"])
    assert json.loads(ask(policy, turn=0).text)["tool_name"] == "search"
    assert ask(policy, turn=1).text == "text"
    assert ask(policy, turn=2).text == ""


def test_script_may_be_a_function_and_give_whole_completions():
    given = Completion(text="x", token_ids=(1, 2))
    assert ask(ScriptedPolicy(lambda request: given)) is given


def test_noop_never_acts():
    assert "{" not in ask(NoOpPolicy()).text


def test_echo_repeats_the_last_message():
    assert ask(EchoPolicy(), turn=1).text == "Result: 1"


@pytest.mark.parametrize("seed", range(40))
def test_random_calls_satisfy_the_schema(seed):
    call = json.loads(ask(RandomPolicy(), seed=seed).text)
    assert call["tool_name"] == "search"
    jsonschema_rs.validate(TOOL.parameters, call["parameters"])


def test_random_policy_depends_on_the_seed_of_the_request_alone():
    texts = [ask(RandomPolicy(), seed=seed).text for seed in (1, 2, 1)]
    assert texts[0] == texts[2] != texts[1]


def test_random_value_of_null_and_unknown_types():
    assert random_value({"type": "null"}, random.Random(0), ["w"], {}) is None
    assert random_value({}, random.Random(0), ["w"], {}) == "w"


def test_demonstrations_are_made_once_an_episode_and_dropped_at_its_end():
    asked: list[str] = []
    task = Task.create("find boots")

    def demonstrate(given: Task) -> list[Action]:
        asked.append(given.id)
        return [Action(tool_name="search"), Action(tool_name="finish")]

    policy = DemonstrationPolicy({"e": task}, demonstrate)
    assert json.loads(ask(policy, turn=0).text)["tool_name"] == "search"
    assert json.loads(ask(policy, turn=1).text)["tool_name"] == "finish"
    assert asked == [task.id]
    anyio.run(policy.release, "e")
    ask(policy, turn=0)
    assert asked == [task.id] * 2


def test_demonstration_that_does_not_end_the_episode_is_the_authors_bug():
    policy = DemonstrationPolicy({"e": Task.create("x")}, lambda task: [Action(tool_name="search")])
    with pytest.raises(EnvironmentAuthorError, match="has 1 actions, but the episode goes on"):
        ask(policy, turn=1)
    with pytest.raises(EnvironmentAuthorError, match="expected a task for episode 'other'"):
        ask(policy, episode_id="other")


def test_flaky_policy_fails_as_often_as_asked_and_only_where_asked():
    policy = FlakyPolicy(NoOpPolicy(), {"e"}, failures=1)
    assert ask(policy, episode_id="other").text
    with pytest.raises(RuntimeError, match="on purpose"):
        ask(policy)
    assert ask(policy).text
    assert policy.version == "noop"


def test_slow_policy_counts_requests_in_flight():
    policy = SlowPolicy(NoOpPolicy(), delay_s=0.01)

    async def three() -> None:
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(policy.complete, request())

    anyio.run(three)
    assert policy.peak_in_flight == 3
    assert policy.version == "noop"
