"""The file sink: ``metrics.jsonl`` and ``tables.jsonl`` in the run folder, strict JSON, one line per call."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from deedrl.files import append_bytes
from deedrl.tracking.sink import Number, Row
from deedrl.types import Record

METRICS_FILE = "metrics.jsonl"
TABLES_FILE = "tables.jsonl"


class MetricsLine(Record, frozen=True):
    """One line of ``metrics.jsonl``."""

    time: float
    """Seconds since 1970."""
    stage: str
    step: int
    metrics: dict[str, float | int | None]
    """By full name ``<stage>/<metric>``; null = not measured, or not finite (see `nan_fields`)."""
    nan_fields: tuple[str, ...] = ()
    """Metrics that were NaN or infinite."""


class JsonlSink:
    """Appends to the files of a run folder; each line is in the file when `log` returns."""

    name = "jsonl"

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._metrics_path = folder / METRICS_FILE
        self._tables_path = folder / TABLES_FILE

    def log(self, metrics: Mapping[str, Number], *, step: int, stage: str) -> None:
        broken = tuple(name for name, value in metrics.items() if value is not None and not math.isfinite(value))
        finite = {name: None if name in broken else value for name, value in metrics.items()}
        line = MetricsLine(time=time.time(), stage=stage, step=step, metrics=finite, nan_fields=broken)
        _append_line(self._metrics_path, line)

    def table(self, name: str, rows: Sequence[Row], *, step: int) -> None:
        _append_line(self._tables_path, {"time": time.time(), "table": name, "step": step, "rows": list(rows)})

    def close(self) -> None:
        """Nothing is held back."""


def read_metrics(folder: Path) -> dict[str, dict[int, Number]]:
    """Every metric of a run folder as step → value; of a step logged twice (a resumed run) the later line counts.

    Empty for a run without the file; half-written lines are left out.
    """
    series: dict[str, dict[int, Number]] = {}
    path = folder / METRICS_FILE
    if not path.exists():
        return series
    with path.open("rb") as file:
        for raw in file:
            try:
                line = _decoder.decode(raw)
            except msgspec.DecodeError:
                continue
            for name, value in line.metrics.items():
                series.setdefault(name, {})[line.step] = value
    return series


_decoder = msgspec.json.Decoder(MetricsLine)


def _append_line(path: Path, content: Any) -> None:
    with path.open("ab+", buffering=0) as file:
        append_bytes(file, msgspec.json.encode(content) + b"\n")
