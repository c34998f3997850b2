"""What a sink of metrics is, and what its packages are called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol

from deedrl.errors import ConfigError

Number = float | int | None
Cell = str | float | int | None
Row = Mapping[str, Cell]


class Sink(Protocol):
    """One destination. It may raise whatever it likes: the tracker then goes on without it."""

    name: str

    def log(self, metrics: Mapping[str, Number], *, step: int, stage: str) -> None:
        """Takes metrics under their full names ``<stage>/<metric>``; None = not measured; NaN may occur."""

    def table(self, name: str, rows: Sequence[Row], *, step: int) -> None:
        """Takes a few rows with equal columns; `name` is ``<stage>/<table>``."""

    def close(self) -> None:
        """Writes out what is still held back."""


def import_optional(module: str, *, extra: str) -> Any:
    """The module, or a ConfigError that names the extra to install."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"tracker '{extra}' expected the package '{extra}', which cannot be imported ({error}); "
            f"run: pip install 'deedrl[{extra}]', or take '{extra}' out of the list of trackers"
        ) from error


def cell_text(cell: Cell) -> str:
    """A cell as people read it: four significant digits, a dash for what is absent."""
    if cell is None:
        return "–"
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)
