"""Decoding constrained to the shape of an action, by llguidance."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec
import torch
from torch import Tensor

from deedrl.types import ToolSchema

MAX_REASONING_CHARS = 120
_MAX_STRING_CHARS = 80


class ActionGuides:
    """Makes a guide for each turn; one compiled grammar per set of tools."""

    def __init__(self, tokenizer: Any, vocabulary: int, turn_end_id: int) -> None:
        import llguidance.hf

        self._vocabulary = vocabulary
        self._tokenizer = llguidance.hf.from_tokenizer(tokenizer, n_vocab=vocabulary, eos_token=turn_end_id)
        self._template = lru_cache(maxsize=256)(self._compile)

    def start(self, tools: Sequence[ToolSchema]) -> ActionGuide:
        """A fresh guide for one turn with these tools."""
        schema = msgspec.json.encode(action_schema(tools), order="deterministic").decode()
        return ActionGuide(self._template(schema).deep_copy(), self._vocabulary)

    def _compile(self, schema: str) -> Any:
        from llguidance import LLMatcher

        options = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
        grammar = LLMatcher.grammar_from_json_schema(schema, defaults=options)
        matcher = LLMatcher(self._tokenizer, grammar)
        if matcher.is_error():
            raise ValueError(f"llguidance cannot compile the tools' schema: {matcher.get_error()}")
        return matcher


class ActionGuide:
    """Forbids every token after which the text could no longer become a valid action."""

    def __init__(self, matcher: Any, vocabulary: int) -> None:
        self._matcher = matcher
        self._bits = torch.zeros(1, -(-vocabulary // 32), dtype=torch.int32)
        self._vocabulary = vocabulary

    def mask(self, logits: Tensor) -> None:
        """Sets forbidden entries of `logits` [V] to -inf in place."""
        bits = self._bits[0]
        self._matcher.unsafe_compute_mask_ptr(bits.data_ptr(), bits.numel() * bits.element_size())
        allowed = (bits[:, None] >> torch.arange(32, dtype=torch.int32)) & 1
        logits.masked_fill_(allowed.view(-1)[: self._vocabulary] == 0, -torch.inf)

    def accept(self, token: int) -> None:
        self._matcher.consume_token(token)


def action_schema(tools: Sequence[ToolSchema]) -> dict[str, Any]:
    """JSON schema of one action with these tools: reasoning first, so that it is written before the choice."""
    return {
        "anyOf": [
            {
                "type": "object",
                "properties": {
                    "reasoning": {"type": "string", "maxLength": MAX_REASONING_CHARS},
                    "tool_name": {"const": tool.name},
                    "parameters": _closed(tool.parameters),
                },
                "required": ["reasoning", "tool_name", "parameters"],
                "additionalProperties": False,
            }
            for tool in tools
        ]
    }


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """A tool's schema without open ends: no unknown properties, strings of bounded length."""
    closed = json.loads(json.dumps(schema))
    closed.setdefault("additionalProperties", False)
    for field in closed.get("properties", {}).values():
        if field.get("type") == "string" and "enum" not in field:
            field.setdefault("maxLength", _MAX_STRING_CHARS)
    return dict(closed)
