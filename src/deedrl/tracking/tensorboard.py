"""The TensorBoard sink: event files in ``<folder>/tensorboard``, written without torch and without TensorFlow."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deedrl.tracking.sink import Cell, Number, Row, cell_text, import_optional


class TensorBoardSink:
    """Scalars by full name, tables as Markdown under TEXT, the configuration as text at step 0.

    Metrics that were not measured are left out; NaN is kept, since TensorBoard marks it on the curve.
    """

    name = "tensorboard"

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        files = import_optional("tensorboard.summary.writer.event_file_writer", extra="tensorboard")
        self._event = import_optional("tensorboard.compat.proto.event_pb2", extra="tensorboard").Event
        self._scalar = import_optional("tensorboard.plugins.scalar.summary_v2", extra="tensorboard").scalar_pb
        self._text = import_optional("tensorboard.plugins.text.summary_v2", extra="tensorboard").text_pb
        self._writer = files.EventFileWriter(str(folder / "tensorboard"))
        shown = json.dumps(config, indent=2, default=str)
        self._add(self._text("config", "\n".join(f"    {line}" for line in shown.splitlines())), step=0)
        self._writer.flush()

    def log(self, metrics: Mapping[str, Number], *, step: int, stage: str) -> None:
        for name, value in metrics.items():
            if value is not None:
                self._add(self._scalar(name, float(value)), step=step)
        self._writer.flush()  # so that a killed process loses nothing

    def table(self, name: str, rows: Sequence[Row], *, step: int) -> None:
        self._add(self._text(name, _markdown(rows)), step=step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def _add(self, summary: Any, *, step: int) -> None:
        self._writer.add_event(self._event(wall_time=time.time(), step=step, summary=summary))


def _markdown(rows: Sequence[Row]) -> str:
    if not rows:
        return "(no rows)"
    columns = list(rows[0])
    lines = [columns, ["---"] * len(columns), *([_escaped(row[column]) for column in columns] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _escaped(cell: Cell) -> str:
    text = cell_text(cell).replace("&", "&amp;").replace("<", "&lt;").replace("|", "&#124;")
    return text.replace("\n", "<br>")
