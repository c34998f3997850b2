"""The console sink: one short line per call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.text import Text

from deedrl.redaction import strip_ansi
from deedrl.tracking.sink import Number, Row, cell_text

MAX_METRICS = 8
"""Metrics shown on a line; the first ones given, so put what matters first."""


class ConsoleSink:
    """Prints ``grpo 12  reward 0.533  kl 0.01``; the other sinks hold every metric."""

    name = "console"

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console()

    def log(self, metrics: Mapping[str, Number], *, step: int, stage: str) -> None:
        line = Text()
        line.append(f"{strip_ansi(stage)} {step}", style="bold")
        for name, value in list(metrics.items())[:MAX_METRICS]:
            line.append(f"  {strip_ansi(name.removeprefix(f'{stage}/'))} ", style="dim")
            line.append(cell_text(value))
        hidden = len(metrics) - MAX_METRICS
        if hidden > 0:
            line.append(f"  +{hidden} more", style="dim")
        self._console.print(line, soft_wrap=True)

    def table(self, name: str, rows: Sequence[Row], *, step: int) -> None:
        """Shows nothing: transcripts would bury the lines."""

    def close(self) -> None:
        """Nothing is held back."""
