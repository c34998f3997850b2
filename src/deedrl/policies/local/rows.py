"""Which sequences lie in which rows of the store, and how a turn comes to its row.

A row is a list of tokens whose keys and values are stored. Several sequences may hold a beginning of one row, because
they have said and been told the same so far; several turns may be sampled from it, as long as they draw the same.
What is stored is only a cache: whoever finds less of it than it had computes the rest again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from deedrl.policies.local.kv_store import KVStore, Prefix
from deedrl.policies.local.turn import Turn


@dataclass(eq=False)
class Row:
    """Own tokens of one or more sequences; in the store they lie in row `index`."""

    index: int
    prefix: Prefix | None
    """What the own tokens come after; None if they are the whole context."""
    ids: list[int] = field(default_factory=list)
    """Tokens whose keys and values are stored."""
    held: dict[str, int] = field(default_factory=dict)
    """How many of `ids` belong to each sequence."""
    turns: dict[str, Turn] = field(default_factory=dict)
    """Being sampled from here, by sequence. All have read and drawn the same; the newest token is not in `ids` yet."""

    def extend(self, ids: Sequence[int]) -> None:
        self.ids += ids
        self.held.update(dict.fromkeys(self.turns, len(self.ids)))

    def yields(self, key: str, kept: int) -> bool:
        """Whether `key` may overwrite all but the first `kept` tokens without taking anything from another sequence."""
        return self.idle_but_for(key) and all(other == key or n <= kept for other, n in self.held.items())

    def idle_but_for(self, key: str) -> bool:
        return all(other == key for other in self.turns)


class Place(NamedTuple):
    """Where a turn may go: into `row` (None: a new one), which keeps `kept` tokens and copies up to `stored`."""

    row: Row | None
    kept: int
    source: Row | None
    stored: int


class Rows:
    """The rows in use, always ``0 … len-1`` of the store: a freed one is filled by moving the last."""

    def __init__(self, store: KVStore) -> None:
        self._store = store
        self._rows: list[Row] = []
        self._home: dict[str, Row] = {}

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def running(self) -> bool:
        return any(row.turns for row in self._rows)

    @property
    def full(self) -> bool:
        return len(self._rows) == self._store.rows

    def home(self, key: str) -> Row | None:
        return self._home.get(key)

    def find(self, key: str, prefix: Prefix | None, own: Sequence[int]) -> Place | None:
        """The place for a turn that is to read `own` after `prefix`; None if it has to wait for one.

        The last of `own` is never taken from the store, since the next token is drawn from its output.
        """
        home, known = self._home.get(key), own[:-1]
        stored, source, kept = 0, None, 0
        for row in self._rows:
            if row.prefix is prefix:
                common = shared_length(row.ids, known)
                kept = common if row is home else kept
                if common > stored or (common == stored and row is home):
                    stored, source = common, row
        if home is not None and home.yields(key, kept):
            return Place(home, kept, source, stored)
        if not self.full:
            return Place(None, 0, source, stored)
        if home is not None and home.idle_but_for(key):
            # Waiting for the others here could be waiting for each other.
            return Place(home, kept, source, stored)
        return None

    def take(self, place: Place, turn: Turn, prefix: Prefix | None) -> Row:
        """Puts the turn there; the row then holds the first `place.stored` of its own tokens."""
        row = place.row or self._open(prefix)
        row.prefix = prefix
        known = place.source.ids[: place.stored] if place.source is not None else []
        if place.source is not None and place.source is not row:
            self._store.copy(place.source.index, row.index, place.kept, place.stored)
        row.ids = known
        row.held = {key: min(length, place.kept) for key, length in row.held.items()}
        self.join(row, turn)
        return row

    def join(self, row: Row, turn: Turn) -> None:
        """Lets the turn be sampled from `row`, whose tokens are also its own."""
        if self._home.get(turn.key) is not row:
            self.release(turn.key)
        self._home[turn.key] = row
        row.turns[turn.key] = turn
        row.held[turn.key] = len(row.ids)

    def stop(self, key: str) -> None:
        """The turn of `key` is over; the sequence keeps what the row holds of it."""
        if key in self._home:
            self._home[key].turns.pop(key, None)

    def split(self, row: Row) -> list[Turn]:
        """Leaves in `row` the turns that drew what the first one did, and gives the others rows with a copy each.

        Turns that drew the same stay together. Returns those for which no row is free.
        """
        drew: dict[int, list[Turn]] = {}
        for turn in row.turns.values():
            drew.setdefault(turn.tokens[-1], []).append(turn)
        homeless: list[Turn] = []
        for turns in list(drew.values())[1:]:
            if self.full:
                for turn in turns:
                    self.stop(turn.key)
                homeless += turns
                continue
            fresh = self._open(row.prefix)
            fresh.ids = list(row.ids)
            self._store.copy(row.index, fresh.index, 0, len(row.ids))
            for turn in turns:
                self.join(fresh, turn)
        return homeless

    def release(self, key: str) -> None:
        """Forgets the sequence; its row is freed unless others hold some of it."""
        row = self._home.pop(key, None)
        if row is None:
            return
        row.turns.pop(key, None)
        del row.held[key]
        if row.held:
            del row.ids[max(row.held.values()) :]
            return
        last = self._rows.pop()
        if last is not row:
            self._store.copy(last.index, row.index, 0, len(last.ids))
            last.index = row.index
            self._rows[row.index] = last

    def _open(self, prefix: Prefix | None) -> Row:
        self._rows.append(Row(index=len(self._rows), prefix=prefix))
        self._store.reserve(len(self._rows))
        return self._rows[-1]


def shared_length(first: Sequence[int], second: Sequence[int]) -> int:
    """How many items two sequences (of one type) have in common at their beginning."""
    low, high = 0, min(len(first), len(second))
    if first[:high] == second[:high]:
        return high
    # Slices are compared much faster than items; the first difference lies in [low, high).
    while high - low > 1:
        middle = (low + high) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle
    return low
