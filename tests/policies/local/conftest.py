"""Tiny models of several families, and the oracle: a plain forward pass with transformers' own attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from deedrl.policies.local.engine import Engine
from deedrl.policies.local.turn import Turn
from deedrl.policies.policy import CompletionRequest, action_text
from deedrl.types import Action, Message, SamplingParams, ToolSchema

TOOLS = (
    ToolSchema(
        name="set_value",
        parameters={
            "type": "object",
            "properties": {"value": {"type": "integer"}, "unit": {"enum": ["cm", "inch"]}},
            "required": ["value", "unit"],
            "additionalProperties": False,
        },
    ),
    ToolSchema(name="finish", parameters={"type": "object", "properties": {}, "additionalProperties": False}),
)

TEXTS = [
    action_text(Action(tool_name="set_value", parameters={"value": value, "unit": unit}, reasoning="I set it to that."))
    for value in range(40)
    for unit in ("cm", "inch")
] + [action_text(Action(tool_name="finish", reasoning="The job is done."))] * 40


@pytest.fixture(scope="module", autouse=True)
def _one_thread(one_thread):
    pass


class Kit:
    """What the tests of this folder share."""

    TOOLS = TOOLS

    def __init__(self, models: Any) -> None:
        self.folder, self.load, self.plain, self.ids = models.folder, models.load, models.plain, models.ids

    @staticmethod
    @torch.no_grad()
    def plain_logprobs(
        plain: Any, context: Sequence[int], tokens: Sequence[int], temperature: float = 1.0
    ) -> list[float]:
        """Log-probability of each of `tokens` after `context` under softmax(logits / temperature)."""
        logits = plain(torch.tensor([[*context, *tokens]])).logits[0].float() / temperature
        at = torch.arange(len(context) - 1, len(context) + len(tokens) - 1)
        return logits[at].log_softmax(-1)[torch.arange(len(tokens)), torch.tensor(tokens)].tolist()

    @staticmethod
    def turn(key: str, context: Sequence[int], *, prefix: Sequence[int] = (), **options: Any) -> Turn:
        options.setdefault("max_tokens", 6)
        options.setdefault("temperature", 1.0)
        options.setdefault("seed", sum(map(ord, key)) + len(context))
        return Turn(key=key, context=tuple(context), prefix=tuple(prefix), **options)

    @staticmethod
    def play(engine: Engine, turns: Sequence[Turn]) -> dict[str, Turn]:
        """Submits all turns and steps until the engine is idle."""
        for turn in turns:
            engine.submit(turn)
        ended: dict[str, Turn] = {}
        for _ in range(10_000):
            if not engine.busy:
                return ended
            ended |= {turn.key: turn for turn in engine.step()}
        raise AssertionError("the engine does not come to an end")

    @staticmethod
    def counted(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """The numbers of tokens of the engine's forward passes from now on."""
        passes: list[int] = []
        hidden = engine._weights.hidden

        def counting(ids: torch.Tensor, *rest: Any) -> torch.Tensor:
            passes.append(ids.numel())
            return hidden(ids, *rest)

        monkeypatch.setattr(engine._weights, "hidden", counting)
        return passes

    @staticmethod
    def request(episode_id: str, messages: Sequence[Message] = (), **options: Any) -> CompletionRequest:
        messages = messages or (
            Message(role="system", content="You keep a counter."),
            Message(role="user", content="Set it to 3."),
        )
        sampling = SamplingParams(max_tokens=options.pop("max_tokens", 8), temperature=options.pop("temperature", 1.0))
        return CompletionRequest(
            episode_id=episode_id, messages=tuple(messages), tools=TOOLS, sampling=sampling, seed=options.pop("seed", 1)
        )


@pytest.fixture(scope="session")
def kit(tiny_models) -> Kit:
    return Kit(tiny_models(TEXTS))


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
