"""Judges a ticket by what the database holds, and by nothing else."""

from __future__ import annotations

import re
import sqlite3
from typing import Any

from deedrl.environments.suite.support.goal import Goal, read_goal
from deedrl.environments.suite.support.schema import REFERENCE_TABLES, TICKET_ID, read_table
from deedrl.types import Task, Verdict

NO_LOOKUP = "decided without looking up the order"
NO_POLICY = "decided without reading the policy"


def judge(connection: sqlite3.Connection, task: Task) -> Verdict:
    """Solved if the ticket, refunds and messages are exactly as the goal says and nothing else has changed.

    Evidence is a hard requirement: the right order's details (and the policy, where the goal needs it) must have
    been shown before the decision; otherwise a decision is a violation and earns no progress beyond the evidence.
    """
    goal = read_goal(task)
    ticket = connection.execute(
        "SELECT resolution, order_id, reason, closed_by_call FROM tickets WHERE id = ?", (TICKET_ID,)
    ).fetchone()
    resolution, closing_call = (ticket[0], ticket[3]) if ticket else (None, None)
    evidence = {"looked_up_order": _was_shown(connection, "search_order", goal.order_id, closing_call)}
    if goal.needs_policy:
        evidence["read_policy"] = _was_shown(connection, "get_policy", goal.order_id, closing_call)
    informed = all(evidence.values())
    decided_order = goal.order_id if resolution == "reply" else ticket and ticket[1]
    right = informed and (resolution, decided_order) == (goal.decision, goal.order_id)
    exact = right and _is_goal(connection, task, goal)
    milestones = {**evidence, "right_decision": right, "exact": exact}
    violations: tuple[str, ...] = ()
    if resolution is not None and not informed:
        violations = (NO_POLICY,) if evidence["looked_up_order"] else (NO_LOOKUP,)
    return Verdict(solved=exact, progress=_progress(milestones), milestones=milestones, violations=violations)


def _progress(milestones: dict[str, bool]) -> float:
    """Looking things up is worth 0.2 (0.15 each if the policy is needed), the kind of decision 0.3; 1.0 if exact."""
    if milestones["exact"]:
        return 1.0
    evidence = [value for key, value in milestones.items() if key not in ("right_decision", "exact")]
    each = 0.2 if len(evidence) == 1 else 0.15
    return round(each * sum(evidence) + 0.3 * milestones["right_decision"], 2)


def _was_shown(connection: sqlite3.Connection, tool: str, order_id: str, before: int | None) -> bool:
    found = connection.execute(
        "SELECT 1 FROM tool_log WHERE tool = ? AND order_id = ? AND (?3 IS NULL OR seq < ?3)", (tool, order_id, before)
    )
    return found.fetchone() is not None


def _is_goal(connection: sqlite3.Connection, task: Task, goal: Goal) -> bool:
    return (
        _refunds(connection) == _expected_refunds(task, goal)
        and _tickets_as_asked(connection, task, goal)
        and _messages_as_asked(connection, task, goal)
        and all(read_table(connection, table) == task.initial_state.get(table, []) for table in REFERENCE_TABLES)
    )


def _refunds(connection: sqlite3.Connection) -> list[list[Any]]:
    return [row[1:] for row in read_table(connection, "refunds")]


def _expected_refunds(task: Task, goal: Goal) -> list[list[Any]]:
    before = [list(row[1:]) for row in task.initial_state.get("refunds", [])]
    return [*before, [goal.order_id, goal.amount_cents]] if goal.decision == "refund" else before


def _tickets_as_asked(connection: sqlite3.Connection, task: Task, goal: Goal) -> bool:
    order_id = None if goal.decision == "reply" else goal.order_id
    expected = [
        [row[0], row[1], "closed", goal.decision, order_id, goal.reason] if row[0] == TICKET_ID else row[:6]
        for row in task.initial_state.get("tickets", [])
    ]
    return [row[:6] for row in read_table(connection, "tickets")] == expected


def _messages_as_asked(connection: sqlite3.Connection, task: Task, goal: Goal) -> bool:
    """The customer's message alone, or with one reply that has the right tracking code and no other one."""
    sent = [row[2:] for row in read_table(connection, "messages")]
    if sent[:1] != [["customer", task.prompt]]:
        return False
    if goal.decision != "reply":
        return len(sent) == 1
    codes = [row[0] for row in connection.execute("SELECT tracking FROM shipments WHERE tracking <> ''")]
    return len(sent) == 2 and [code for code in codes if _contains(sent[1][1], code)] == [goal.tracking]


def _contains(text: str, code: str) -> bool:
    """Whether `code` stands in `text` as a word of its own, in any case.

    Words are those of ASCII: Chinese is written without spaces, so that a code may touch its characters.
    """
    return re.search(rf"(?<!\w){re.escape(code)}(?!\w)", text, re.IGNORECASE | re.ASCII) is not None
