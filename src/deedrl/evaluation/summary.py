"""`summary.json`: the figures before and after a run and after each stage; its field names are a public contract."""

from __future__ import annotations

from pathlib import Path

import msgspec

from deedrl.errors import StoreError
from deedrl.evaluation.metrics import Metrics
from deedrl.files import write_atomically
from deedrl.types import Record

UNSEEN_SUFFIX = "_unseen"
"""A stage summary called ``<stage>_unseen`` holds the same stage's figures on the split ``test_unseen``."""


class StageSummary(Record, frozen=True):
    """One stage of a run."""

    name: str
    seconds: float
    metrics: Metrics | None
    """Figures of the evaluation after the stage, or of the episodes it ran; None when it ran none."""


class Summary(Record, frozen=True):
    """A run: `before` and `after` are measured on the same held-out tasks with the same sampling."""

    before: Metrics | None
    """None while not measured yet."""
    after: Metrics | None
    stages: tuple[StageSummary, ...] = ()


def write_summary(path: Path, summary: Summary) -> None:
    """Writes `summary` as indented JSON; a reader sees the old file or the new one, never half of one."""
    data = msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data)
    except OSError as error:
        raise StoreError(
            f"cannot write the summary '{path}': {error.strerror or error}; the earlier file, if any, is intact. "
            f"Free space or choose another run folder"
        ) from error


def read_summary(path: Path) -> Summary:
    """Reads what `write_summary` wrote; a missing or malformed file is a `StoreError`."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Summary)
    except (OSError, msgspec.MsgspecError) as error:
        raise StoreError(f"expected a run's summary at '{path}', got: {error}; run the recipe (again)") from error
