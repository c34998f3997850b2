"""Completions that are no JSON: where an environment's only tool takes text as it stands, all of it is the call."""

from __future__ import annotations

import re
from collections.abc import Sequence

from deedrl.parsing.feedback import PLAIN_CUT_OFF, PLAIN_EMPTY, PLAIN_OPEN_REASONING
from deedrl.reasoning import CLOSING_TAG, OPENING_TAG
from deedrl.types import Action, FinishReason, ToolSchema

_OPENS = re.compile(rf"\A\s*(?:{OPENING_TAG})", re.IGNORECASE)
_UP_TO_LAST_CLOSING = re.compile(rf"(.*)(?:{CLOSING_TAG})", re.IGNORECASE | re.DOTALL)


def plain_tool(tools: Sequence[ToolSchema]) -> ToolSchema | None:
    """The tool that takes completions as they stand, if the tools are that one alone."""
    return tools[0] if len(tools) == 1 and tools[0].plain_text is not None else None


def plain_action(text: str, tool: ToolSchema, finish_reason: FinishReason) -> Action:
    """The call of a plain-text `tool` with `text`, stripped of white space around it and of reasoning before it.

    Reasoning is what stands before the last closing tag of `REASONING_TAGS`. Text that a limit cut is rejected, as is
    an empty one: an answer that nobody ended is none.
    """
    assert tool.plain_text is not None
    block = _UP_TO_LAST_CLOSING.match(text)
    answer = _storable(text[block.end() :] if block else text).strip()
    if finish_reason == "length":
        return Action(tier="reject", error=PLAIN_CUT_OFF)
    if block is None and _OPENS.match(answer):
        return Action(tier="reject", error=PLAIN_OPEN_REASONING)
    if not answer:
        return Action(tier="reject", error=PLAIN_EMPTY)
    return Action(
        tool_name=tool.name,
        parameters={tool.plain_text: answer},
        reasoning=_OPENS.sub("", _storable(block[1]), count=1).strip() if block else "",
        repairs=("think_block",) if block else (),
    )


def _storable(text: str) -> str:
    """`text` with lone surrogates replaced, which no file can hold."""
    return text.encode("utf-8", "replace").decode()
