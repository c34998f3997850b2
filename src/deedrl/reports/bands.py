"""What the report page shows of measured difficulty: how many training tasks lay in each band, step by step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from deedrl.pipeline.run import StageResult

MAX_ROWS = 10


class BandRow(msgspec.Struct, frozen=True, kw_only=True):
    """The pool at one moment."""

    title: str
    counts: tuple[tuple[str, int], ...]
    """(band, tasks), the hardest first."""
    stood_in: int | None
    """Tasks of the step that stood in for a band that had run out; None outside steps."""

    @property
    def shares(self) -> tuple[tuple[str, float], ...]:
        """(band, share of the tasks)."""
        total = sum(count for _, count in self.counts)
        return tuple((band, count / total if total else 0.0) for band, count in self.counts)


class BandHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The pool over the steps of one stage, or as one profile found it."""

    stage: str
    rows: tuple[BandRow, ...]


def band_histories(events: Iterable[Mapping[str, Any]], finished: Mapping[str, StageResult]) -> tuple[BandHistory, ...]:
    """Profiles, then stages with a curriculum; of many steps some, evenly, the first and the last among them."""
    profiles = [
        BandHistory(stage=name, rows=(_row("as profiled", result.metrics["bands"], None),))
        for name, result in finished.items()
        if isinstance(result.metrics.get("bands"), Mapping)
    ]
    steps: dict[str, dict[int, BandRow]] = {}
    for event in events:
        if event.get("event") == "curriculum":
            stood_in = sum((event.get("fallback") or {}).values())
            step = int(event["step"])
            # After a resume a step is said again, and is the same.
            steps.setdefault(str(event["stage"]), {})[step] = _row(f"step {step}", event["pool"], stood_in)
    stages = [
        BandHistory(stage=stage, rows=tuple(rows[step] for step in _some(sorted(rows))))
        for stage, rows in steps.items()
    ]
    return (*profiles, *stages)


def _row(title: str, counts: Mapping[str, int], stood_in: int | None) -> BandRow:
    return BandRow(title=title, counts=tuple((str(b), int(n)) for b, n in counts.items()), stood_in=stood_in)


def _some(steps: Sequence[int]) -> Sequence[int]:
    if len(steps) <= MAX_ROWS:
        return steps
    return [steps[round(index * (len(steps) - 1) / (MAX_ROWS - 1))] for index in range(MAX_ROWS)]
