"""Policies without a model: scripts, baselines, demonstrations, and wrappers that fail or dawdle on purpose."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import anyio
import msgspec

from deedrl.errors import EnvironmentAuthorError
from deedrl.policies.policy import CompletionRequest, Policy, action_text
from deedrl.seeding import stream
from deedrl.types import Action, Completion, Task, ToolSchema

AGAIN = "That did not give a full and current answer, so I make the same call again."
"""Reasoning of a demonstrated call that is made again."""

Line = Action | Completion | str
"""What a script may hold: an action, a raw text, or a whole completion (with token ids, say)."""


def to_completion(line: Line, version: str, tools: Sequence[ToolSchema] = ()) -> Completion:
    """Wraps `line`, an answer to someone with these tools, as a sample without tokens; a completion stays as it is."""
    if isinstance(line, Completion):
        return line
    text = action_text(line, tools) if isinstance(line, Action) else line
    return Completion(text=text, policy_version=version)


class ScriptedPolicy:
    """Plays lines: a sequence (the same for every episode) or a function of the request.

    A sequence that has run out says nothing more (an empty text, which is not an action).
    """

    version = "scripted"

    def __init__(self, script: Sequence[Line] | Callable[[CompletionRequest], Line]) -> None:
        self._script = script

    async def complete(self, request: CompletionRequest) -> Completion:
        if callable(self._script):
            return to_completion(self._script(request), self.version, request.tools)
        line = self._script[request.turn] if request.turn < len(self._script) else ""
        return to_completion(line, self.version, request.tools)

    async def release(self, episode_id: str) -> None:
        """Nothing is cached."""


class NoOpPolicy:
    """Never acts; what it earns is the score of doing nothing."""

    version = "noop"

    async def complete(self, request: CompletionRequest) -> Completion:
        return Completion(text="I have nothing to do.", policy_version=self.version)

    async def release(self, episode_id: str) -> None:
        """Nothing is cached."""


class EchoPolicy:
    """Repeats the last message it was shown."""

    version = "echo"

    async def complete(self, request: CompletionRequest) -> Completion:
        return Completion(text=request.messages[-1].content, policy_version=self.version)

    async def release(self, episode_id: str) -> None:
        """Nothing is cached."""


class RandomPolicy:
    """Calls a random tool with random parameters that satisfy its schema; seeded by the request alone."""

    version = "random"

    async def complete(self, request: CompletionRequest) -> Completion:
        rng = stream(request.seed, "random-policy")
        tool = rng.choice(request.tools)
        words = request.task_prompt.split() or ["word"]
        parameters = random_value(tool.parameters, rng, words, tool.parameters.get("$defs", {}))
        return to_completion(Action(tool_name=tool.name, parameters=parameters), self.version, request.tools)

    async def release(self, episode_id: str) -> None:
        """Nothing is cached."""


class DemonstrationPolicy:
    """Plays the environment's own solution of each episode's task.

    `tasks` maps episode ids to tasks; `demonstrate` gives the solution of a task (`deedrl.rollouts.demonstration`
    has `demonstrator`, which asks an environment). The task travels here and not in the request, so that no
    other policy can see a goal state. After an observation of which `asks_again` is true the same call is made again.
    """

    version = "demonstration"

    def __init__(
        self,
        tasks: Mapping[str, Task],
        demonstrate: Callable[[Task], Sequence[Action]],
        asks_again: Callable[[str], bool] = lambda _observation: False,
    ) -> None:
        self._asks_again = asks_again
        self._tasks = tasks
        self._demonstrate = demonstrate
        self._solutions: dict[str, Sequence[Action]] = {}

    async def complete(self, request: CompletionRequest) -> Completion:
        if request.episode_id not in self._tasks:
            raise EnvironmentAuthorError(
                f"expected a task for episode '{request.episode_id}', found none; pass the tasks of all specs"
            )
        if request.episode_id not in self._solutions:
            self._solutions[request.episode_id] = self._demonstrate(self._tasks[request.episode_id])
        solution = self._solutions[request.episode_id]
        asked = [message.role == "tool" and self._asks_again(message.content) for message in request.messages]
        turn = request.turn - sum(asked)
        if turn >= len(solution):
            raise EnvironmentAuthorError(
                f"the demonstration of task '{self._tasks[request.episode_id].id}' has {len(solution)} actions, but "
                "the episode goes on after them; make demonstrate(task) end with an action that ends the episode"
            )
        action = solution[turn]
        if asked and asked[-1]:
            action = msgspec.structs.replace(action, reasoning=AGAIN)
        return to_completion(action, self.version, request.tools)

    async def release(self, episode_id: str) -> None:
        self._solutions.pop(episode_id, None)


class FlakyPolicy:
    """Raises RuntimeError the first `failures` times it is asked in each of `episode_ids`, then behaves."""

    def __init__(self, policy: Policy, episode_ids: Collection[str], failures: int = 1) -> None:
        self._policy = policy
        self._episode_ids = frozenset(episode_ids)
        self._failures = failures
        self._seen: Counter[str] = Counter()

    @property
    def version(self) -> str:
        return self._policy.version

    async def complete(self, request: CompletionRequest) -> Completion:
        if request.episode_id in self._episode_ids and self._seen[request.episode_id] < self._failures:
            self._seen[request.episode_id] += 1
            raise RuntimeError(f"flaky policy failed on purpose in episode {request.episode_id}")
        return await self._policy.complete(request)

    async def release(self, episode_id: str) -> None:
        await self._policy.release(episode_id)


class SlowPolicy:
    """Waits `delay_s` before each completion and counts how many requests wait at once (`peak_in_flight`)."""

    def __init__(self, policy: Policy, delay_s: float) -> None:
        self._policy = policy
        self._delay_s = delay_s
        self._in_flight = 0
        self.peak_in_flight = 0

    @property
    def version(self) -> str:
        return self._policy.version

    async def complete(self, request: CompletionRequest) -> Completion:
        self._in_flight += 1
        self.peak_in_flight = max(self.peak_in_flight, self._in_flight)
        try:
            await anyio.sleep(self._delay_s)
        finally:
            self._in_flight -= 1
        return await self._policy.complete(request)

    async def release(self, episode_id: str) -> None:
        await self._policy.release(episode_id)


def random_value(schema: Mapping[str, Any], rng: random.Random, words: Sequence[str], defs: Mapping[str, Any]) -> Any:
    """A value that satisfies the common part of JSON schema (types, enum, bounds, required, references).

    Strings without an enum are taken from `words`; optional properties are present half of the time.
    """
    if "$ref" in schema:
        return random_value(defs[str(schema["$ref"]).rsplit("/", 1)[-1]], rng, words, defs)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return rng.choice(schema["enum"])
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return random_value(rng.choice(schema[union]), rng, words, defs)
    kind = schema.get("type", "string")
    if isinstance(kind, list):
        return random_value({**schema, "type": rng.choice(kind)}, rng, words, defs)
    if kind == "object":
        required = schema.get("required", ())
        return {
            name: random_value(part, rng, words, defs)
            for name, part in schema.get("properties", {}).items()
            if name in required or rng.random() < 0.5
        }
    if kind == "array":
        least = schema.get("minItems", 0)
        length = rng.randint(least, schema.get("maxItems", max(least, 3)))
        return [random_value(schema.get("items", {}), rng, words, defs) for _ in range(length)]
    return _random_scalar(str(kind), schema, rng, words)


def _random_scalar(kind: str, schema: Mapping[str, Any], rng: random.Random, words: Sequence[str]) -> Any:
    low = schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1)
    if kind == "integer":
        return rng.randint(low, schema.get("maximum", schema.get("exclusiveMaximum", low + 101) - 1))
    if kind == "number":
        return rng.uniform(low, schema.get("maximum", low + 100))
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "null":
        return None
    text = rng.choice(list(words))
    text += text[-1:] * (schema.get("minLength", 0) - len(text))
    return text[: schema.get("maxLength", len(text))]
