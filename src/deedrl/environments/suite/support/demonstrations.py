"""The shortest right way through a ticket, with the reasons in a few words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deedrl.environments.suite.support.goal import Goal, read_goal
from deedrl.environments.suite.support.schema import TABLES
from deedrl.environments.suite.support.views import FULL_LISTING, days_between, money
from deedrl.types import Action, Task

Facts = Mapping[str, Any]
"""What the database says of the order, by name."""


_LOOKUP = ("Look up {query} first.", "First I search {query}.", "I need the facts: search {query}.")
_POLICY: Mapping[bool, Sequence[str]] = {
    False: ("It is a return, so read the policy.", "A return: check the window.", "The return window decides."),
    True: ("Minor damage: read the policy.", "The policy gives the share.", "See the policy for minor damage."),
}
_REFUND: Mapping[str, Sequence[str]] = {
    "lost": ("Status: {status}. Lost, so refund {amount}.", "It is lost ({status}): refund {amount}."),
    "damaged": ("Status: {status}. Damaged, so refund {amount}.", "It is damaged ({status}): refund {amount}."),
    "return": (
        "Delivered {days} days ago, window {window} days: inside, so refund {amount}.",
        "{days} days is inside the window of {window}: refund {amount}.",
    ),
    "return/words": ("Inside the window, so refund {amount}.", "The policy says inside: refund {amount}."),
    "item": ("Photo: {photo}. Refund its price {amount}.", "Only the {item} is damaged: refund {amount}."),
    "share": (
        "{percent}% of {price} is {amount}: refund {amount}.",
        "Minor damage to the {item}: {percent}% of {price} is {amount}.",
    ),
}
_REASONS: Mapping[str, Sequence[str]] = {
    "delivered": ("Status: {status}. It was delivered, so deny.", "Delivered ({status}): no refund."),
    "in_transit": ("Status: {status}. Still in transit, so deny.", "In transit ({status}): no refund."),
    "outside_window": (
        "Delivered {days} days ago, window {window} days: outside, so deny.",
        "{days} days is outside the window of {window}: deny.",
    ),
    "outside_window/words": ("Outside the window, so deny.", "The policy says outside: deny."),
    "not_damaged": ("Photo: {photo}. Not damaged, so deny.", "The photo shows {photo}: deny."),
    "already_refunded": ("It was refunded before, so deny.", "The database has a refund already: deny."),
    "amount_above_limit": ("{sum} is above 400: escalate.", "The amount {sum} is over 400, so escalate."),
    "fraud_flag": ("The account is flagged for fraud: escalate.", "Fraud flag on the account, so escalate."),
    "legal_threat": ("The customer threatens legal action: escalate.", "A legal threat, so escalate."),
}
_REPLY = ("On its way, tracking {tracking}: tell the customer.", "The tracking code is {tracking}: reply with it.")
_MESSAGES = (
    "Your parcel is on its way, tracking {tracking}.",
    "Your tracking code is {tracking}.",
    "It is on its way. Tracking code: {tracking}.",
)


def demonstrate(task: Task) -> list[Action]:
    """Look-ups, the policy where it is needed, then the decision; wording varies with the task's id."""
    goal = read_goal(task)
    facts = _facts(task, goal)
    draw = int(task.id or "0", 16)
    actions = [
        Action(
            tool_name="search_order", parameters={"query": query}, reasoning=_pick(_LOOKUP, draw + turn, query=query)
        )
        for turn, query in enumerate(_queries(task, goal))
    ]
    if goal.needs_policy:
        parameters = {"order_id": goal.order_id}
        actions.append(
            Action(tool_name="get_policy", parameters=parameters, reasoning=_pick(_POLICY[goal.cause == "share"], draw))
        )
    actions.append(_decide(goal, facts, draw))
    return actions


def shortest_steps(task: Task) -> int:
    """Number of actions in the demonstration."""
    goal = read_goal(task)
    return len(_queries(task, goal)) + goal.needs_policy + 1


def _queries(task: Task, goal: Goal) -> list[str]:
    """The order's id if the customer gives it; else the e-mail address, and the id if the listing has no details."""
    if goal.order_id in task.prompt:
        return [goal.order_id]
    orders = _rows(task, "orders")
    customer_id = next(row["customer_id"] for row in orders if row["id"] == goal.order_id)
    email = next(row["email"] for row in _rows(task, "customers") if row["id"] == customer_id)
    listed = sum(row["customer_id"] == customer_id for row in orders)
    return [email] if listed <= FULL_LISTING else [email, goal.order_id]


def _decide(goal: Goal, facts: Facts, draw: int) -> Action:
    if goal.decision == "refund":
        name, parameters = "issue_refund", {"order_id": goal.order_id, "amount": (goal.amount_cents or 0) / 100}
        templates = _REFUND.get(f"{goal.cause}/{facts['detail']}", _REFUND[goal.cause])
    elif goal.decision == "reply":
        name, parameters = "reply_customer", {"message": _pick(_MESSAGES, draw // 7, **facts)}
        templates = _REPLY
    else:
        name = "deny_refund" if goal.decision == "deny" else "escalate"
        parameters = {"order_id": goal.order_id, "reason": goal.reason}
        templates = _REASONS.get(f"{goal.reason}/{facts['detail']}", _REASONS[str(goal.reason)])
    return Action(tool_name=name, parameters=parameters, reasoning=_pick(templates, draw, **facts))


def _facts(task: Task, goal: Goal) -> Facts:
    """What the reasons may quote; all of it stands in the observations of the look-ups."""
    order = next(row for row in _rows(task, "orders") if row["id"] == goal.order_id)
    items = [row for row in _rows(task, "order_items") if row["order_id"] == goal.order_id]
    shipment = _shipment(task, goal)
    policy = next(row for row in _rows(task, "policies") if row["category"] == order["category"])
    desk = _rows(task, "desk")[0]
    damaged = next((item for item in items if order["photo"].startswith(item["name"])), items[0])
    return {
        "detail": desk["policy_detail"],
        "status": shipment["status"].rsplit("; then ", 1)[-1],
        "amount": money(goal.amount_cents or 0),
        "total": money(sum(item["price_cents"] for item in items)),
        "sum": " + ".join(money(item["price_cents"]) for item in items),
        "item": damaged["name"],
        "price": money(damaged["price_cents"]),
        "photo": order["photo"],
        "percent": policy["minor_damage_percent"],
        "window": policy["window_days"],
        "days": None if shipment["delivered_on"] is None else days_between(shipment["delivered_on"], desk["today"]),
        "tracking": goal.tracking,
    }


def _shipment(task: Task, goal: Goal) -> Mapping[str, Any]:
    """The parcel that decides: the one with the tracking code asked for, the lost one of several, or the only one."""
    parcels = [row for row in _rows(task, "shipments") if row["order_id"] == goal.order_id]
    if goal.tracking:
        return next(row for row in parcels if row["tracking"] == goal.tracking)
    return next((row for row in parcels if not row["tracking"]), parcels[0])


def _rows(task: Task, table: str) -> list[dict[str, Any]]:
    names = [column.split()[0] for column in TABLES[table]]
    return [dict(zip(names, row, strict=True)) for row in task.initial_state[table]]


def _pick(templates: Sequence[str], draw: int, **facts: Any) -> str:
    return templates[draw % len(templates)].format(**facts)
