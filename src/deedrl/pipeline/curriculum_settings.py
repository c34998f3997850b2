"""Which training tasks an online stage plays, by what was seen of them; told apart by the key ``kind``."""

from __future__ import annotations

from msgspec import field

from deedrl.config import NonNegative, PositiveFloat, Settings, Share, require
from deedrl.errors import ConfigError
from deedrl.tasks.bands import BandName, Bands
from deedrl.tasks.filters import parse_filter


class CurriculumSettings(Settings, frozen=True, kw_only=True, tag_field="kind"):
    """What all curricula share. Every one measures: the stage's own episodes say how often a task is solved."""

    bands: Bands = field(default_factory=Bands)
    """Where measured bands of difficulty end."""
    half_life_steps: PositiveFloat | None = 20.0
    """Steps after which an episode counts half, for the policy has changed since; null never forgets."""
    where: str = ""
    """Condition that tasks are to meet, e.g. ``attempts == 0 or success_rate < 0.5``; see docs/curriculum.md. Others
    are drawn only where those that meet it are too few, and are counted. Empty lets all through."""

    def validate(self, path: str) -> None:
        """Raises `ConfigError` if values do not go together; `path` is the dotted path of these settings."""
        self.bands.validate(f"{path}.bands")
        if self.where:
            try:
                parse_filter(self.where)
            except ConfigError as error:
                raise ConfigError(f"{path}.where: {error}") from None


class UniformCurriculum(CurriculumSettings, frozen=True, kw_only=True, tag="uniform"):
    """Draws as without a curriculum, families and labelled difficulties in turn, and measures."""


def _thirds() -> dict[BandName, float]:
    return {"easy": 1.0, "middle": 1.0, "hard": 1.0}


class QuotaCurriculum(CurriculumSettings, frozen=True, kw_only=True, tag="quota"):
    """Draws measured bands in given shares."""

    shares: dict[BandName, NonNegative] = field(default_factory=_thirds)
    """How often a band is drawn relative to the others, a third each unless given; a band left out is drawn only where
    others run out."""

    def validate(self, path: str) -> None:
        super().validate(path)
        require(sum(self.shares.values()) > 0, f"{path}.shares", "expected a band with a share above 0, got none")


class FrontierCurriculum(CurriculumSettings, frozen=True, kw_only=True, tag="frontier"):
    """Draws tasks that are solvable but usually fail, and some that are unknown."""

    up_to: Share = 0.5
    """A task that is sometimes solved belongs to the frontier up to this success rate."""
    explore_share: Share = 0.25
    """Share of a step's tasks that are unknown ones, as long as there are any."""

    def validate(self, path: str) -> None:
        super().validate(path)
        require(
            self.up_to > self.bands.margin,
            f"{path}.up_to",
            f"expected more than bands.margin ({self.bands.margin:g}), up to which a task counts as never solved; got "
            f"{self.up_to:g}",
        )


AnyCurriculum = UniformCurriculum | QuotaCurriculum | FrontierCurriculum
