"""The figures of a stage's steps so far, in memory: reading them from the run at every step would cost their square."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from deedrl.tracking.jsonl import read_metrics


class StageFigures:
    """Of each figure its values in the order of steps; those that are missing or not finite are left out."""

    def __init__(self) -> None:
        self._series: dict[str, list[float]] = {}

    @classmethod
    def logged(cls, folder: Path, stage: str, step: int) -> StageFigures:
        """What the run in `folder` logged of `stage` up to `step`, at which it goes on; nothing at step 0.

        An interrupted attempt may have logged further.
        """
        seen = cls()
        if not step:
            return seen
        for name, by_step in read_metrics(folder).items():
            of, _, figure = name.rpartition("/")
            if of == stage:
                for at in sorted(by_step):
                    seen.add({figure: by_step[at] if at <= step else None})
        return seen

    def add(self, figures: Mapping[str, float | None]) -> None:
        """What the stage's next step says, or the next validation."""
        for name, value in figures.items():
            if value is not None and math.isfinite(value):
                self._series.setdefault(name, []).append(value)

    def __getitem__(self, name: str) -> Sequence[float]:
        """The values of `name`, the newest last; empty if there are none."""
        return self._series.get(name, ())
