"""The support desk as an environment: six tools over a SQLite file."""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
from collections.abc import Sequence
from typing import ClassVar

from deedrl.environments.environment import Environment
from deedrl.environments.fixtures import Fixture
from deedrl.environments.suite.support import generator, views
from deedrl.environments.suite.support.demonstrations import demonstrate
from deedrl.environments.suite.support.fixtures import fixtures
from deedrl.environments.suite.support.goal import DenyReason, EscalateReason, read_goal
from deedrl.environments.suite.support.schema import TABLES, TICKET_ID, Books, read_table
from deedrl.environments.suite.support.verifier import judge
from deedrl.errors import ToolError
from deedrl.tools.tool import tool
from deedrl.types import Action, Split, Task, Verdict

LARGEST_AMOUNT = 1_000_000.0
"""Above this an amount is too much for any order, and too large for its cents to be told apart."""

ORDER_FORMS = "expected a 4-digit order id, e.g. 4821, or the customer's e-mail address"


class SupportDesk(Environment):
    """A shop's support desk: the prompt is a customer's message, an episode ends when the ticket is closed.

    Every tool call is written to the table ``tool_log``, which no tool can read: the verifier takes from it whether
    the order was looked up before the decision.
    """

    instructions = (
        "You run a shop's support desk. Look up the order, then decide once. "
        "Delivery problem: refund if lost or damaged, else deny. "
        "Damage: refund the item damaged in the photo, else deny. "
        "Return: get_policy; refund inside the window, else deny. "
        "Above 400, fraud flag or legal threat: escalate. "
        "Where is the parcel: reply with the tracking code; if lost, refund."
    )
    max_steps: ClassVar[int] = 8
    blocking: ClassVar[bool] = False
    connection: sqlite3.Connection

    def __init__(self) -> None:
        self._books = Books()

    def setup(self, task: Task) -> None:
        self.connection = self._books.renew(task)

    def close(self) -> None:
        super().close()
        self._books.close()

    def verify(self, task: Task) -> Verdict:
        return judge(self.connection, task)

    def demonstrate(self, task: Task) -> Sequence[Action]:
        return demonstrate(task)

    def state_hash(self) -> str:
        """Hash over all tables but ``tool_log``: looking something up twice leaves the books as they were."""
        rows = {table: read_table(self.connection, table) for table in TABLES if table != "tool_log"}
        for ticket in rows["tickets"]:
            ticket.pop()
        return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]

    @classmethod
    def fixtures(cls, task: Task) -> Sequence[Fixture]:
        return fixtures(task)

    @classmethod
    def gold_strings(cls, task: Task) -> list[str]:
        """The amount and the tracking code: an agent gets them by looking up the order, and from nowhere else."""
        goal = read_goal(task)
        amount = None if goal.amount_cents is None else views.money(goal.amount_cents)
        return [text for text in (amount, goal.tracking) if text is not None]

    @classmethod
    def generate_tasks(
        cls,
        split: Split,
        count: int,
        seed: int,
        families: Sequence[str] | None = None,
        difficulties: Sequence[str] | None = None,
    ) -> list[Task]:
        """`count` tasks, balanced over families and difficulties (all, or those named); see `generator`."""
        return generator.generate_tasks(split, count, seed, families, difficulties)

    # ------------------------------------------------------------ looking things up

    @tool(read_only=True)
    def search_order(self, query: str) -> str:
        """Finds orders.

        Args:
            query: Order id or customer e-mail.
        """
        wanted = query.strip().lstrip("#").strip()
        if "@" in wanted:
            return self._orders_of_customer(wanted)
        self._known_order(wanted)
        self._log("search_order", query, wanted)
        return views.describe_order(self.connection, wanted)

    def _orders_of_customer(self, email: str) -> str:
        order_ids = views.orders_of(self.connection, email)
        if not order_ids:
            raise ToolError(f"no customer has the e-mail '{email[:60]}'; {ORDER_FORMS}")
        if len(order_ids) > views.FULL_LISTING:
            self._log("search_order", email, None)
            return views.list_orders(self.connection, order_ids)
        for order_id in order_ids:
            self._log("search_order", email, order_id)
        return views.describe_orders(self.connection, order_ids)

    @tool(read_only=True)
    def get_policy(self, order_id: str) -> str:
        """Shows the return policy for an order."""
        order_id = self._known_order(order_id)
        self._log("get_policy", order_id, order_id)
        return views.describe_policy(self.connection, order_id)

    # ------------------------------------------------------------ decisions, each closes the ticket

    @tool(ends_episode=True)
    def issue_refund(self, order_id: str, amount: float) -> str:
        """Refunds an amount and closes the ticket."""
        self._open_ticket()
        order_id = self._known_order(order_id)
        cents = self._refundable(order_id, amount)
        self.connection.execute("INSERT INTO refunds (order_id, amount_cents) VALUES (?, ?)", (order_id, cents))
        self._close_ticket("issue_refund", "refund", order_id, None, str(amount))
        return f"Refunded {views.money(cents)} for order {order_id}. Ticket closed."

    @tool(ends_episode=True)
    def deny_refund(self, order_id: str, reason: DenyReason) -> str:
        """Denies a refund and closes the ticket."""
        self._open_ticket()
        order_id = self._known_order(order_id)
        self._close_ticket("deny_refund", "deny", order_id, reason, reason)
        return f"Refund for order {order_id} denied: {reason}. Ticket closed."

    @tool(ends_episode=True)
    def escalate(self, order_id: str, reason: EscalateReason) -> str:
        """Hands the ticket to a manager and closes it."""
        self._open_ticket()
        order_id = self._known_order(order_id)
        self._close_ticket("escalate", "escalate", order_id, reason, reason)
        return f"Order {order_id} handed to a manager: {reason}. Ticket closed."

    @tool(ends_episode=True)
    def reply_customer(self, message: str) -> str:
        """Sends the customer a message and closes the ticket."""
        self._open_ticket()
        if not message.strip():
            raise ToolError("the message is empty; expected the text for the customer")
        self.connection.execute(
            "INSERT INTO messages (ticket_id, sender, text) VALUES (?, 'desk', ?)", (TICKET_ID, message)
        )
        self._close_ticket("reply_customer", "reply", None, None, message)
        return "Message sent. Ticket closed."

    # ------------------------------------------------------------ inside

    def _known_order(self, order_id: str) -> str:
        wanted = order_id.strip().lstrip("#").strip()
        if not re.fullmatch(r"[0-9]{4}", wanted) or not views.find_order(self.connection, wanted):
            raise ToolError(f"there is no order '{wanted[:60]}'; {ORDER_FORMS}")
        return wanted

    def _refundable(self, order_id: str, amount: float) -> int:
        """`amount` in cents; refuses without saying what would be right, since that is to be looked up."""
        if amount <= 0:
            raise ToolError(f"the amount must be a number above 0, got {amount}")
        cents = round(min(amount, LARGEST_AMOUNT) * 100)
        if amount < LARGEST_AMOUNT and abs(amount * 100 - cents) > 1e-6:
            raise ToolError(f"the amount must have at most two decimals, e.g. 24.95, got {amount}")
        paid, refunded = self.connection.execute(
            "SELECT (SELECT sum(price_cents) FROM order_items WHERE order_id = ?1), "
            "(SELECT coalesce(sum(amount_cents), 0) FROM refunds WHERE order_id = ?1)",
            (order_id,),
        ).fetchone()
        if refunded >= paid:
            raise ToolError(f"order {order_id} is refunded already")
        if cents > paid - refunded:
            raise ToolError(f"{views.money(cents)} is more than was paid for order {order_id}; look the order up")
        return cents

    def _open_ticket(self) -> None:
        status = self.connection.execute("SELECT status FROM tickets WHERE id = ?", (TICKET_ID,)).fetchone()
        if status != ("open",):
            raise ToolError("the ticket is closed; nothing more can be decided")

    def _close_ticket(
        self, name: str, resolution: str, order_id: str | None, reason: str | None, argument: str
    ) -> None:
        call = self._log(name, argument, order_id)
        self.connection.execute(
            "UPDATE tickets SET status = 'closed', resolution = ?, order_id = ?, reason = ?, closed_by_call = ? "
            "WHERE id = ?",
            (resolution, order_id, reason, call, TICKET_ID),
        )

    def _log(self, name: str, argument: str, order_id: str | None) -> int:
        """Notes the call, and the order whose details it showed; returns the call's number."""
        cursor = self.connection.execute(
            "INSERT INTO tool_log (tool, argument, order_id) VALUES (?, ?, ?)", (name, argument, order_id)
        )
        return int(cursor.lastrowid or 0)
