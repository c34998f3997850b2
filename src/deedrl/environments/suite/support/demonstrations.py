"""The shortest right way through a ticket, with the reasons in a few words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deedrl.environments.suite.support import views
from deedrl.environments.suite.support.goal import Goal, read_goal
from deedrl.environments.suite.support.schema import TABLES
from deedrl.types import Action, Task

Facts = Mapping[str, Any]
"""What the database says of the order, by name."""


_ABOUT: Mapping[str, str] = {
    "return": "A return.",
    "damage": "Damage: see the photo.",
    "parcel": "Where is the parcel?",
    "delivery": "A delivery problem.",
}
"""What the customer writes about: the first reason names it, so that later ones can lean on it."""

_POLICY: Mapping[bool, str] = {False: "A return: see the policy.", True: "Minor damage: see the policy."}
_REFUND: Mapping[str, str] = {
    "lost": "{parcel}. Refund.",
    "damaged": "{parcel}. Refund.",
    "return": "Delivered {days} days ago, window {window} days: inside. Refund {amount}.",
    "return/words": "Inside the return window. Refund.",
    "item": "Photo: {photo}. {item} {price}. Refund.",
    "share": "Minor damage: {percent}% of {price} is {amount}. Refund.",
}
_REASONS: Mapping[str, str] = {
    "delivered": "{parcel}. Deny.",
    "in_transit": "{parcel}. Deny.",
    "outside_window": "Delivered {days} days ago, window {window} days: outside. Deny.",
    "outside_window/words": "Outside the return window. Deny.",
    "not_damaged": "Photo: {photo}. Deny.",
    "already_refunded": "Refunded before. Deny.",
    "amount_above_limit": "{sum} is above 400. Escalate.",
    "amount_above_limit/words": "Above 400. Escalate.",
    "fraud_flag": "Account: flagged for fraud. Escalate.",
    "legal_threat": "A legal threat. Escalate.",
}
_REPLY = "{parcel}. Reply."
_MESSAGE = "Your tracking code is {tracking}."


def demonstrate(task: Task) -> list[Action]:
    """Look-ups, the policy where it is needed, then the decision.

    Reasons quote what decides as the desk wrote it, so that each detail is copied from what stands before it.
    """
    goal = read_goal(task)
    queries = _queries(task, goal)
    about = _ABOUT[_subject(task, goal)]
    actions = [Action(tool_name="search_order", parameters={"query": query}, reasoning=about) for query in queries]
    if goal.needs_policy:
        reason = _POLICY[goal.cause == "share"]
        actions.append(Action(tool_name="get_policy", parameters={"order_id": goal.order_id}, reasoning=reason))
    actions.append(_decide(goal, _facts(task, goal, listed=goal.order_id not in queries)))
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
    return [email] if listed <= views.FULL_LISTING else [email, goal.order_id]


def _subject(task: Task, goal: Goal) -> str:
    if goal.cause == "return" or goal.reason == "outside_window":
        return "return"
    if goal.tracking or task.family == "inform":
        return "parcel"
    photo = next(row["photo"] for row in _rows(task, "orders") if row["id"] == goal.order_id)
    return "damage" if photo else "delivery"


def _decide(goal: Goal, facts: Facts) -> Action:
    parameters: dict[str, Any]
    if goal.decision == "refund":
        name, parameters = "issue_refund", {"order_id": goal.order_id, "amount": (goal.amount_cents or 0) / 100}
        reason = _REFUND.get(f"{goal.cause}/{facts['detail']}", _REFUND[goal.cause])
    elif goal.decision == "reply":
        name, parameters, reason = "reply_customer", {"message": _MESSAGE.format(**facts)}, _REPLY
    else:
        name = "deny_refund" if goal.decision == "deny" else "escalate"
        parameters = {"order_id": goal.order_id, "reason": goal.reason}
        reason = _REASONS.get(f"{goal.reason}/{facts['detail']}", _REASONS[str(goal.reason)])
    return Action(tool_name=name, parameters=parameters, reasoning=reason.format(**facts))


def _facts(task: Task, goal: Goal, listed: bool) -> Facts:
    """What the reasons may quote; all of it stands in the observations of the look-ups.

    `listed`: the order was shown as one of several, so that its parcel has to be told from the others.
    """
    order = next(row for row in _rows(task, "orders") if row["id"] == goal.order_id)
    items = [row for row in _rows(task, "order_items") if row["order_id"] == goal.order_id]
    shipment = _shipment(task, goal)
    policy = next(row for row in _rows(task, "policies") if row["category"] == order["category"])
    desk = _rows(task, "desk")[0]
    damaged = next((item for item in items if order["photo"].startswith(item["name"])), items[0])
    parcel = views.parcel(shipment["status"].rsplit("; then ", 1)[-1], shipment["tracking"])
    line = views.order_line(goal.order_id, views.priced(items[0]["name"], items[0]["price_cents"]), [parcel])
    return {
        "detail": desk["policy_detail"],
        "parcel": line if listed else f"Status: {parcel}",
        "amount": views.money(goal.amount_cents or 0),
        "sum": " + ".join(views.money(item["price_cents"]) for item in items),
        "item": damaged["name"],
        "price": views.money(damaged["price_cents"]),
        "photo": order["photo"],
        "percent": policy["minor_damage_percent"],
        "window": policy["window_days"],
        "days": None
        if shipment["delivered_on"] is None
        else views.days_between(shipment["delivered_on"], desk["today"]),
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
