"""Collects the rows of one task's database while a family tells its story."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from random import Random
from typing import Any, TypeVar

from deedrl.environments.suite.support.goal import Goal
from deedrl.environments.suite.support.schema import INITIAL_TABLES, TICKET_ID
from deedrl.environments.suite.support.worlds import Kind, World

Phrases = Mapping[str, Sequence[str]]
"""World name → templates of a customer's message, the plainer half first."""

_Value = TypeVar("_Value", bound="str | int")

_CENTS = (15, 19, 25, 29, 35, 45, 49, 55, 65, 75, 79, 85, 95, 99)
_DETAIL = {"easy": "words", "medium": "days", "hard": "dates"}
_TRACKING_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ"


@dataclass(frozen=True)
class Draft:
    """A family's part of a task."""

    prompt: str
    goal: Goal


class Story:
    """Draws names, numbers and rows from one random stream; every number is used once in a story."""

    def __init__(self, rng: Random, world: World, difficulty: str) -> None:
        self.rng = rng
        self.world = world
        self.difficulty = difficulty
        self.today = date(2024, 1, 1) + timedelta(days=rng.randrange(366))
        self._tables: dict[str, list[list[Any]]] = {table: [] for table in INITIAL_TABLES}
        self._tables["desk"].append([self.today.isoformat(), _DETAIL[difficulty]])
        self._used: set[object] = set()
        for category in world.items:
            self._tables["policies"].append([category, rng.choice(world.windows_days), None])
        self.name, self.email = "", ""

    # ------------------------------------------------------------ rows

    def customer(self, flag: str = "") -> int:
        """Adds a customer and returns the id; the first one is who writes."""
        name = self._fresh(lambda: self.rng.choice(self.world.first_names))
        email = f"{name.lower()}{self.rng.randrange(10, 100)}@{self.world.mail_domain}"
        rows = self._tables["customers"]
        rows.append([len(rows) + 1, name, email, flag])
        if len(rows) == 1:
            self.name, self.email = name, email
            self._tables["tickets"].append([TICKET_ID, 1, "open", None, None, None, None])
        return len(rows)

    def order(self, customer: int, items: Mapping[str, int], photo: str = "") -> str:
        """Adds an order of items (name → price in cents) of one category and returns its id."""
        order_id = self._fresh(lambda: str(self.rng.randrange(1000, 10000)))
        category = self.category_of(next(iter(items)))
        self._tables["orders"].append([order_id, customer, category, photo])
        for name, cents in items.items():
            rows = self._tables["order_items"]
            rows.append([len(rows) + 1, order_id, name, cents])
        return order_id

    def ship(
        self, order_id: str, status: str, *, item: str | None = None, tracking: str = "", days_ago: int | None = None
    ) -> None:
        """Adds a parcel of an order (of one `item` of it), delivered `days_ago` if it was delivered."""
        item_id = None
        if item is not None:
            item_id = next(row[0] for row in self._tables["order_items"] if row[1:3] == [order_id, item])
        delivered = None if days_ago is None else (self.today - timedelta(days=days_ago)).isoformat()
        rows = self._tables["shipments"]
        rows.append([len(rows) + 1, order_id, item_id, status, tracking, delivered])

    def refund(self, order_id: str, cents: int) -> None:
        """Adds a refund paid before the ticket was opened."""
        rows = self._tables["refunds"]
        rows.append([len(rows) + 1, order_id, cents])

    def simple_order(self, customer: int, kind: Kind, item: str | None = None, cents: int | None = None) -> str:
        """Adds an order of one item whose parcel is in the state `kind`, worded as the difficulty asks."""
        order_id = self.order(customer, {item or self.item(): cents or self.price()})
        self.ship(order_id, self.status(kind), days_ago=self.days_since(kind))
        return order_id

    def strangers(self, count: int = 2) -> None:
        """Adds customers who have nothing to do with the ticket, one order each."""
        for _ in range(count):
            kind = self.rng.choice(("lost", "damaged", "delivered", "transit"))
            self.simple_order(self.customer(), kind)

    def minor_damage_percent(self, order_id: str, percent: int) -> None:
        category = next(row[2] for row in self._tables["orders"] if row[0] == order_id)
        next(row for row in self._tables["policies"] if row[0] == category)[2] = percent

    def window_days(self, order_id: str) -> int:
        category = next(row[2] for row in self._tables["orders"] if row[0] == order_id)
        return int(next(row[1] for row in self._tables["policies"] if row[0] == category))

    def rows(self) -> dict[str, list[list[Any]]]:
        """The task's ``initial_state``."""
        return self._tables

    # ------------------------------------------------------------ words and numbers

    def item(self, category: str | None = None) -> str:
        """A product name not used before in this story, of any category or the one given."""
        pool = [name for key, names in self.world.items.items() if category in (None, key) for name in names]
        return self._fresh(lambda: self.rng.choice(pool))

    def category_of(self, item: str) -> str:
        """Category of a product name, which may have a colour in front."""
        return next(key for key, names in self.world.items.items() if any(item.endswith(name) for name in names))

    def price(self, low: int = 8, high: int = 180) -> int:
        """Cents not used before; whole units in [low, high); the last digit is never 0, so 24.95 is written one way."""
        return self._fresh(lambda: self.rng.randrange(low, high) * 100 + self.rng.choice(_CENTS))

    def tracking(self) -> str:
        def draw() -> str:
            return "".join(self.rng.choices(_TRACKING_LETTERS, k=2)) + str(self.rng.randrange(100, 1000))

        return self._fresh(draw)

    def status(self, kind: Kind) -> str:
        """Words for a parcel's state: the plain one when easy, a carrier's when medium, a chain of events when hard."""
        if self.difficulty == "easy":
            return self.rng.choice(self.world.easy_status[kind])
        last = self.rng.choice(self.world.status[kind])
        if self.difficulty == "medium":
            return last
        return f"{self.rng.choice(self.world.detours)}; then {last}"

    def days_since(self, kind: Kind) -> int | None:
        """Days since delivery of a parcel in state `kind`; None if it never came."""
        return self.rng.randrange(2, 9) if kind == "delivered" else None

    def say(self, phrases: Phrases, **fields: str) -> str:
        """A customer's message: one of the world's phrases after an opening; when easy, a plain one without."""
        known = phrases[self.world.name]
        if self.difficulty == "easy":
            return self.rng.choice(known[: (len(known) + 1) // 2]).format(name=self.name, **fields)
        return self.rng.choice(self.world.openings) + self.rng.choice(known).format(name=self.name, **fields)

    def sign(self, message: str) -> str:
        """The message with a closing, unless easy."""
        if self.difficulty == "easy":
            return message
        return message + self.rng.choice(self.world.closings).format(name=self.name)

    def aside(self, customer: int) -> str:
        """When hard: a sentence that names another order of the customer, which it adds; else nothing."""
        if self.difficulty != "hard":
            return ""
        other = self.simple_order(customer, self.rng.choice(("lost", "damaged", "delivered", "transit")))
        return self.rng.choice(self.world.asides).format(other=other)

    def _fresh(self, draw: Callable[[], _Value]) -> _Value:
        """A value from `draw` that this story has not used yet."""
        for _ in range(1000):
            value = draw()
            if value not in self._used:
                self._used.add(value)
                return value
        raise RuntimeError("a story ran out of distinct values; give the world more words")
