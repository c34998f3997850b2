from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deedrl.errors import ToolError
from deedrl.tools.sql import ReadOnlyDatabase


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "shop.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER, city TEXT)")
        connection.executemany(
            "INSERT INTO orders VALUES (?, ?)", [(n, "Bonn" if n % 2 else "Kiel") for n in range(30)]
        )
    connection.close()
    return path


@pytest.fixture
def database(path: Path) -> Iterator[ReadOnlyDatabase]:
    database = ReadOnlyDatabase(path)
    yield database
    database.close()


def test_a_select_gives_columns_rows_and_what_it_has_read(database: ReadOnlyDatabase) -> None:
    result = database.query("SELECT count(*) AS n FROM orders WHERE city = 'Bonn'", most_rows=5)
    assert (result.columns, result.rows, result.more) == (["n"], [(15,)], False)
    assert result.read == {("orders", "city")}


def test_a_constant_reads_nothing(database: ReadOnlyDatabase) -> None:
    assert database.query("SELECT 15", most_rows=5).read == frozenset()


def test_rows_beyond_the_limit_are_told(database: ReadOnlyDatabase) -> None:
    result = database.query("SELECT id FROM orders ORDER BY id", most_rows=3)
    assert (result.rows, result.more) == ([(0,), (1,), (2,)], True)


@pytest.mark.parametrize(
    "sql", ["  select 1", "-- a\nSELECT 1", "/* a */ SELECT 1;", "WITH t AS (SELECT 1) SELECT * FROM t", "VALUES (1)"]
)
def test_comments_and_with_do_not_hide_a_select(database: ReadOnlyDatabase, sql: str) -> None:
    assert database.query(sql, most_rows=5).rows == [(1,)]


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM orders",
        "UPDATE orders SET city = 'x'",
        "/* SELECT */ UPDATE orders SET city = 'x'",
        "-- SELECT\nDELETE FROM orders",
        "WITH x AS (DELETE FROM orders RETURNING *) SELECT * FROM x",
        "WITH x AS (SELECT 1) INSERT INTO orders SELECT 1, 'x'",
        "WITH x AS (SELECT 1) DELETE FROM orders",
        "SELECT 1; DELETE FROM orders",
        "SELECT 1\n;\nDROP TABLE orders",
        "SELECT 1; SELECT 2",
        "ATTACH DATABASE 'other.sqlite' AS other",
        "SELECT 1; ATTACH 'other.sqlite' AS other",
        "DETACH main",
        "PRAGMA query_only = OFF",
        "PRAGMA writable_schema = ON",
        "SELECT * FROM pragma_table_info('orders')",
        "SELECT * FROM pragma_query_only",
        "VACUUM INTO 'copy.sqlite'",
        "CREATE TEMP TABLE t (x)",
        "CREATE TABLE t AS SELECT 1",
        "REPLACE INTO orders VALUES (1, 'x')",
        "SELECT load_extension('evil')",
        "SELECT writefile('x', 'y')",
        "SELECT readfile('/etc/passwd')",
        "SELECT fts3_tokenizer('simple')",
        "BEGIN EXCLUSIVE",
        "SAVEPOINT s",
        "REINDEX",
        "ANALYZE",
        "EXPLAIN DELETE FROM orders",
        "SELECT random()",
        "SELECT CURRENT_TIMESTAMP",
        "SELECT date('now')",
        "SELECT last_insert_rowid()",
        "",
        ";",
        "SELECT 1\0; DELETE FROM orders",
        "\ud800",
        "SELECT * FROM nowhere",
        "SELECT (",
    ],
)
def test_H07_anything_but_one_select_is_refused_and_changes_nothing(
    database: ReadOnlyDatabase, path: Path, sql: str
) -> None:
    before = path.read_bytes()
    with pytest.raises(ToolError):
        database.query(sql, most_rows=5)
    assert path.read_bytes() == before
    assert sorted(entry.name for entry in path.parent.iterdir()) == [path.name]


@pytest.mark.parametrize("layer", ["text", "authoriser", "query_only"])
def test_H07_each_layer_alone_stops_a_write(path: Path, layer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if layer != "text":
        monkeypatch.setattr("deedrl.tools.sql._check_text", lambda sql: None)
    database = ReadOnlyDatabase(path)
    if layer == "query_only":
        database._connection.set_authorizer(None)
    with pytest.raises(ToolError):
        database.query("DELETE FROM orders", most_rows=5)
    database.close()


def test_H07_the_file_itself_is_opened_for_reading_only(path: Path) -> None:
    database = ReadOnlyDatabase(path)
    database._connection.set_authorizer(None)
    database._connection.execute("PRAGMA query_only = OFF")
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        database._connection.execute("DELETE FROM orders")
    database.close()


@pytest.mark.parametrize(
    "sql",
    [
        "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c",
        "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c ORDER BY x DESC",
        "SELECT count(*) FROM orders a, orders b, orders c, orders d, orders e WHERE a.id + b.id + c.id + d.id > e.id",
    ],
)
def test_H07_a_query_without_end_is_stopped(database: ReadOnlyDatabase, sql: str) -> None:
    began = time.perf_counter()
    with pytest.raises(ToolError, match="stopped after"):
        database.query(sql, most_rows=5)
    assert time.perf_counter() - began < 5


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT randomblob(1000000000)",
        "SELECT zeroblob(1000000000)",
        "SELECT printf('%1000000000d', 1)",
        "SELECT hex(zeroblob(100000))",
        "WITH RECURSIVE c(x) AS (SELECT 'aaaaaaaa' UNION ALL SELECT x || x FROM c) SELECT max(length(x)) FROM c",
        "SELECT " + "1 + " * 2000 + "1",
        "SELECT " + "(" * 400 + "1" + ")" * 400,
        "SELECT group_concat(a.city || b.city || c.city) FROM orders a, orders b, orders c",
    ],
)
def test_H07_no_value_and_no_statement_grows_large(database: ReadOnlyDatabase, sql: str) -> None:
    with pytest.raises(ToolError):
        database.query(sql, most_rows=5)


def test_H07_a_pattern_that_backtracks_ends_soon(database: ReadOnlyDatabase) -> None:
    began = time.perf_counter()
    assert database.query(f"SELECT '{'a' * 800}' LIKE '{'%a' * 24}%b'", most_rows=5).rows == [(0,)]
    assert time.perf_counter() - began < 5


def test_after_a_refusal_the_next_query_works(database: ReadOnlyDatabase) -> None:
    with pytest.raises(ToolError):
        database.query("WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c", 5)
    assert database.query("SELECT count(*) FROM orders", most_rows=5).rows == [(30,)]


def test_a_function_that_is_not_allowed_is_named(database: ReadOnlyDatabase) -> None:
    with pytest.raises(ToolError, match="the function random is not allowed"):
        database.query("SELECT random()", most_rows=5)


def test_the_database_may_not_exist_yet_is_the_callers_error(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError):
        ReadOnlyDatabase(tmp_path / "missing.sqlite")
