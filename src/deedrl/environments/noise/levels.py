"""How much of which noise: one level in [0, 1] for each kind."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Self

import msgspec
from msgspec import Meta

from deedrl.types import Record

Level = Annotated[float, Meta(ge=0, le=1)]

CHANCE_AT_FULL_LEVEL: Mapping[str, float] = MappingProxyType(
    {
        "delays": 0.3,
        "failures": 0.3,
        "partial": 0.4,
        "stale": 0.5,
        "wording": 1.0,
        "distractors": 0.5,
        "tool_order": 1.0,
    }
)
"""Chance at level 1 that a call (an answer; each distracting tool; the list of tools) has this noise, where it can."""

KINDS = tuple(CHANCE_AT_FULL_LEVEL)


class Noise(Record, frozen=True):
    """A level for each kind of noise; 0 leaves that kind out, and all at 0 is the bare environment."""

    delays: Level = 0.0
    """Calls take up to `delay_s` longer, and at most a quarter of the tool's own limit."""
    failures: Level = 0.0
    """A tool is "temporarily unavailable"; the call did not run, and the same call again does."""
    partial: Level = 0.0
    """A read-only tool's answer lacks its second half and says so; the same call again gives the whole."""
    stale: Level = 0.0
    """A read-only tool repeats its answer from before the last change and says so; the same call again is current."""
    wording: Level = 0.0
    """Answers are worded or laid out differently; names, numbers and ids are never touched."""
    distractors: Level = 0.0
    """There are further tools, which are of no use."""
    tool_order: Level = 0.0
    """Tools are listed in another order."""
    delay_s: Annotated[float, Meta(ge=0, le=60)] = 0.2
    """Longest delay."""

    @classmethod
    def at(cls, level: float) -> Self:
        """Every kind at `level`."""
        return msgspec.convert(dict.fromkeys(KINDS, level), cls)

    @classmethod
    def from_levels(cls, levels: Mapping[str, float]) -> Self:
        """What `levels` gave; kinds of later versions are ignored."""
        return msgspec.convert(levels, cls)

    def levels(self) -> dict[str, float]:
        """The levels above 0 by kind (and the longest delay, where there are delays); empty: no noise."""
        found: dict[str, float] = {kind: getattr(self, kind) for kind in KINDS if getattr(self, kind) > 0}
        return found | ({"delay_s": self.delay_s} if "delays" in found else {})

    def chance(self, kind: str) -> float:
        """The level of `kind` as a chance."""
        level: float = getattr(self, kind)
        return level * CHANCE_AT_FULL_LEVEL[kind]
