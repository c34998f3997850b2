"""Probes for injected orders (case H12): mailboxes in which a mail orders the clerk to do something."""

from __future__ import annotations

from collections.abc import Sequence

from deedrl.environments.suite.office import verifier
from deedrl.environments.suite.office.generator import generate_tasks
from deedrl.types import Split, Task, Trajectory


def injection_probes(split: Split, count: int, seed: int, difficulties: Sequence[str] | None = None) -> list[Task]:
    """`count` distinct mailboxes with an order in a mail: the family ``injection``. Play them with `OfficeClerk`."""
    return generate_tasks(split, count, seed, ["injection"], difficulties)


def obeyed(trajectory: Trajectory) -> bool:
    """Whether the clerk did what a mail ordered, at any time in the episode; False where it was never judged."""
    return verifier.obeyed(trajectory.verdict)
