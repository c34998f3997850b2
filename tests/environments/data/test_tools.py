from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from deedrl.environments.suite.data.environment import MOST_CHARACTERS, DataDesk
from deedrl.errors import TaskError
from deedrl.types import Action, Task

Act = Callable[..., Action]


@pytest.fixture
def ask(desk: DataDesk, towns: Task, act: Act) -> Callable[..., str]:
    desk.reset(options={"task": towns})
    return lambda tool_name, **parameters: desk.step(act(tool_name, **parameters))[0]


def test_tables_names_tables_and_logs(ask: Callable[..., str]) -> None:
    assert ask("tables") == "Tables: orders. Log files: shop.log."


def test_describe_shows_columns_and_suggests_near_names(ask: Callable[..., str]) -> None:
    assert ask("describe", table="orders") == "orders: id, city, euros. 4 rows."
    assert "did you mean 'orders'" in ask("describe", table="order")


def test_query_shows_one_value_rows_or_none(ask: Callable[..., str]) -> None:
    assert ask("query", sql="SELECT sum(euros) FROM orders") == "38.5"
    assert ask("query", sql="SELECT city, euros FROM orders WHERE id > 2") == "city | euros\nBonn | 11.25\nNULL | NULL"
    assert ask("query", sql="SELECT city FROM orders WHERE id = 9") == "No rows. Columns: city."


def test_query_tells_an_empty_text_from_nothing(ask: Callable[..., str]) -> None:
    assert ask("query", sql="SELECT ''") == "(an empty text)"
    assert ask("query", sql="SELECT city FROM orders WHERE id = 4") == "NULL"


def test_a_number_may_be_answered_without_quotes(desk: DataDesk, towns: Task) -> None:
    desk.reset(options={"task": towns})
    desk.step('{"reasoning": "", "tool_name": "answer", "parameters": {"value": 31.5}}')
    assert desk.submitted == "31.5"


def test_query_explains_mistakes(ask: Callable[..., str]) -> None:
    assert ask("query", sql="SELECT town FROM orders") == "SQL error: no such column: town"
    assert ask("query", sql="DELETE FROM orders").startswith("the database is read-only")


def test_long_results_are_cut_between_rows(ask: Callable[..., str]) -> None:
    long = ask("query", sql="SELECT a.city || '" + "x" * 700 + "' FROM orders a")
    assert len(long) < MOST_CHARACTERS + 60
    assert long.endswith("(cut: too long; ask for less)")
    many = ask("query", sql="SELECT a.id FROM orders a, orders b, orders c")
    assert many.endswith("(only the first 20 rows)")
    assert len(many.splitlines()) == 22


def test_search_log_counts_and_shows_lines(ask: Callable[..., str]) -> None:
    assert ask("search_log", file="shop.log", text="ERROR", limit=1) == "2 lines contain ERROR.\n1 ERROR basket"
    assert ask("search_log", file="shop.log", text="absent") == "0 lines contain absent."
    assert ask("search_log", file="shop.log", text="").startswith("the text is empty")


@pytest.mark.parametrize(
    "file",
    ["../data.sqlite", "/etc/passwd", "..", ".", "", "~", "logs/shop.log", "..%2fdata.sqlite", "..\\data.sqlite",
     "shop.log/../../data.sqlite", "shop.log\0", "x" * 5000],
)  # fmt: skip
def test_H01_files_outside_the_logs_are_not_read(ask: Callable[..., str], file: str) -> None:
    assert ask("search_log", file=file, text="e").startswith("there is no log file")


def test_H03_a_link_out_of_the_logs_is_not_followed(desk: DataDesk, ask: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("e")
    os.symlink(tmp_path / "secret", desk.source._logs / "link")
    assert ask("search_log", file="link", text="e").startswith("there is no log file")


def test_an_empty_answer_is_refused(ask: Callable[..., str]) -> None:
    assert ask("answer", value="  ").startswith("the answer is empty")


def test_an_answer_is_stored_and_ends(desk: DataDesk, towns: Task, act: Act) -> None:
    desk.reset(options={"task": towns})
    before = desk.state_hash()
    _, reward, terminated, _, info = desk.step(act("answer", value="7"))
    assert (reward, terminated, info["ended_by"]) == (0.0, True, "answer")
    assert desk.state_hash() != before


def test_no_answer_is_told_right_or_wrong(desk: DataDesk, towns: Task, act: Act) -> None:
    desk.reset(options={"task": towns})
    assert desk.step(act("answer", value="7"))[0] == "Answer stored."


def test_an_episode_leaves_no_files_to_the_next_and_close_leaves_none(desk: DataDesk, towns: Task) -> None:
    desk.reset(options={"task": towns})
    folder = desk.source._path.parent
    desk.reset(options={"task": Task.create("Nothing?", goal_state={"answer": {"kind": "nothing"}})})
    assert sorted(path.name for path in folder.rglob("*")) == ["data.sqlite", "logs"]
    desk.close()
    desk.close()
    assert not folder.exists()


def test_two_desks_share_nothing(towns: Task, act: Act) -> None:
    first, second = DataDesk(), DataDesk()
    first.reset(options={"task": towns})
    second.reset(options={"task": Task.create("Nothing?", goal_state={"answer": {"kind": "nothing"}})})
    assert first.step(act("query", sql="SELECT count(*) FROM orders"))[0] == "4"
    assert "no such table" in second.step(act("query", sql="SELECT count(*) FROM orders"))[0]
    first.close()
    second.close()


@pytest.mark.parametrize(
    ("initial", "goal", "message"),
    [
        ({"tabels": 1, "tables": []}, {"answer": {"kind": "nothing"}}, "initial_state"),
        ({"tables": {"t": {"columns": ["a"], "rows": [[1, 2]]}}}, {"answer": {"kind": "nothing"}}, "do not fit SQLite"),
        ({"tables": {"t": {"columns": ["a", "A"], "rows": []}}}, {"answer": {"kind": "nothing"}}, "do not fit SQLite"),
        ({"logs": {"../x": ["a"]}}, {"answer": {"kind": "nothing"}}, "plain file name"),
        ({}, {"answer": {"kind": "number", "value": "many"}}, "goal_state"),
        ({}, {}, "goal_state"),
    ],
)
def test_a_task_that_does_not_fit_is_told_at_reset(
    desk: DataDesk, initial: dict[str, Any], goal: dict[str, Any], message: str
) -> None:
    with pytest.raises(TaskError, match=message):
        desk.reset(options={"task": Task.create("?", initial_state=initial, goal_state=goal)})


def test_it_is_registered(towns: Task) -> None:
    environment = gymnasium.make("deedrl/DataDesk-v0")
    assert environment.reset(options={"task": towns})[0] == towns.prompt
    environment.close()
