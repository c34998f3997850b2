"""The three tiers as functions: strict JSON, string-aware extraction and repair, rejection with a reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from deedrl.parsing.calls import Call, Refusal, is_attempt, misplaced, resolve_call
from deedrl.parsing.feedback import CUT_OFF, shortened, with_shape
from deedrl.parsing.scan import Reading, scan
from deedrl.parsing.schema_check import satisfies
from deedrl.parsing.strict_json import Malformed, decode_strict
from deedrl.types import Action, FinishReason, ToolSchema


def strict_action(text: str, tools: Sequence[ToolSchema]) -> Action | None:
    """The action if all of `text` is one valid JSON object that calls a tool as its schema says, else None.

    Members besides ``tool_name``, ``parameters`` and ``reasoning`` are ignored unless they name a parameter.
    """
    try:
        value = decode_strict(text)
    except Malformed:
        return None
    if not isinstance(value, dict):
        return None
    parameters = value.get("parameters")
    reasoning = value.get("reasoning", "")
    tool = next((tool for tool in tools if tool.name == value.get("tool_name")), None)
    if tool is None or not isinstance(parameters, dict) or not isinstance(reasoning, str):
        return None
    if not satisfies(parameters, tool) or misplaced(value, parameters, tool):
        return None
    return Action(tool_name=tool.name, parameters=parameters, reasoning=reasoning)


def repaired_action(text: str, tools: Sequence[ToolSchema], finish_reason: FinishReason) -> Action:
    """The first valid action of `text` outside reasoning, or a rejected action that says why there is none.

    Missing closing braces are added only if `finish_reason` is ``stop``: text cut by a limit is never run.
    """
    inner = _unwrapped(text)
    reading = scan(text if inner is None else inner, may_close=finish_reason == "stop")
    repairs = dict.fromkeys(reading.repairs if inner is None else (*reading.repairs, "action_in_string"))
    chosen: Call | None = None
    chosen_repairs: tuple[str, ...] = ()
    refusal: Refusal | None = None
    ignored = reading.invented_results
    for found in reading.objects:
        if not is_attempt(found.value, tools):
            repairs["surrounding_text"] = None
        elif chosen is not None or (refusal is not None and found.after_result):
            # What follows a tool result the model made up itself rests on that invention.
            ignored += 1
        else:
            try:
                chosen = resolve_call(found.value, tools)
                chosen_repairs = found.repairs
            except Refusal as error:
                refusal = refusal or error
                ignored += 1
    if chosen is None:
        if refusal is not None:
            return rejected_action(str(refusal), refusal.tool_name)
        return rejected_action(_explain(text, reading, finish_reason))
    ignored += reading.broken is not None
    extra = ("extra_action_ignored",) if ignored else ()
    return Action(
        tool_name=chosen.tool_name,
        parameters=chosen.parameters,
        reasoning=chosen.reasoning or _storable(reading.reasoning),
        tier="repair",
        repairs=tuple(dict.fromkeys((*repairs, *chosen_repairs, *chosen.repairs, *extra))),
        ignored_actions=ignored,
    )


def rejected_action(error: str, refused_tool: str | None = None) -> Action:
    """An action that is none; `error` goes back to the model, `refused_tool` is the known tool it called wrongly."""
    return Action(tier="reject", error=_storable(error), refused_tool=refused_tool)


def _unwrapped(text: str) -> str | None:
    """The text inside, if all of `text` is one JSON string or an object whose every quote is escaped."""
    bare = text.strip()
    if bare.startswith('"') and bare.endswith('"') and len(bare) > 1:
        source = bare
    elif bare.startswith("{") and bare[1:].lstrip().startswith('\\"'):
        source = f'"{bare}"'
    else:
        return None
    try:
        value: Any = decode_strict(source)
    except Malformed:
        return None
    return value if isinstance(value, str) else None


def _explain(text: str, reading: Reading, finish_reason: FinishReason) -> str:
    """Says why `text` holds no action at all."""
    if not text.strip():
        return with_shape("The reply was empty")
    if finish_reason == "length" or reading.cut_off:
        return CUT_OFF
    if reading.broken is not None:
        return with_shape(f"Not valid JSON: {shortened(reading.broken.reason, 90)}")
    if reading.open_reasoning:
        return "The reasoning was never closed; close it, then send the action"
    if reading.objects_in_reasoning:
        return "The action stood inside the reasoning; send it after that"
    if reading.objects:
        return with_shape('The JSON object has no "tool_name"')
    return with_shape("No action was found")


def _storable(text: str) -> str:
    """`text` with lone surrogates replaced, so that it can be written as UTF-8."""
    try:
        msgspec.json.encode(text)
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text
