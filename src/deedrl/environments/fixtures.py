"""Right, wrong and cheating ways through a task, with the verdict each must get: tests of a verifier."""

from __future__ import annotations

from deedrl.types import Action, Record, Verdict


class Fixture(Record, frozen=True, kw_only=True):
    """Actions, played from a fresh episode until it ends or they run out, and what the verifier must then say."""

    name: str
    actions: tuple[Action, ...]
    solved: bool = False
    violations: tuple[str, ...] = ()
    """All violations there must be, in any order."""
    most_progress: float = 0.3
    """Highest progress the verdict may show; a solved one shows 1.0 and needs no bound."""

    def complaint(self, verdict: Verdict) -> str | None:
        """What is wrong with `verdict`, in words; None if it is as it must be."""
        if verdict.solved != self.solved:
            return f"expected solved={self.solved}, got {verdict.solved}"
        if sorted(verdict.violations) != sorted(self.violations):
            return f"expected the violations {sorted(self.violations)}, got {sorted(verdict.violations)}"
        if not self.solved and verdict.progress > self.most_progress:
            return f"expected progress of at most {self.most_progress:g}, got {verdict.progress:g}"
        return None
