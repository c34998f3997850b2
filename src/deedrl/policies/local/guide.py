"""Decoding constrained to the shape of an action, by llguidance."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec
import torch
from torch import Tensor

from deedrl.types import ToolSchema

MAX_REASONING_CHARS = 120
_MAX_STRING_CHARS = 80
_DEFINITIONS = "#/$defs/"


class ActionGuides:
    """Makes a guide for each turn; one compiled grammar per set of tools."""

    def __init__(self, tokenizer: Any, vocabulary: int, turn_end_id: int) -> None:
        import llguidance.hf

        self._vocabulary = vocabulary
        self._tokenizer = llguidance.hf.from_tokenizer(tokenizer, n_vocab=vocabulary, eos_token=turn_end_id)
        self._template = lru_cache(maxsize=256)(self._compile)

    def start(self, tools: Sequence[ToolSchema]) -> ActionGuide:
        """A fresh guide for one turn with these tools."""
        # In the order of the schema: the guide enforces it, and reasoning has to come first.
        schema = msgspec.json.encode(action_schema(tools)).decode()
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
        bits = bits.to(logits.device)
        allowed = (bits[:, None] >> torch.arange(32, dtype=torch.int32, device=bits.device)) & 1
        logits.masked_fill_(allowed.view(-1)[: self._vocabulary] == 0, -torch.inf)

    def accept(self, token: int) -> None:
        self._matcher.consume_token(token)


def action_schema(tools: Sequence[ToolSchema]) -> dict[str, Any]:
    """JSON schema of one action with these tools: reasoning first, so that it is written before the choice.

    Strings get a length limit and objects with known properties no others, so that a turn comes to an end.
    """
    schemas = [_closed(tool.parameters, f"{index}.") for index, tool in enumerate(tools)]
    definitions = {
        f"{index}.{name}": definition
        for index, schema in enumerate(schemas)
        for name, definition in schema.pop("$defs", {}).items()
    }
    return {
        "anyOf": [
            {
                "type": "object",
                "properties": {
                    "reasoning": {"type": "string", "maxLength": MAX_REASONING_CHARS},
                    "tool_name": {"const": tool.name},
                    "parameters": schema,
                },
                "required": ["reasoning", "tool_name", "parameters"],
                "additionalProperties": False,
            }
            for tool, schema in zip(tools, schemas, strict=True)
        ],
        "$defs": definitions,
    }


def _closed(node: Any, prefix: str) -> Any:
    """A copy of a tool's schema without open ends; its references get `prefix` before the name of the definition."""
    if isinstance(node, list):
        return [_closed(item, prefix) for item in node]
    if not isinstance(node, dict):
        return node
    closed = {key: _closed(value, prefix) for key, value in node.items()}
    kinds = node.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if "string" in kinds and not closed.keys() & {"enum", "const", "pattern", "format"}:
        closed.setdefault("maxLength", _MAX_STRING_CHARS)
    if "object" in kinds and "properties" in node:
        closed.setdefault("additionalProperties", False)
    if isinstance(reference := node.get("$ref"), str):
        closed["$ref"] = reference.replace(_DEFINITIONS, _DEFINITIONS + prefix)
    return closed
