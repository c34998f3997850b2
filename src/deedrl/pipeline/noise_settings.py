"""How noisy the tools of a recipe are: one level, or a level for each kind of noise."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from deedrl.config import Settings, Share
from deedrl.environments.noise import KINDS, Noise


class NoiseSettings(Settings, frozen=True, kw_only=True):
    """Levels by kind; in YAML also short as one number, ``noise: 0.3``."""

    level: Share = 0.0
    """Of every kind that has none of its own."""
    delays: Share | None = None
    """Calls that take longer."""
    failures: Share | None = None
    """Tools that are unavailable until the call is made again."""
    partial: Share | None = None
    """Answers of which a half is missing until the call is made again."""
    stale: Share | None = None
    """Answers from before the last change until the call is made again."""
    wording: Share | None = None
    """Answers in other words."""
    distractors: Share | None = None
    """Further tools, of no use."""
    tool_order: Share | None = None
    """Another order of the tools."""
    delay_s: Annotated[float, Meta(ge=0, le=60)] = 0.2
    """Longest delay of a call in seconds."""


NoiseSetting = Share | NoiseSettings
"""What a recipe may say."""


def chosen_noise(*settings: NoiseSetting | None) -> Noise:
    """The noise of the first of `settings` that is not None; none if all are."""
    given = next((setting for setting in settings if setting is not None), 0.0)
    if not isinstance(given, NoiseSettings):
        return Noise.at(given)
    levels = {kind: given.level if getattr(given, kind) is None else getattr(given, kind) for kind in KINDS}
    return msgspec.convert({**levels, "delay_s": given.delay_s}, Noise)
