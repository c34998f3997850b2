"""The contract between the episode loop and whatever samples completions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Protocol

from deedrl.parsing.plain import plain_tool
from deedrl.types import Action, Completion, Message, Record, SamplingParams, ToolSchema


class CompletionRequest(Record, frozen=True):
    """One turn to sample.

    `messages` is the whole conversation so far: system, user, then assistant and tool in turn, ending with what
    the policy has to answer; anything else raises ValueError, so that no policy is sent it (case G03). `seed` belongs
    to this turn of this episode; equal requests have equal seeds.
    """

    episode_id: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSchema, ...]
    sampling: SamplingParams
    seed: int

    def __post_init__(self) -> None:
        problems = check_history(self.messages)
        if self.messages and self.messages[-1].role == "assistant":
            problems.append(f"message {len(self.messages) - 1}: the assistant's, which leaves nothing to answer")
        if problems:
            raise ValueError(f"episode '{self.episode_id}': expected a valid conversation; {'; '.join(problems)}")

    @property
    def turn(self) -> int:
        """Index of the turn, from 0: how often the policy has spoken in this episode."""
        return sum(message.role == "assistant" for message in self.messages)

    @property
    def task_prompt(self) -> str:
        """The first user message, as shown."""
        return next((message.content for message in self.messages if message.role == "user"), "")


def check_history(messages: Sequence[Message]) -> list[str]:
    """Problems of a conversation that a strict chat API would refuse; empty if there are none.

    Valid is: an optional system message, a user message, then assistant and tool messages in turn. Both kinds of
    broken pairs are reported (cases G01, G03): an answer of the model without a result, unless it is the very
    last message, and a result that belongs to no answer.
    """
    problems = []
    body = messages[1:] if messages and messages[0].role == "system" else messages
    offset = len(messages) - len(body)
    if not body or body[0].role != "user":
        problems.append(f"message {offset}: expected the user's task, got {body[0].role if body else 'nothing'}")
    for index in range(1, len(body)):
        before, role = body[index - 1].role, body[index].role
        where = offset + index
        if before == "assistant" and role != "tool":
            problems.append(f"message {where - 1}: the assistant's call has no result; {role} follows")
        if role == "tool" and before != "assistant":
            problems.append(f"message {where}: a result without a call; {before} precedes it")
        if role in ("system", "user"):
            problems.append(f"message {where}: {role} may only open a conversation")
    return problems


class Policy(Protocol):
    """Samples completions; many episodes are in flight at once.

    `complete` may raise: the runner records the exception as infrastructure trouble and retries the episode.
    It may be cancelled while it waits (time limits, Ctrl-C).
    """

    @property
    def version(self) -> str:
        """Names the weights in use; recorded with every trajectory."""
        ...

    async def complete(self, request: CompletionRequest) -> Completion:
        """One sample; raises `ContextFull` if the conversation no longer fits the model."""
        ...

    async def release(self, episode_id: str) -> None:
        """The episode is over, however it ended: drop what is cached for it. Unknown ids are fine."""
        ...


class ContextFull(Exception):
    """Raised by a policy when a conversation leaves no room to sample; the episode ends with ``token_limit``."""


def action_text(action: Action, tools: Sequence[ToolSchema] = ()) -> str:
    """The text a model is meant to write for `action`: one JSON object with reasoning, tool_name and parameters.

    Where the only one of `tools` takes plain text, it is that text alone, without reasoning.
    """
    plain = plain_tool(tools)
    if plain is not None and plain.plain_text is not None:
        return str(action.parameters.get(plain.plain_text, ""))
    fields = {"reasoning": action.reasoning, "tool_name": action.tool_name, "parameters": action.parameters}
    return json.dumps(fields, ensure_ascii=False)
