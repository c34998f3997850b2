"""Tiny models of several families, and the oracle: a plain forward pass with transformers' own attention."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from deedrl.policies.local.engine import Engine, Turn
from deedrl.policies.local.model import LoadedModel, load_model
from deedrl.policies.local.tiny import build_tiny_model
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


@pytest.fixture(autouse=True)
def _one_thread():
    """Tiny products are slower on many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Kit:
    """What the tests of this folder share."""

    TOOLS = TOOLS

    def __init__(self, root: Path) -> None:
        self._root = root
        self.folder = cache(self._folder)

    def _folder(self, family: str = "Llama", **options: Any) -> Path:
        import transformers

        name = "-".join([family, *(f"{key}={value}" for key, value in sorted(options.items()))])
        return build_tiny_model(
            self._root / name, TEXTS, config_class=getattr(transformers, f"{family}Config"), **options
        )

    def load(self, family: str = "Llama", dtype: str = "fp32", **options: Any) -> LoadedModel:
        return load_model(str(self.folder(family, **options)), dtype=dtype)

    def plain(self, family: str = "Llama", dtype: str = "fp32", **options: Any) -> Any:
        """The same weights in a model that nothing of ours has touched."""
        from transformers import AutoModelForCausalLM

        kind = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
        folder = self.folder(family, **options)
        return AutoModelForCausalLM.from_pretrained(folder, dtype=kind, attn_implementation="eager").eval()

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
    def ids(seed: int, count: int) -> list[int]:
        """Random ordinary tokens (2 … 250: no control token)."""
        return torch.randint(2, 250, (count,), generator=torch.Generator().manual_seed(seed)).tolist()

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
def kit(tmp_path_factory) -> Kit:
    return Kit(tmp_path_factory.mktemp("models"))
