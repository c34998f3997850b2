"""The desk's tables, and a database file filled with a task's rows in well under a millisecond."""

from __future__ import annotations

import functools
import sqlite3
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deedrl.errors import TaskError
from deedrl.types import Task

TABLES: Mapping[str, tuple[str, ...]] = {
    "desk": ("today TEXT", "policy_detail TEXT"),
    "customers": ("id INTEGER PRIMARY KEY", "name TEXT", "email TEXT", "flag TEXT"),
    "orders": ("id TEXT PRIMARY KEY", "customer_id INTEGER", "category TEXT", "photo TEXT"),
    "order_items": ("id INTEGER PRIMARY KEY", "order_id TEXT", "name TEXT", "price_cents INTEGER"),
    "shipments": (
        "id INTEGER PRIMARY KEY",
        "order_id TEXT",
        "item_id INTEGER",
        "status TEXT",
        "tracking TEXT",
        "delivered_on TEXT",
    ),
    "policies": ("category TEXT PRIMARY KEY", "window_days INTEGER", "minor_damage_percent INTEGER"),
    "refunds": ("id INTEGER PRIMARY KEY", "order_id TEXT", "amount_cents INTEGER"),
    "tickets": (
        "id INTEGER PRIMARY KEY",
        "customer_id INTEGER",
        "status TEXT",
        "resolution TEXT",
        "order_id TEXT",
        "reason TEXT",
        "closed_by_call INTEGER",
    ),
    "messages": ("id INTEGER PRIMARY KEY", "ticket_id INTEGER", "sender TEXT", "text TEXT"),
    "tool_log": ("seq INTEGER PRIMARY KEY", "tool TEXT", "argument TEXT", "order_id TEXT"),
}
"""Table name → column definitions. A row in ``task.initial_state[table]`` is a list in this order."""

REFERENCE_TABLES = ("desk", "customers", "orders", "order_items", "shipments", "policies")
"""Tables that no tool writes; the verifier checks that they are as the task made them."""

INITIAL_TABLES = (*REFERENCE_TABLES, "refunds", "tickets")

TICKET_ID = 1


class Books:
    """The database file of one desk, made at the first `renew` and removed by `close`.

    It is emptied for each episode, not made anew: SQLite keeps compiled statements with the connection, and to compile
    a statement of this size costs several times what it does. Durability is off: no episode outlives its process.
    """

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._connection: sqlite3.Connection | None = None

    def renew(self, task: Task) -> sqlite3.Connection:
        """The only connection to the books, which hold the rows of `task` and no others; bad rows raise `TaskError`.

        It may be used from any thread, one at a time (the runner moves an episode between threads).
        """
        try:
            if self._connection is None:
                self._connection = self._open()
            _fill(self._connection, task)
        except BaseException:
            self.close()  # half filled
            raise
        return self._connection

    def _open(self) -> sqlite3.Connection:
        self._folder = tempfile.TemporaryDirectory(prefix="deedrl-", ignore_cleanup_errors=True)
        path = Path(self._folder.name, "desk.sqlite")
        path.write_bytes(_template())
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        connection.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA locking_mode = EXCLUSIVE")
        return connection

    def close(self) -> None:
        """May be called more than once."""
        if self._connection is not None:
            self._connection.close()
        if self._folder is not None:
            self._folder.cleanup()
        self._connection = self._folder = None


def read_table(connection: sqlite3.Connection, table: str) -> list[list[Any]]:
    """All rows of `table` in the order they were written."""
    return [list(row) for row in connection.execute(f"SELECT * FROM {table} ORDER BY rowid")]


def _fill(connection: sqlite3.Connection, task: Task) -> None:
    unknown = sorted(task.initial_state.keys() - set(INITIAL_TABLES))
    if unknown:
        raise TaskError(f"task {task.id}: initial_state has no table {unknown}; known: {', '.join(INITIAL_TABLES)}")
    connection.execute("BEGIN")
    for table in TABLES:
        connection.execute(f"DELETE FROM {table}")
    for table in INITIAL_TABLES:
        _insert(connection, table, task.initial_state.get(table, ()), task.id)
    _insert(connection, "messages", [[1, TICKET_ID, "customer", task.prompt]], task.id)
    connection.execute("COMMIT")


def _insert(connection: sqlite3.Connection, table: str, rows: Sequence[Sequence[Any]], task_id: str) -> None:
    marks = ", ".join("?" * len(TABLES[table]))
    try:
        connection.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
    except (sqlite3.Error, TypeError, ValueError) as error:
        raise TaskError(
            f"task {task_id}: initial_state['{table}'] must be a list of rows [{', '.join(TABLES[table])}]: {error}"
        ) from error


@functools.cache
def _template() -> bytes:
    """An empty database with the schema, as the bytes of its file."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute("PRAGMA page_size = 1024")
    for table, columns in TABLES.items():
        connection.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
    content = connection.serialize()
    connection.close()
    return content
