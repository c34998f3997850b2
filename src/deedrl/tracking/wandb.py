"""The Weights & Biases sink. Without an account it works offline; ``wandb sync`` uploads later."""

from __future__ import annotations

import netrc
import os
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from deedrl.files import write_atomically
from deedrl.tracking.sink import Number, Row, import_optional

PROJECT = "deedrl"
RUN_ID_FILE = "wandb-run-id"


class WandbSink:
    """Metrics by full name, each stage on its own step axis ``<stage>/step``; files in ``<folder>/wandb``.

    Mode: what ``WANDB_MODE`` says; else online with an API key (``WANDB_API_KEY`` or ``wandb login``), offline without.
    A resumed folder continues its run. Code, Git state, console output and command line are not uploaded.
    """

    name = "wandb"

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._wandb = import_optional("wandb", extra="wandb")
        folder.mkdir(parents=True, exist_ok=True)
        mode = default_mode()
        self._run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=os.environ.get("WANDB_NAME", folder.resolve().name),
            id=_run_id(folder),
            resume=None if mode == "offline" else "allow",
            dir=str(folder),
            config=dict(config),
            mode=mode,
            settings=self._wandb.Settings(
                console="off", disable_git=True, save_code=False, silent=True, x_disable_meta=True
            ),
        )
        self._stages: set[str] = set()

    def log(self, metrics: Mapping[str, Number], *, step: int, stage: str) -> None:
        self._log({name: value for name, value in metrics.items() if value is not None}, step=step, stage=stage)

    def table(self, name: str, rows: Sequence[Row], *, step: int) -> None:
        # A new small table each step: one table that grows is uploaded whole every time (case I06).
        columns = list(rows[0]) if rows else []
        data = [[row[column] for column in columns] for row in rows]
        table = self._wandb.Table(columns=columns, data=data, allow_mixed_types=True)
        self._log({name: table}, step=step, stage=name.partition("/")[0])

    def close(self) -> None:
        self._run.finish()

    def _log(self, values: Mapping[str, Any], *, step: int, stage: str) -> None:
        axis = f"{stage}/step"
        if stage not in self._stages:
            self._stages.add(stage)
            self._run.define_metric(axis, hidden=True)
            self._run.define_metric(f"{stage}/*", step_metric=axis)
        self._run.log({**values, axis: step})


def default_mode() -> str | None:
    """``offline`` where nobody chose a mode and there is no account to log in to; else None (wandb decides)."""
    if os.environ.get("WANDB_MODE") or os.environ.get("WANDB_API_KEY"):
        return None
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        return None if netrc.netrc(os.environ.get("NETRC")).authenticators(host) else "offline"
    except (OSError, netrc.NetrcParseError):
        return "offline"


def _run_id(folder: Path) -> str:
    """The id kept in the run folder, so that a resumed run continues its curves and a new folder starts new ones."""
    path = folder / RUN_ID_FILE
    if not path.exists():
        write_atomically(path, uuid.uuid4().hex[:16].encode())
    return path.read_text(encoding="utf-8").strip()
