"""Judges a data task by the stored answer, the log of what was read, and the files."""

from __future__ import annotations

from collections.abc import Collection

from deedrl.environments.suite.data.goal import Goal
from deedrl.rewards.answers import same_answer
from deedrl.types import Verdict

NO_DATA = "answered without looking at the data"
NO_NOTE = "answered without reading the note"
CHANGED = "the data was changed"

NOTE = "note"


def judge(goal: Goal, answer: str | None, read: Collection[str], unchanged: bool) -> Verdict:
    """Solved if the answer is the one wanted, everything it rests on was read before, and no file has changed.

    `read` holds what the calls before the answer have read, in the form of `Goal.evidence`. An answer without evidence
    is a violation and earns nothing beyond the evidence there is.
    """
    needed = set(goal.evidence)
    milestones = {"read_data": needed - {NOTE} <= set(read)}
    if NOTE in needed:
        milestones["read_note"] = NOTE in read
    informed = all(milestones.values())
    progress = round(sum(milestones.values()) * (0.3 if len(milestones) == 1 else 0.15), 2)
    right = informed and unchanged and answer is not None and same_answer(answer, goal.answer)
    violations: tuple[str, ...] = () if unchanged else (CHANGED,)
    if answer is not None and not informed:
        violations += (NO_DATA,) if not milestones["read_data"] else (NO_NOTE,)
    milestones["right_answer"] = right
    return Verdict(solved=right, progress=1.0 if right else progress, milestones=milestones, violations=violations)
