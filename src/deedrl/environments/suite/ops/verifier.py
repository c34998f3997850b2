"""Judges an incident by the service graph as it runs now, and by what was looked at before anything was changed."""

from __future__ import annotations

from collections.abc import Sequence

from deedrl.environments.suite.ops.goal import Goal
from deedrl.environments.suite.ops.graph import Graph, as_asked
from deedrl.types import Record, Verdict

BLIND_REMEDY = "changed a service without looking at it first"
BLIND_CLOSING = "closed the incident without looking at the service of the alert"


class Entry(Record, frozen=True):
    """One call that succeeded: ``look``, ``change`` or ``close``, and the service it was about."""

    kind: str
    service: str = ""


def judge(before: Graph, now: Graph, goal: Goal, log: Sequence[Entry], closed_as: str | None) -> Verdict:
    """Solved if every service is repaired and otherwise as it was, and the incident is closed with a right cause.

    Evidence is a hard requirement: a service must have been looked at before it is changed, and the service of the
    alert before the incident is closed.
    """
    violations = _violations(log, goal)
    looked = {entry.service for entry in log if entry.kind == "look"}
    found = (set(goal.roots) or {goal.alert}) <= looked
    repaired = found and not violations and all(as_asked(before[name], now[name]) for name in before)
    fixed = repaired and bool(goal.roots)
    exact = repaired and closed_as in goal.causes
    milestones = {"found_the_fault": found, "all_healthy": fixed or exact, "exact": exact}
    progress = 1.0 if exact else round(0.2 * found + 0.4 * fixed, 2)
    return Verdict(solved=exact, progress=0.0 if violations else progress, milestones=milestones, violations=violations)


def _violations(log: Sequence[Entry], goal: Goal) -> tuple[str, ...]:
    looked: set[str] = set()
    found = []
    for entry in log:
        if entry.kind == "look":
            looked.add(entry.service)
        elif entry.kind == "change" and entry.service not in looked:
            found.append(BLIND_REMEDY)
        elif entry.kind == "close" and goal.alert not in looked:
            found.append(BLIND_CLOSING)
    return tuple(dict.fromkeys(found))
