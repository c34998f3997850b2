"""The tables and logs of one task, drawn from a vocabulary; questions are asked of them in `families`."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from deedrl.environments.suite.data.worlds import Subject, World

ROWS: Mapping[str, tuple[int, int]] = {"easy": (16, 24), "medium": (40, 60), "hard": (90, 130)}
"""Fewest and most rows of the main table."""
LINES: Mapping[str, tuple[int, int]] = {"easy": (16, 24), "medium": (30, 40), "hard": (30, 40)}
"""Of each log."""


@dataclass(frozen=True)
class Names:
    """What the columns of the main table are called in this task."""

    key: str
    link: str
    place: str
    thing: str
    amount: str
    state: str
    day: str

    def columns(self) -> list[str]:
        return [self.key, self.link, self.place, self.thing, self.amount, self.state, self.day]


Row = dict[str, Any]
"""key, link, place, thing, amount, state and day of a row of the main table."""
FIELDS = ("key", "link", "place", "thing", "amount", "state", "day")


@dataclass
class Office:
    """One subject of a world with its rows; `rng` goes on to draw the question."""

    world: World
    level: str
    rng: Random
    subject: Subject = field(init=False)
    names: Names = field(init=False)
    rows: list[Row] = field(init=False)
    partners: list[tuple[int, str, str]] = field(init=False)
    """Key, name and region."""
    logs: dict[str, list[str]] = field(default_factory=dict)
    note: str = ""

    def __post_init__(self) -> None:
        rng, world = self.rng, self.world
        self.subject = rng.choice(world.subjects)
        self.names = self._name_columns()
        names = rng.sample(world.names, rng.randint(6, 9))
        keys = rng.sample(range(11, 99), len(names))
        regions = list(self.subject.region.values)
        self.partners = [(key, name, rng.choice(regions)) for key, name in zip(keys, names, strict=True)]
        self.rows = [self._row(key) for key in sorted(rng.sample(range(101, 999), rng.randint(*ROWS[self.level])))]

    def _name_columns(self) -> Names:
        subject, rng = self.subject, self.rng
        texts = {
            name: rng.choice((column.word, column.alias))
            for name, column in (("place", subject.place), ("thing", subject.thing), ("state", subject.state))
        }
        amount = rng.choice(subject.amount)
        return Names(key=self.world.key, link=subject.link, amount=amount, day=self.world.day, **texts)

    def _row(self, key: int) -> Row:
        rng, subject = self.rng, self.subject
        return {
            "key": key,
            "link": rng.choice(self.partners)[0],
            "place": rng.choice(subject.place.values[:4] if self.level == "easy" else subject.place.values),
            "thing": rng.choice(subject.thing.values),
            "amount": rng.randint(5, 99) if self.level == "easy" else rng.randint(10, 990),
            "state": rng.choice(subject.state.values[:3]),
            "day": f"{rng.choice(self.world.months)}-{rng.randint(1, 28):02d}",
        }

    def words(self, **more: Any) -> dict[str, Any]:
        """What questions and notes may name."""
        subject = self.subject
        return {
            "table": subject.table,
            "noun": subject.noun,
            "place": subject.place.word,
            "thing": subject.thing.word,
            "amount": subject.amount[0],
            "state": self.names.state,
            "region": subject.region.word,
            "partner": subject.partner,
            "partner_noun": subject.partner_noun,
            "link": subject.link,
            **more,
        }

    def ask(self, template: str, **words: Any) -> str:
        """A question of the world for `template` (family/level[/outcome])."""
        return self.rng.choice(self.world.prompts[template]).format(**self.words(**words))

    def tables(self) -> dict[str, Any]:
        """As ``initial_state`` holds them; hard ones have an old table beside the right one, with other rows."""
        subject, columns = self.subject, self.names.columns()
        rows = [[row[name] for name in FIELDS] for row in self.rows]
        tables = {
            subject.table: {"columns": columns, "rows": rows},
            subject.partner: {
                "columns": [self.world.key, self.world.name, subject.region.word],
                "rows": [list(partner) for partner in self.partners],
            },
        }
        if self.level == "hard":
            old = [[row[name] for name in FIELDS] for row in (self._row(key) for key in range(1, 31))]
            tables[subject.table + self.world.old] = {"columns": columns, "rows": old}
        return tables

    def by_place(self) -> dict[str, int]:
        """Total amount of each place."""
        totals: dict[str, int] = {}
        for row in self.rows:
            totals[row["place"]] = totals.get(row["place"], 0) + row["amount"]
        return totals

    # ------------------------------------------------------------ logs

    def log_entries(self, people: bool = False) -> list[dict[str, Any]]:
        """Lines of one log, in the order of their days."""
        rng, world = self.rng, self.world
        day, level, service, took, person = world.log_columns
        entries = [
            {
                day: f"{rng.choice(world.months)}-{rng.randint(1, 28):02d}",
                level: rng.choice(world.levels),
                service: rng.choice(world.services),
                took: rng.randint(20, 980),
                **({person: rng.choice(self.partners)[0]} if people else {}),
            }
            for _ in range(rng.randint(*LINES[self.level]))
        ]
        return sorted(entries, key=lambda entry: str(entry[day]))

    def write_csv(self, file: str, entries: list[dict[str, Any]]) -> None:
        """Adds a log with a header line."""
        text = io.StringIO()
        writer = csv.DictWriter(text, list(entries[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(entries)
        self.logs[file] = text.getvalue().splitlines()

    def write_json_lines(self, file: str, entries: list[dict[str, Any]]) -> None:
        """Adds a log with one JSON object a line."""
        self.logs[file] = [json.dumps(entry) for entry in entries]
