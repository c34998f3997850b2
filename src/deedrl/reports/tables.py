"""The before/after table of a run, in the console and as the report page's data.

Reads the public contract of ``summary.json``: ``{"before": M, "after": M, "stages": [{"name", "seconds",
"metrics": M}]}``, where M holds figures ``{"value", "numerator", "denominator", "low", "high"}`` and counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from deedrl.errors import StoreError

if TYPE_CHECKING:
    from rich.console import Console

Unit = Literal["percent", "number"]

HEADLINES: tuple[tuple[str, str, Unit], ...] = (
    ("completion_rate", "Completion", "percent"),
    ("mean_steps", "Mean steps", "number"),
    ("tool_call_accuracy", "Tool-call accuracy", "percent"),
    ("format_compliance", "Format compliance", "percent"),
)
"""Figures of the before/after table: key in the metrics, title, unit."""
COUNTS = ("episodes", "unscored", "errored")


class ShownFigure(msgspec.Struct, frozen=True, kw_only=True):
    """A figure ready to be shown; absent values stay None and appear as a dash."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    numerator: float | None = None
    denominator: int | None = None
    unit: Unit = "percent"

    @property
    def text(self) -> str:
        """``94.2 %`` or ``2.31``."""
        return number_text(self.value, self.unit)

    @property
    def interval(self) -> str:
        """``88.4 – 97.1``, empty if there is none."""
        if self.low is None or self.high is None:
            return ""
        return f"{_bare(self.low, self.unit)} – {_bare(self.high, self.unit)}"

    @property
    def count(self) -> str:
        """``113 of 120``, empty for means and without a denominator."""
        if not self.denominator or self.numerator is None or self.unit != "percent":
            return ""
        return f"{self.numerator:g} of {self.denominator:,}"


def read_summary(path: Path) -> dict[str, Any]:
    """The content of ``summary.json``; missing or malformed is a `StoreError` that says what to do."""
    try:
        data = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        raise StoreError(f"{path}: no such file; expected a run with at least one finished evaluation") from None
    except (OSError, msgspec.DecodeError) as error:
        raise StoreError(f"{path}: cannot be read: {error}; run the recipe again to write it anew") from error
    if not isinstance(data, dict):
        raise StoreError(f"{path}: expected an object with 'before', 'after' and 'stages', got {type(data).__name__}")
    try:
        msgspec.convert(data, _Shape)
    except msgspec.ValidationError as error:
        raise StoreError(f"{path}: not the summary of a run: {error}; run the recipe again to write it anew") from error
    return data


class _Figures(msgspec.Struct):
    """What is read of metrics beyond single figures."""

    by_family: dict[str, dict[str, Any]] | None = None
    by_difficulty: dict[str, dict[str, Any]] | None = None
    by_split: dict[str, dict[str, Any]] | None = None
    terminations: dict[str, int] | None = None
    splits: dict[str, dict[str, Any]] | None = None
    spread: dict[str, Any] | None = None


class _Stage(msgspec.Struct):
    name: str | None = None
    metrics: _Figures | None = None


class _Shape(msgspec.Struct):
    """What readers of a summary rely on; figures are read one by one and may be absent."""

    before: _Figures | None = None
    after: _Figures | None = None
    stages: list[_Stage] | None = None


def figure(metrics: Mapping[str, Any] | None, key: str, unit: Unit = "percent") -> ShownFigure:
    """The figure called `key`; an empty one if the metrics lack it."""
    raw = (metrics or {}).get(key)
    if not isinstance(raw, Mapping):
        return ShownFigure(unit=unit)
    return ShownFigure(
        value=raw.get("value"),
        low=raw.get("low"),
        high=raw.get("high"),
        numerator=raw.get("numerator"),
        denominator=raw.get("denominator"),
        unit=unit,
    )


def change_text(before: ShownFigure, after: ShownFigure) -> str:
    """``+91.7 points`` or ``−0.44``; a dash where one side is absent."""
    if before.value is None or after.value is None:
        return "–"
    change = after.value - before.value
    sign = "+" if change > 0 else "−" if change < 0 else "±"
    if before.unit == "percent":
        return f"{sign}{abs(100 * change):.1f} points"
    return f"{sign}{abs(change):.2f}"


def number_text(value: float | None, unit: Unit) -> str:
    """A value with its unit, or a dash."""
    if value is None:
        return "–"
    return f"{100 * value:.1f} %" if unit == "percent" else f"{value:.2f}"


def _bare(value: float, unit: Unit) -> str:
    return f"{100 * value:.1f}" if unit == "percent" else f"{value:.2f}"


def print_before_after(summary: Mapping[str, Any], console: Console | None = None) -> None:
    """Prints the before/after table; values with their 95 % intervals, counts below."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    before, after = summary.get("before"), summary.get("after")
    table = Table(title="Before and after, on held-out tasks", title_justify="left", box=SIMPLE)
    table.add_column("")
    for column in ("before", "after", "change"):
        table.add_column(column, justify="right")
    for key, title, unit in HEADLINES:
        old, new = figure(before, key, unit), figure(after, key, unit)
        table.add_row(title, _cell(old), _cell(new), change_text(old, new))
    table.add_section()
    for key in COUNTS:
        table.add_row(key.capitalize(), str((before or {}).get(key, "–")), str((after or {}).get(key, "–")), "")
    (console or Console()).print(table)


def _cell(shown: ShownFigure) -> str:
    return f"{shown.text} ({shown.interval.replace(' ', '')})" if shown.interval else shown.text
