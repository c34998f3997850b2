"""What the desk's tools show of the database, in as few tokens as possible."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import date

from deedrl.environments.suite.support.goal import REFUND_LIMIT_CENTS

FULL_LISTING = 2
"""Up to this many orders of a customer are shown in full; more are shown as ids and items only."""


def money(cents: int) -> str:
    """Cents as shown to customers, e.g. 24.95."""
    return f"{cents // 100}.{cents % 100:02d}"


def find_order(connection: sqlite3.Connection, order_id: str) -> bool:
    return connection.execute("SELECT 1 FROM orders WHERE id = ?", (order_id,)).fetchone() is not None


def orders_of(connection: sqlite3.Connection, email: str) -> list[str]:
    """Ids of the orders of the customer with this e-mail address (any case), oldest row first."""
    rows = connection.execute(
        "SELECT orders.id FROM orders JOIN customers ON customers.id = customer_id WHERE lower(email) = lower(?) "
        "ORDER BY orders.rowid",
        (email,),
    )
    return [row[0] for row in rows]


def describe_order(connection: sqlite3.Connection, order_id: str) -> str:
    """Items with prices, state of each parcel, photo report, earlier refund and account flag.

    Where the desk speaks in words, it also says that an order is above the limit for refunds.
    """
    items, status = _items(connection, order_id), _status(connection, order_id)
    parts = [f"Order {order_id}: {items}", f"Status: {status}" if status else "", *_notes(connection, order_id)]
    return ". ".join(part for part in parts if part) + "."


def describe_orders(connection: sqlite3.Connection, order_ids: list[str]) -> str:
    """The same, one order a line and without labels."""
    return "\n".join(
        order_line(
            order_id, _items(connection, order_id), [_status(connection, order_id), *_notes(connection, order_id)]
        )
        for order_id in order_ids
    )


def order_line(order_id: str, items: str, facts: Sequence[str]) -> str:
    """One order of several: the items come first, since by them the customer means it."""
    return ", ".join(fact for fact in (f"{items}: order {order_id}", *facts) if fact)


def _items(connection: sqlite3.Connection, order_id: str) -> str:
    """Products and prices; in brackets the state of a parcel that holds one of several products."""
    rows = connection.execute(
        "SELECT name, price_cents, status, tracking FROM order_items "
        "LEFT JOIN shipments ON item_id = order_items.id WHERE order_items.order_id = ? ORDER BY order_items.id",
        (order_id,),
    )
    return ", ".join(
        priced(name, cents) + ("" if status is None else f" ({parcel(status, tracking)})")
        for name, cents, status, tracking in rows
    )


def _status(connection: sqlite3.Connection, order_id: str) -> str:
    """State of the parcel that holds the whole order; empty if each product has its own."""
    row = connection.execute(
        "SELECT status, tracking FROM shipments WHERE order_id = ? AND item_id IS NULL", (order_id,)
    ).fetchone()
    return "" if row is None else parcel(*row)


def priced(item: str, cents: int) -> str:
    """An item with its price."""
    return f"{item} {money(cents)}"


def parcel(status: str, tracking: str) -> str:
    """A parcel's state, with its tracking code if it has one."""
    return f"{status}, tracking {tracking}" if tracking else status


def _notes(connection: sqlite3.Connection, order_id: str) -> list[str]:
    photo, flag = connection.execute(
        "SELECT photo, flag FROM orders JOIN customers ON customers.id = customer_id WHERE orders.id = ?", (order_id,)
    ).fetchone()
    refunds = connection.execute("SELECT amount_cents FROM refunds WHERE order_id = ?", (order_id,)).fetchall()
    total, detail = connection.execute(
        "SELECT sum(price_cents), policy_detail FROM order_items, desk WHERE order_id = ?", (order_id,)
    ).fetchone()
    return [
        *([f"Above {REFUND_LIMIT_CENTS // 100}"] if detail == "words" and total > REFUND_LIMIT_CENTS else []),
        *([f"Photo: {photo}"] if photo else []),
        *(f"Refunded before: {money(cents)}" for (cents,) in refunds),
        *([f"Account: {flag}"] if flag else []),
    ]


def list_orders(connection: sqlite3.Connection, order_ids: list[str]) -> str:
    """Ids and items only."""
    shown = []
    for order_id in order_ids:
        names = connection.execute("SELECT name FROM order_items WHERE order_id = ? ORDER BY id", (order_id,))
        shown.append(f"{order_id} {', '.join(row[0] for row in names)}")
    return f"Orders: {'; '.join(shown)}. Search one by id."


def describe_policy(connection: sqlite3.Connection, order_id: str) -> str:
    """The return window in words, days or dates (as the desk is set), and the rule for minor damage if there is one."""
    window_days, percent = connection.execute(
        "SELECT window_days, minor_damage_percent FROM policies JOIN orders ON orders.category = policies.category "
        "WHERE orders.id = ?",
        (order_id,),
    ).fetchone()
    today, detail = connection.execute("SELECT today, policy_detail FROM desk").fetchone()
    delivered = connection.execute(
        "SELECT max(delivered_on) FROM shipments WHERE order_id = ?", (order_id,)
    ).fetchone()[0]
    text = _window(today, delivered, window_days, detail)
    return text if percent is None else f"{text} Minor damage: refund {percent}% of the item."


def _window(today: str, delivered: str | None, window_days: int, detail: str) -> str:
    if delivered is None:
        return f"Not delivered yet. Return window {window_days} days."
    days = days_between(delivered, today)
    if detail == "words":
        return "Inside the return window." if days <= window_days else "Outside the return window."
    if detail == "days":
        return f"Delivered {days} days ago. Return window {window_days} days."
    return f"Delivered {delivered}. Today {today}. Return window {window_days} days."


def days_between(first: str, second: str) -> int:
    """Days from one ISO date to another."""
    return (date.fromisoformat(second) - date.fromisoformat(first)).days
