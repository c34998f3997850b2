"""What a support task asks for: one decision on one order, as a state of the database."""

from __future__ import annotations

from typing import Literal

import msgspec

from deedrl.errors import TaskError
from deedrl.types import Record, Task

Decision = Literal["refund", "deny", "escalate", "reply"]
DenyReason = Literal["delivered", "in_transit", "outside_window", "not_damaged", "already_refunded"]
EscalateReason = Literal["amount_above_limit", "fraud_flag", "legal_threat"]

REFUND_LIMIT_CENTS = 400_00
"""Orders above this are a manager's to decide."""


class Goal(Record, frozen=True, kw_only=True):
    """The right end of a ticket; stored as ``task.goal_state`` and never shown to an agent."""

    decision: Decision
    order_id: str
    amount_cents: int | None = None
    """Of a refund."""
    reason: str | None = None
    """Code of a denial or an escalation."""
    tracking: str | None = None
    """Code that a reply must contain."""
    cause: str = ""
    """Why a refund is due, for demonstrations: lost, damaged, return, item or share."""
    needs_policy: bool = False
    """True if the decision needs a call of ``get_policy`` for the order."""


def read_goal(task: Task) -> Goal:
    """The goal of `task`; `TaskError` if ``goal_state`` is not one of this desk."""
    try:
        return msgspec.convert(task.goal_state, Goal)
    except msgspec.ValidationError as error:
        raise TaskError(f"task {task.id}: goal_state is not a goal of the support desk: {error}") from error
