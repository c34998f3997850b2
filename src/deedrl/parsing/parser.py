"""The action parser: a pure function from a completion's text to an `Action`."""

from __future__ import annotations

from collections.abc import Sequence

from deedrl.parsing.feedback import with_shape
from deedrl.parsing.plain import plain_action, plain_tool
from deedrl.parsing.tiers import rejected_action, repaired_action, strict_action
from deedrl.types import Action, FinishReason, ToolSchema

_NATIVE_REASONING = ("think_block",)
_REPAIR_SCORE = 0.5


def parse_action(text: str, tools: Sequence[ToolSchema], finish_reason: FinishReason = "stop") -> Action:
    """Makes an `Action` of `text`, and never raises for what a model wrote.

    Tiers: ``strict`` if all of `text` is a valid action; ``repair`` if one could be had without guessing, with
    the repairs named; ``reject`` with `error` set to words for the model. The first valid action outside
    reasoning wins; what else the model wrote is counted in `ignored_actions`. With `finish_reason` ``length``
    an unfinished object is rejected even if only its braces are missing. Time is linear in the text. Where the only
    tool takes plain text, all of `text` is its call (`plain_action`).

    Raises `EnvironmentAuthorError` if a tool's schema is not valid JSON schema: the author's bug.
    """
    plain = plain_tool(tools)
    if plain is not None:
        return plain_action(text, plain, finish_reason)
    try:
        return strict_action(text, tools) or repaired_action(text, tools, finish_reason)
    except RecursionError:
        # Depth is bounded; this happens only if the caller's own stack is nearly full.
        return rejected_action(with_shape("The reply is nested too deeply"))


def format_score(action: Action) -> float:
    """How well-formed the completion was, in [0, 1]: 1 for a lone strict action, 0 for none at all.

    A repair halves it, and each further call or invented result divides it again: 0.5 / (1 + ignored). One
    well-formed think block before a strict action costs nothing, since reasoning models are built to write it.
    """
    if not action.valid:
        return 0.0
    base = 1.0 if action.repairs in ((), _NATIVE_REASONING) else _REPAIR_SCORE
    return base / (1 + action.ignored_actions)


def note_on_ignored(action: Action) -> str:
    """What to tell the model of the actions that were not run; "" if there were none."""
    if not action.valid or not action.ignored_actions:
        return ""
    return (
        f"Only one action a turn is run: {action.tool_name!r} was run, and {action.ignored_actions} further "
        "action(s) or self-written tool result(s) in the same reply were ignored."
    )
