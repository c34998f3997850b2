"""What episodes say of how often a task is solved now: old ones fade, for the policy has changed since."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec

from deedrl.tasks.intervals import wilson
from deedrl.tasks.pool import TaskPool
from deedrl.tasks.statistics import TaskStatistics
from deedrl.types import Record


class Experience(Record, frozen=True, kw_only=True):
    """Episodes of one task, as of a step."""

    attempts: int = 0
    """All episodes ever, the unscored ones included; this does not fade."""
    unscored: int = 0
    """Those that were never judged (infrastructure trouble); they say nothing of the task."""
    solved: float = 0.0
    """Weight of the solved episodes: 1 each when played, less from then on."""
    scored: float = 0.0
    """Weight of the scored episodes."""
    step: int = 0
    """As of which the weights hold."""

    @property
    def success_rate(self) -> float | None:
        """Weight solved over weight scored; None if no episode was scored, which is not 0."""
        return self.solved / self.scored if self.scored else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of the success rate (Wilson), the weights taken for counts; None where there is no rate."""
        return wilson(self.solved, self.scored) if self.scored else None

    def at(self, step: int, half_life: float | None) -> Experience:
        """The same at a later step, the weights halved every `half_life` steps; None halves nothing."""
        if step < self.step:
            raise ValueError(f"expected a step of at least {self.step}, as of which this holds, got {step}")
        factor = 1.0 if half_life is None else 0.5 ** ((step - self.step) / half_life)
        return msgspec.structs.replace(self, solved=self.solved * factor, scored=self.scored * factor, step=step)

    def plus(self, outcomes: TaskStatistics) -> Experience:
        """With episodes played at its own step."""
        return msgspec.structs.replace(
            self,
            attempts=self.attempts + outcomes.attempts,
            unscored=self.unscored + outcomes.unscored,
            solved=self.solved + outcomes.solved,
            scored=self.scored + outcomes.scored,
        )


@dataclass(frozen=True)
class Ledger:
    """The experience with every task that was tried; a new ledger for every step, none is changed."""

    entries: Mapping[str, Experience] = field(default_factory=dict)
    half_life: float | None = None
    """Steps after which an episode weighs half; None never forgets."""

    def of(self, task_id: str, step: int) -> Experience:
        """As of `step`; nothing at all if the task was never tried."""
        entry = self.entries.get(task_id)
        return Experience(step=step) if entry is None else entry.at(step, self.half_life)

    def after(self, step: int, outcomes: Mapping[str, TaskStatistics]) -> Ledger:
        """With the episodes of `step`."""
        new = {task_id: self.of(task_id, step).plus(seen) for task_id, seen in outcomes.items()}
        return replace(self, entries={**self.entries, **new})

    def version(self, tasks: TaskPool) -> str:
        """16 hex digits of SHA-256 over the tasks' ids and all experience: equal versions, equal choices."""
        content = msgspec.json.encode(dict(self.entries), order="deterministic")
        return hashlib.sha256(tasks.version.encode() + content).hexdigest()[:16]
