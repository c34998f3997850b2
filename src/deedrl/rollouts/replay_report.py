"""What a replay found: equal, equal as far as it can be compared, or the first difference with tool versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from deedrl.redaction import REDACTED
from deedrl.store.codec import as_stored
from deedrl.types import Record, Step

Outcome = Literal["equal", "equal so far", "not comparable", "different"]
"""``equal so far``: nothing differs up to a step from which on nothing can be compared; ``not comparable``: that is
the first step with a result."""

SHOWN_CHARS = 100
"""Of each of two texts that differ, in a message."""
_REPLACEMENT = "�"


class ReplayDifference(Record, frozen=True):
    """The first place where a replay left the recording."""

    step: int
    """Index of the step; the number of steps for a difference at the end of the episode."""
    what: str
    """``state_hash``, ``observation``, ``reward``, ``status``, ``verdict`` or ``exception``; through the episode loop
    also ``shown text``, ``action``, ``steps``, ``termination`` and ``total reward``; ``task`` if it is gone."""
    recorded: Any
    replayed: Any
    tool: str | None = None
    """The tool of the call that it shows after; None before the first call."""


class ReplayReport(Record, frozen=True):
    """Result of a replay; `difference` is None if all that was compared is bit-equal."""

    episode_id: str
    compared_steps: int
    difference: ReplayDifference | None
    recorded_versions: dict[str, str]
    replayed_versions: dict[str, str]
    stopped: str | None = None
    """Why the recording could not be compared to its end; None if it could."""

    @property
    def equal(self) -> bool:
        return self.difference is None

    @property
    def outcome(self) -> Outcome:
        if self.difference is not None:
            return "different"
        if self.stopped is None:
            return "equal"
        return "equal so far" if self.compared_steps else "not comparable"

    @property
    def changed_versions(self) -> dict[str, str]:
        """``before -> now`` by the names of tools whose version is not the recorded one, or that are new or gone."""
        names = sorted(self.recorded_versions.keys() | self.replayed_versions.keys())
        pairs = [(name, self.recorded_versions.get(name), self.replayed_versions.get(name)) for name in names]
        return {name: f"{before or 'absent'} -> {now or 'absent'}" for name, before, now in pairs if before != now}

    def describe(self) -> str:
        """One sentence for people, naming tools whose version has changed."""
        if self.difference is None:
            stopped = f", then stopped: {self.stopped}" if self.stopped else ""
            return f"episode {self.episode_id}: {self.compared_steps} steps replayed, no difference{stopped}"
        found = self.difference
        changed = [f"{name} {versions}" for name, versions in self.changed_versions.items()]
        versions = f"changed tool versions: {', '.join(changed)}" if changed else "all tool versions are the same"
        tool = f" (tool '{found.tool}')" if found.tool else ""
        recorded, replayed = shown_apart(found.recorded, found.replayed)
        return (
            f"episode {self.episode_id}: {found.what} differs at step {found.step}{tool}: "
            f"recorded {recorded}, replayed {replayed}; {versions}"
        )


def shown_apart(one: Any, other: Any) -> tuple[str, str]:
    """Two values as they are shown to people; long texts from shortly before the place where they part."""
    if not (isinstance(one, str) and isinstance(other, str)) or max(len(one), len(other)) <= SHOWN_CHARS:
        return repr(one), repr(other)
    pairs = zip(one, other, strict=False)
    parting = next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
    start = max(parting - SHOWN_CHARS // 4, 0)
    return _window(one, start), _window(other, start)


def _window(text: str, start: int) -> str:
    cut = text[start : start + SHOWN_CHARS]
    return f"{'…' if start else ''}{cut!r}{'…' if start + SHOWN_CHARS < len(text) else ''}"


def first_difference(
    step: int, tool: str | None, recorded: Mapping[str, Any], replayed: Mapping[str, Any]
) -> ReplayDifference | None:
    """The first key, in order, whose values are not equal; what a store changes in a text is no difference."""
    for what, value in recorded.items():
        now = replayed.get(what)
        if value != now and not (isinstance(value, str) and isinstance(now, str) and value == as_stored(now)):
            return ReplayDifference(step=step, what=what, recorded=value, replayed=now, tool=tool)
    return None


def incomparable(step: Step, unreplayable: Mapping[str, str]) -> str | None:
    """Why nothing can be compared from this step on; None if its result can. `unreplayable`: reasons by tool."""
    if not step.action.valid:
        return None
    if step.tool_output is None:
        return f"a call has no result: {step.reward_missing or 'not recorded'}"
    if step.tool_output.interrupted or step.reward_missing is not None:
        return "a call was stopped at its time limit"
    return unreplayable.get(step.action.tool_name or "")


def altered_when_stored(step: Step) -> bool:
    """Whether what the policy wrote may not be what it was before a store kept it (see `as_stored`)."""
    parameters = msgspec.json.encode(msgspec.to_builtins(step.action.parameters, str_keys=True)).decode()
    return any(mark in text for text in (step.completion.text, parameters) for mark in (_REPLACEMENT, REDACTED))


ALTERED = "a call's text was changed when it was stored (half of a character, or what looked like a key)"
