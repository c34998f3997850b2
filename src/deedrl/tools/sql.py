"""Read-only SQL for models: one query over a SQLite file that cannot write, reach out, or run away.

Five layers, each enough against most attacks: the file is opened read-only (``mode=ro``), the connection is
``query_only``, an authoriser lets through reads and a list of functions and nothing else, SQLite's own limits bound
the size of every value and statement, and a budget of virtual-machine steps ends what runs too long. The budget counts
steps, not seconds, so that the same query gives the same answer on a slow machine and on a busy one.
"""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import Any, NamedTuple

from deedrl.errors import ToolError

MOST_STEPS = 500_000
"""Virtual-machine steps of one query; some tenths of a second."""
STEPS_BETWEEN_CHECKS = 1000
LONGEST_VALUE = 2000
"""Bytes of one text or blob, also of those made on the way."""
LONGEST_QUERY = 1000

LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: LONGEST_VALUE,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: LONGEST_QUERY,
    sqlite3.SQLITE_LIMIT_COLUMN: 40,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 50,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 10,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 8,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 50,
    sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER: 0,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}

FUNCTIONS = frozenset(
    """
    count sum total avg min max group_concat abs round sign length lower upper trim ltrim rtrim substr substring instr
    coalesce ifnull nullif iif like glob typeof row_number rank dense_rank percent_rank cume_dist ntile lag lead
    first_value last_value nth_value
    """.split()  # noqa: SIM905 - forty quoted words are hard to read
)
"""Functions a query may call. Missing on purpose: whatever depends on chance or the clock (``random``, ``date``: an
observation must be the same each time), makes large values (``zeroblob``, ``printf``), or touches files
(``load_extension``, ``readfile``)."""

_READS = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE})


class QueryResult(NamedTuple):
    """What a query gave."""

    columns: list[str]
    rows: list[tuple[Any, ...]]
    more: bool
    """True if there are rows beyond those returned."""
    read: frozenset[tuple[str, str]]
    """(table, column) of each stored column that the statement mentions."""


class ReadOnlyDatabase:
    """Queries over the SQLite file at `path`, which must exist. Not safe for use by two threads at the same time."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(
            f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None, check_same_thread=False
        )
        self._connection.execute("PRAGMA query_only = ON")
        for limit, value in LIMITS.items():
            self._connection.setlimit(limit, value)
        self._read: set[tuple[str, str]] = set()
        self._refused = ""
        self._steps = 0
        self._connection.set_authorizer(self._authorise)
        self._connection.set_progress_handler(self._count_steps, STEPS_BETWEEN_CHECKS)

    def query(self, sql: str, most_rows: int) -> QueryResult:
        """The first `most_rows` rows of one SELECT; `ToolError` for anything else, for mistakes and for long runs."""
        self._read, self._refused, self._steps = set(), "", 0
        _check_text(sql)
        cursor = self._connection.cursor()
        try:
            cursor.execute(sql)
            rows = cursor.fetchmany(most_rows + 1)
        except (sqlite3.Error, sqlite3.Warning, OverflowError) as error:
            raise ToolError(self._explain(error)) from error
        finally:
            description = cursor.description
            cursor.close()
        columns = [column[0] for column in description or ()]
        return QueryResult(columns, rows[:most_rows], len(rows) > most_rows, frozenset(self._read))

    def close(self) -> None:
        """May be called more than once."""
        self._connection.close()

    def _authorise(
        self, action: int, first: str | None, second: str | None, _database: str | None, _trigger: str | None
    ) -> int:
        if action == sqlite3.SQLITE_READ:
            if first and second:
                self._read.add((first, second))
            return sqlite3.SQLITE_OK
        if action in _READS:
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_FUNCTION:
            if (second or "").lower() in FUNCTIONS:
                return sqlite3.SQLITE_OK
            self._refused = f"the function {second} is not allowed; there are {', '.join(sorted(FUNCTIONS)[:8])}, ..."
        else:
            self._refused = "the database is read-only; expected one SELECT"
        return sqlite3.SQLITE_DENY

    def _count_steps(self) -> int:
        self._steps += STEPS_BETWEEN_CHECKS
        return int(self._steps > MOST_STEPS)

    def _explain(self, error: Exception) -> str:
        if self._refused:
            return self._refused
        if self._steps > MOST_STEPS:
            return f"the query was stopped after {MOST_STEPS} steps; ask for less, e.g. add a WHERE"
        text = str(error)
        if "one statement" in text:
            return "expected one statement, got several; send them one by one"
        if "too big" in text:
            return (
                f"the query or a value in it is too long; at most {LONGEST_QUERY} characters and {LONGEST_VALUE} bytes"
            )
        return f"SQL error: {text}"


def _check_text(sql: str) -> None:
    """Refuses early and in plain words what the layers below would refuse in their own; no protection by itself."""
    if "\0" in sql:
        raise ToolError("the query has a NUL character; expected one SELECT")
    try:
        size = len(sql.encode())
    except UnicodeEncodeError as error:
        raise ToolError("the query has half of a surrogate pair; expected plain text") from error
    if size > LONGEST_QUERY:
        raise ToolError(f"the query is {size} bytes long; at most {LONGEST_QUERY}")
    bare = re.sub(r"\A(?:\s+|--[^\n]*(?:\n|\Z)|/\*.*?\*/)+", "", sql, flags=re.DOTALL)
    if re.match(r"(select|with|values)\b", bare, re.IGNORECASE) is None:
        raise ToolError("the database is read-only; expected one SELECT, e.g. SELECT count(*) FROM name")
