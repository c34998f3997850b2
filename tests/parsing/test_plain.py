"""Tools that take what the model writes: the parser, the prompt, what an author may declare."""

from __future__ import annotations

import pytest

from deedrl import Environment, tool
from deedrl.errors import EnvironmentAuthorError
from deedrl.parsing import format_score, parse_action
from deedrl.policies.policy import action_text
from deedrl.rollouts.prompting import PromptVariant, system_prompt
from deedrl.types import Action, FinishReason, ToolSchema

SAY = ToolSchema(
    name="say",
    parameters={"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    plain_text="text",
)
OTHER = ToolSchema(name="look")


@pytest.mark.parametrize(
    ("text", "said", "reasoning"),
    [
        ("Hello.", "Hello.", ""),
        ('  {"tool_name": "say"}\n', '{"tool_name": "say"}', ""),
        ("<think>Be kind.</think>\n\nHello.", "Hello.", "Be kind."),
        ("Be kind.</think>Hello.", "Hello.", "Be kind."),
        ("[THINK]Be kind.[/THINK]Hello.", "Hello.", "Be kind."),
        ("<thinking>Be <b>kind</b>.</thinking>Hello.", "Hello.", "Be <b>kind</b>."),
        ("<think>One.</think>Two.</think>Hello.", "Hello.", "One.</think>Two."),
        ("half \ud800 of a pair", "half ? of a pair", ""),
    ],
)
def test_all_of_a_completion_is_the_call(text: str, said: str, reasoning: str) -> None:
    action = parse_action(text, [SAY])
    assert (action.tool_name, action.parameters, action.reasoning) == ("say", {"text": said}, reasoning)
    assert (action.valid, format_score(action)) == (True, 1.0)


@pytest.mark.parametrize(
    ("text", "finish", "error"),
    [
        ("Hello, I", "length", "The answer was cut off"),
        (" \n", "stop", "The answer was empty"),
        ("<think>Be kind.</think> ", "stop", "The answer was empty"),
        ("<think>Be kind. Hello.", "stop", "The reasoning was never closed"),
        ("\n◁think▷Be kind. Hello.", "stop", "The reasoning was never closed"),
    ],
)
def test_what_is_no_answer(text: str, finish: FinishReason, error: str) -> None:
    action = parse_action(text, [SAY], finish)
    assert not action.valid
    assert str(action.error).startswith(error)


def test_beside_other_tools_calls_are_json() -> None:
    assert not parse_action("Hello.", [SAY, OTHER]).valid
    assert parse_action('{"tool_name": "say", "parameters": {"text": "Hello."}}', [SAY, OTHER]).valid


def test_demonstrations_and_prompts_are_plain_too() -> None:
    action = Action(tool_name="say", parameters={"text": "Hello."}, reasoning="Be kind.")
    assert action_text(action, [SAY]) == "Hello."
    assert action_text(action, [SAY, OTHER]).startswith('{"reasoning"')
    assert system_prompt("Be kind.", [SAY], PromptVariant(detailed=True)) == "Be kind."
    assert "tool_name" in system_prompt("Be kind.", [SAY, OTHER], PromptVariant())


def test_it_takes_one_text_and_stands_alone() -> None:
    class Talk(Environment):
        @tool(ends_episode=True, plain_text=True)
        def say(self, words: str) -> str:
            """Says it."""
            return words

    assert Talk.tools["say"].schema.plain_text == "words"
    with pytest.raises(EnvironmentAuthorError, match=r"expected one parameter.*got words: str, loud: bool"):

        @tool(plain_text=True)
        def shout(words: str, loud: bool) -> str:
            return words

    with pytest.raises(EnvironmentAuthorError, match=r"expected it alone, got say, look"):

        class Both(Talk):
            @tool
            def look(self) -> str:
                return ""
