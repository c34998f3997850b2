"""The data of one episode as files: a SQLite database opened read-only, and logs found by resolved paths."""

from __future__ import annotations

import functools
import hashlib
import sqlite3
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from gymnasium.error import ResetNeeded

from deedrl.errors import TaskError, ToolError
from deedrl.tools.sql import ReadOnlyDatabase
from deedrl.types import Record, Task

DATABASE = "data.sqlite"
LOGS = "logs"


class Table(Record, frozen=True):
    """Columns and rows of a table."""

    columns: list[str]
    rows: list[list[str | int | float | None]]


class Data(Record, frozen=True, kw_only=True):
    """``task.initial_state``: what the files of an episode hold."""

    tables: dict[str, Table] = {}
    logs: dict[str, list[str]] = {}
    """File name → lines."""
    note: str = ""


def read_data(task: Task) -> Data:
    """The data of `task`; `TaskError` if ``initial_state`` has another form."""
    try:
        data = msgspec.convert(task.initial_state, Data)
    except msgspec.ValidationError as error:
        raise TaskError(f"task {task.id}: initial_state is not data for the data desk: {error}") from error
    for name in data.logs:
        if Path(name).name != name or name in ("", ".", ".."):
            raise TaskError(f"task {task.id}: expected a plain file name for a log, got '{name}'")
    return data


class Source:
    """The files of one desk, in a folder of its own that is made at the first `renew` and removed by `close`.

    The folder lasts longer than an episode, and its files are written anew for each: to remove a folder takes some
    systems longer than all else in an episode together.
    """

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._database: ReadOnlyDatabase | None = None
        self.data = Data()
        self._content = b""

    def renew(self, task: Task) -> None:
        """Files with the data of `task` and nothing else; bad data raise `TaskError`."""
        self.end()
        self.data = read_data(task)
        self._content = _database(self.data.tables, task.id)
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="deedrl-", ignore_cleanup_errors=True)
            self._path, self._logs = Path(self._folder.name, DATABASE), Path(self._folder.name, LOGS)
            self._logs.mkdir()
            self._path.touch()
        with self._path.open("r+b", buffering=0) as file:  # emptied first, ext4 would flush it to the disk
            file.truncate(file.write(self._content))
        for name, lines in self.data.logs.items():
            (self._logs / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        self._database = ReadOnlyDatabase(self._path)

    @property
    def database(self) -> ReadOnlyDatabase:
        """The database of the current episode; `ResetNeeded` if there is none."""
        if self._database is None:
            raise ResetNeeded("the data desk has no data before reset(); call reset() first")
        return self._database

    def end(self) -> None:
        """Closes the database and removes the logs of an episode; may be called more than once."""
        if self._database is not None:
            self._database.close()
            self._database = None
            for name in self.data.logs:
                (self._logs / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Removes the folder; may be called more than once."""
        self.end()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    @property
    def fingerprint(self) -> bytes:
        """Digest of everything the files hold now."""
        digest = hashlib.sha256(self._path.read_bytes())
        for name in self.data.logs:
            digest.update((self._logs / name).read_bytes())
        return digest.digest()

    def unchanged(self) -> bool:
        """Whether the files hold what the task put there."""
        return self._path.read_bytes() == self._content and all(
            (self._logs / name).read_text(encoding="utf-8") == "".join(f"{line}\n" for line in lines)
            for name, lines in self.data.logs.items()
        )

    def log_lines(self, file: str) -> tuple[str, list[str]]:
        """Name and lines of a log; `ToolError` for whatever is not a file in the folder of logs."""
        known = ", ".join(self.data.logs) or "none"
        refusal = f"there is no log file '{file[:60]}'; there are: {known}"
        if "\0" in file or len(file) > 200:
            raise ToolError(refusal)
        root = self._logs.resolve()
        path = (root / file).resolve()
        if not path.is_relative_to(root) or not path.is_file():
            raise ToolError(refusal)
        return path.name, path.read_text(encoding="utf-8").splitlines()


Layout = tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...]
"""(table, columns, types) of all tables."""


def _database(tables: Mapping[str, Table], task_id: str) -> bytes:
    if not tables:
        return b""
    layout = tuple((name, tuple(table.columns), _types(table)) for name, table in tables.items())
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        connection.deserialize(_empty(layout))
        connection.execute("BEGIN")
        for name, table in tables.items():
            connection.executemany(_insert(name, len(table.columns)), table.rows)
        connection.execute("COMMIT")
        return connection.serialize()
    except (sqlite3.Error, OverflowError) as error:
        raise TaskError(f"task {task_id}: the tables of initial_state do not fit SQLite: {error}") from error
    finally:
        connection.close()


@functools.lru_cache(maxsize=1024)
def _empty(layout: Layout) -> bytes:
    """A database with these tables and no rows: to create a table takes SQLite longer than to fill it."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        for name, columns, types in layout:
            parts = ", ".join(f"{_quoted(column)} {kind}" for column, kind in zip(columns, types, strict=True))
            connection.execute(f"CREATE TABLE {_quoted(name)} ({parts})")
        return connection.serialize()
    finally:
        connection.close()


def _types(table: Table) -> tuple[str, ...]:
    return tuple(_type([row[index] for row in table.rows if index < len(row)]) for index in range(len(table.columns)))


def _type(values: Sequence[Any]) -> str:
    kinds = {type(value) for value in values if value is not None}
    return "INTEGER" if kinds == {int} else "REAL" if kinds and kinds <= {int, float} else "TEXT"


@functools.lru_cache(maxsize=256)
def _insert(name: str, count: int) -> str:
    return f"INSERT INTO {_quoted(name)} VALUES ({', '.join('?' * count)})"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
