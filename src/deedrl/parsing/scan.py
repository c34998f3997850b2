"""Finds the JSON objects of a completion that lie outside reasoning, without being fooled by what strings hold."""

from __future__ import annotations

import re
from typing import Any

from deedrl.parsing.reader import Reader
from deedrl.parsing.strict_json import Malformed
from deedrl.reasoning import CLOSING_TAG, OPENING_TAG
from deedrl.types import Record

TOOL_ALIASES = ("name", "tool", "action", "function")
PARAMETER_ALIASES = ("arguments", "args", "params", "action_input", "input")
REASONING_ALIASES = ("thought", "thoughts", "rationale")
"""The closed lists of other names models use for the keys of an action."""

_CALL_KEYS = frozenset({"tool_name", "parameters", *TOOL_ALIASES, *PARAMETER_ALIASES})
_LANDMARK = re.compile(
    rf"(?P<open>{OPENING_TAG})|(?P<close>{CLOSING_TAG})"
    r"|(?P<object>[{｛](?=[\s\u200b\u2060\ufeff]*(?:[\"'“”„‘’＂}｝A-Za-z_/#]|\Z)))"
    r"|(?P<result>^[ \t]*(?:observation|result|error|tool[ _](?:output|result|response))[ \t]*[:：]"
    r"|<tool_(?:response|result)>)",
    re.IGNORECASE | re.MULTILINE,
)
_CLOSE_THINK = re.compile(CLOSING_TAG, re.IGNORECASE)
_WRAPPER = re.compile(r"</?tool_calls?>|<\|/?tool_call\|>|<\|im_end\|>", re.IGNORECASE)
_FENCE = re.compile(r"(?:`{3,}|~{3,})[\w-]*")
_BYTE_ORDER_MARK = "\ufeff"
_WASTE_FACTOR = 4
"""Failed attempts at reading objects may together cost this many times the text; keeps the scan linear."""


class FoundObject(Record, frozen=True):
    """A JSON object of the completion, with the repairs that reading it took."""

    value: dict[str, Any]
    repairs: tuple[str, ...] = ()
    after_result: bool = False
    """True if the model had written a tool result of its own before it."""


class Reading(Record, frozen=True):
    """What a completion holds outside its reasoning."""

    objects: tuple[FoundObject, ...] = ()
    repairs: tuple[str, ...] = ()
    """What had to be looked past around the objects."""
    reasoning: str = ""
    """Text of the think blocks."""
    invented_results: int = 0
    broken: Malformed | None = None
    """Why an object that was meant as an action could not be read; reading stopped there."""
    cut_off: bool = False
    """The text ends inside an object."""
    open_reasoning: bool = False
    """A think block was opened and never closed."""
    objects_in_reasoning: int = 0


def scan(text: str, *, may_close: bool) -> Reading:
    """Reads `text` once from left to right; costs time linear in its length whatever it holds.

    Think tags count only outside objects, so a tag inside a string value stays text. A closing tag without an
    opening one means the prompt had opened the block: everything before it was reasoning.
    """
    return _Scanner(text, may_close).run()


class _Scanner:
    def __init__(self, text: str, may_close: bool) -> None:
        self.text = text
        self.may_close = may_close
        self.position = 0
        self.mark = 0  # start of the outside text that is not yet accounted for
        self.outside: list[str] = []
        self.objects: list[FoundObject] = []
        self.reasoning: list[str] = []
        self.think_tags: list[str] = []
        self.objects_in_reasoning = 0
        self.invented_results = 0
        self.broken: Malformed | None = None
        self.cut_off = False
        self.open_reasoning = False
        self.allowance = _WASTE_FACTOR * len(text) + 1024

    def run(self) -> Reading:
        handlers = {
            "open": self._open_reasoning,
            "close": self._close_reasoning,
            "object": self._read_object,
            "result": self._note_result,
        }
        while self.broken is None and (landmark := _LANDMARK.search(self.text, self.position)) is not None:
            handlers[str(landmark.lastgroup)](landmark)
        self.outside.append(self.text[self.mark :])
        return Reading(
            objects=tuple(self.objects),
            repairs=self._repairs(),
            reasoning="\n".join(self.reasoning),
            invented_results=self.invented_results,
            broken=self.broken,
            cut_off=self.cut_off,
            open_reasoning=self.open_reasoning,
            objects_in_reasoning=self.objects_in_reasoning,
        )

    def _open_reasoning(self, landmark: re.Match[str]) -> None:
        self.outside.append(self.text[self.mark : landmark.start()])
        self.think_tags.append("open")
        closing = _CLOSE_THINK.search(self.text, landmark.end())
        self.open_reasoning = closing is None
        if closing is not None:
            self.think_tags.append("close")
        self._add_reasoning(landmark.end(), closing.start() if closing else len(self.text))
        self.position = self.mark = closing.end() if closing else len(self.text)

    def _close_reasoning(self, landmark: re.Match[str]) -> None:
        """A stray closing tag: all before it was reasoning, drafts of actions included."""
        self.think_tags.append("close")
        self._add_reasoning(0 if not self.reasoning else self.mark, landmark.start())
        self.objects_in_reasoning += len(self.objects)
        self.objects.clear()
        self.outside.clear()
        self.invented_results = 0
        self.position = self.mark = landmark.end()

    def _add_reasoning(self, start: int, end: int) -> None:
        if part := self.text[start:end].strip():
            self.reasoning.append(part)

    def _note_result(self, landmark: re.Match[str]) -> None:
        self.invented_results += 1
        self.position = landmark.end()

    def _read_object(self, landmark: re.Match[str]) -> None:
        start = landmark.start()
        reader = Reader(self.text, start, may_close=self.may_close)
        reader.peek()
        try:
            value = reader.read_object()
            reader.refuse_continuation()
        except Malformed as error:
            self._give_up_on(start, max(reader.position, error.position), reader.keys, error)
            return
        self.outside.append(self.text[self.mark : start])
        self.objects.append(
            FoundObject(value=value, repairs=tuple(reader.repairs), after_result=self.invented_results > 0)
        )
        self.position = self.mark = reader.position

    def _give_up_on(self, start: int, reached: int, keys: list[str], error: Malformed) -> None:
        """Steps over braces that are prose; stops at a broken action unless it turns out to be reasoning."""
        self.allowance -= reached - start
        self.cut_off = self.cut_off or error.cut_off
        if self.allowance < 0:
            self.broken = Malformed("too many unfinished braces", start)
        elif not _CALL_KEYS.isdisjoint(keys):
            closing = _CLOSE_THINK.search(self.text, start)
            if closing is None:
                self.broken = error
            else:
                self.cut_off = False
                self.objects_in_reasoning += 1
                self._close_reasoning(closing)
        else:
            self.position = max(start + 1, reached) if keys else start + 1

    def _repairs(self) -> tuple[str, ...]:
        repairs: dict[str, None] = {}
        if self.think_tags:
            repairs["think_block"] = None
            if self.think_tags not in (["open", "close"], ["close"]):
                repairs["extra_think_tag"] = None
        rest = "".join(self.outside)
        if rest.startswith(_BYTE_ORDER_MARK):
            repairs["byte_order_mark"] = None
            rest = rest[1:]
        for name, pattern in (("code_fence", _FENCE), ("wrapper_tag", _WRAPPER)):
            rest, count = pattern.subn("", rest)
            if count:
                repairs[name] = None
        if rest.strip():
            repairs["surrounding_text"] = None
        elif rest.strip(" \t\r\n"):
            repairs["unusual_whitespace"] = None
        return tuple(repairs)
