"""Settings of the stage `profile`."""

from __future__ import annotations

from typing import ClassVar

from msgspec import field

from deedrl.config import Many, NonNegative
from deedrl.pipeline.noise_settings import NoiseSetting
from deedrl.pipeline.stage_base import StageSettings
from deedrl.tasks.bands import Bands


class Profile(StageSettings, frozen=True, kw_only=True, tag="profile"):
    """Measures how often the current policy solves each training task; curricula of later stages start from it."""

    kind: ClassVar[str] = "profile"

    tasks: Many | None = None
    """At most so many training tasks, families and labelled difficulties in turn; null means all."""
    attempts: Many = 4
    """Episodes of each task."""
    temperature: NonNegative | None = None
    """Overrides ``sampling.temperature``; at 0 a policy solves a task always or never."""
    noise: NoiseSetting | None = None
    """Overrides ``environment.noise`` in this stage; 0 is the bare environment."""
    bands: Bands = field(default_factory=Bands)
    """Bands of measured difficulty in what the stage reports; a curriculum has its own."""

    @property
    def training_stores(self) -> tuple[str, ...]:
        return (self.title,)

    def validate(self, path: str) -> None:
        self.bands.validate(f"{path}.bands")
