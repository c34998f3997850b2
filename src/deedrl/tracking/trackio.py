"""The Trackio sink: a local database that ``trackio show --project deedrl`` displays; no account, no network."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deedrl.tracking.sink import Number, Row, import_optional

PROJECT = "deedrl"


class TrackioSink:
    """Metrics by full name. Trackio keeps its own folder (``TRACKIO_DIR``), so that its dashboard finds the run.

    The run is named after the run folder; a resumed folder continues it.
    """

    name = "trackio"

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._trackio = import_optional("trackio", extra="trackio")
        self._run = self._trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", PROJECT),
            name=folder.resolve().name,
            config=dict(config),
            resume="allow",
            embed=False,
        )

    def log(self, metrics: Mapping[str, Number], *, step: int, stage: str) -> None:
        self._run.log({name: value for name, value in metrics.items() if value is not None}, step=step)

    def table(self, name: str, rows: Sequence[Row], *, step: int) -> None:
        columns = list(rows[0]) if rows else []
        data = [[row[column] for column in columns] for row in rows]
        self._run.log({name: self._trackio.Table(columns=columns, data=data)}, step=step)

    def close(self) -> None:
        self._run.finish()
