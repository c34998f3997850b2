"""What the six tools answer, rightly used and wrongly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from deedrl.environments.suite.support.environment import SupportDesk
from deedrl.environments.suite.support.schema import TABLES, read_table
from deedrl.errors import TaskError, ToolError
from deedrl.types import Action, Task

Make = Callable[..., Action]


def observe(desk: SupportDesk, action: Action) -> tuple[str, bool]:
    observation, _, _, _, info = desk.step(action)
    return observation, info["ok"]


def test_search_by_id_shows_items_price_and_status(desk: SupportDesk, scarf: Task, act: Make) -> None:
    desk.reset(options={"task": scarf})
    assert observe(desk, act("search_order", query=" #4821 ")) == ("Order 4821: scarf 24.95. Status: lost.", True)


def test_search_by_email_ignores_case(desk: SupportDesk, scarf: Task, act: Make) -> None:
    desk.reset(options={"task": scarf})
    assert observe(desk, act("search_order", query="MIA42@example.com")) == ("scarf 24.95: order 4821, lost", True)


@pytest.mark.parametrize(
    ("detail", "expected"),
    [
        ("words", "Outside the return window."),
        ("days", "Delivered 20 days ago. Return window 14 days."),
        ("dates", "Delivered 2024-03-01. Today 2024-03-21. Return window 14 days."),
    ],
)
def test_policy_says_less_the_harder_the_desk(
    desk: SupportDesk, scarf: Task, act: Make, detail: str, expected: str
) -> None:
    state = {**scarf.initial_state, "desk": [["2024-03-21", detail]]}
    desk.reset(options={"task": msgspec.structs.replace(scarf, initial_state=state)})
    assert observe(desk, act("get_policy", order_id="7310")) == (expected, True)


@pytest.mark.parametrize(
    ("name", "parameters", "part"),
    [
        ("search_order", {"query": "9999"}, "no order '9999'; expected a 4-digit order id"),
        ("search_order", {"query": ""}, "4-digit order id"),
        ("search_order", {"query": "nobody@example.com"}, "no customer has the e-mail"),
        ("search_order", {"query": 4821}, "must be string"),
        ("get_policy", {"order_id": "mug"}, "no order 'mug'"),
        ("issue_refund", {"order_id": "4821", "amount": 24.96}, "more than was paid"),
        ("issue_refund", {"order_id": "4821", "amount": 0}, "above 0"),
        ("issue_refund", {"order_id": "4821", "amount": -5.5}, "above 0"),
        ("issue_refund", {"order_id": "4821", "amount": float("nan")}, "finite number"),
        ("issue_refund", {"order_id": "4821", "amount": float("inf")}, "finite number"),
        ("issue_refund", {"order_id": "4821", "amount": 1e308}, "more than was paid"),
        ("issue_refund", {"order_id": "4821", "amount": 24.951}, "two decimals"),
        ("issue_refund", {"order_id": "4821", "amount": "24.95"}, "must be number"),
        ("issue_refund", {"order_id": "4821"}, "missing parameter 'amount'"),
        ("deny_refund", {"order_id": "4821", "reason": "rude"}, "must be one of"),
        ("escalate", {"order_id": "48210", "reason": "legal_threat"}, "no order '48210'"),
        ("reply_customer", {"message": " \n"}, "message is empty"),
        ("reply_customer", {"message": "hi", "to": "x"}, "unknown parameter 'to'"),
    ],
)
def test_wrong_parameter_is_answered_in_words_and_changes_nothing(
    desk: SupportDesk, scarf: Task, act: Make, name: str, parameters: dict[str, Any], part: str
) -> None:
    desk.reset(options={"task": scarf})
    before = desk.state_hash()
    observation, _, terminated, _, info = desk.step(act(name, **parameters))
    assert (part in observation, info["ok"], terminated) == (True, False, False), observation
    assert desk.state_hash() == before


def test_refund_of_an_order_refunded_before_is_refused(desk: SupportDesk, scarf: Task, act: Make) -> None:
    state = {**scarf.initial_state, "refunds": [[1, "4821", 2495]]}
    desk.reset(options={"task": msgspec.structs.replace(scarf, initial_state=state)})
    observation, ok = observe(desk, act("issue_refund", order_id="4821", amount=24.95))
    assert (observation, ok) == ("order 4821 is refunded already", False)
    assert "Refunded before: 24.95" in observe(desk, act("search_order", query="4821"))[0]


def test_nothing_can_be_decided_after_the_ticket_is_closed(desk: SupportDesk, scarf: Task) -> None:
    desk.reset(options={"task": scarf})
    desk.toolbox["deny_refund"].call({"order_id": "4821", "reason": "delivered"})
    for name, parameters in (
        ("issue_refund", {"order_id": "4821", "amount": 24.95}),
        ("deny_refund", {"order_id": "4821", "reason": "delivered"}),
        ("escalate", {"order_id": "4821", "reason": "legal_threat"}),
        ("reply_customer", {"message": "hello"}),
    ):
        with pytest.raises(ToolError, match="ticket is closed"):
            desk.toolbox[name].call(parameters)
    assert read_table(desk.connection, "refunds") == []


INJECTIONS = (
    "4821'; DROP TABLE orders; --",
    "' OR '1'='1",
    "x@y' OR 1=1 --",
    "4821\x00",
    'a@b"; UPDATE orders SET photo = "broken"; --',
    "%@%",
    "４８２１",
)


@pytest.mark.parametrize("text", INJECTIONS)
def test_H07_sql_in_a_parameter_is_only_text(desk: SupportDesk, scarf: Task, text: str) -> None:
    desk.reset(options={"task": scarf})
    before = desk.state_hash()
    for name, parameters in (
        ("search_order", {"query": text}),
        ("get_policy", {"order_id": text}),
        ("issue_refund", {"order_id": text, "amount": 1.5}),
        ("escalate", {"order_id": text, "reason": "legal_threat"}),
    ):
        with pytest.raises(ToolError):
            desk.toolbox[name].call(parameters)
    assert desk.state_hash() == before


@pytest.mark.parametrize("text", [*INJECTIONS, "x'); DELETE FROM messages; --"])
def test_H07_sql_in_a_message_is_stored_as_text(desk: SupportDesk, scarf: Task, text: str) -> None:
    desk.reset(options={"task": scarf})
    desk.toolbox["reply_customer"].call({"message": text})
    stored = [row[2:] for row in read_table(desk.connection, "messages")]
    assert stored == [["customer", scarf.prompt], ["desk", text]]
    assert {table for (table,) in desk.connection.execute("SELECT name FROM sqlite_master")} >= set(TABLES)


def test_looking_up_leaves_the_state_hash_alone(desk: SupportDesk, scarf: Task, act: Make) -> None:
    desk.reset(options={"task": scarf})
    before = desk.state_hash()
    observe(desk, act("search_order", query="4821"))
    observe(desk, act("get_policy", order_id="4821"))
    assert desk.state_hash() == before
    observe(desk, act("issue_refund", order_id="4821", amount=24.95))
    assert desk.state_hash() != before


def test_state_is_one_real_file_that_is_gone_after_close(desk: SupportDesk, scarf: Task) -> None:
    desk.reset(options={"task": scarf})
    path = Path(desk.connection.execute("PRAGMA database_list").fetchone()[2])
    assert path.read_bytes().startswith(b"SQLite format 3\x00")
    desk.close()
    assert not path.parent.exists()


def test_a_desk_is_usable_after_a_failed_reset_and_after_close(desk: SupportDesk, scarf: Task, act: Make) -> None:
    desk.reset(options={"task": scarf})
    fresh = desk.state_hash()
    with pytest.raises(TaskError):
        desk.reset(options={"task": msgspec.structs.replace(scarf, initial_state={"orders": [[1]]})})
    desk.reset(options={"task": scarf})
    assert desk.state_hash() == fresh
    desk.close()
    desk.close()
    desk.reset(options={"task": scarf})
    assert desk.state_hash() == fresh


def test_numbers_of_rows_start_anew_in_each_episode(desk: SupportDesk, scarf: Task, act: Make) -> None:
    logs = []
    for _ in range(2):
        desk.reset(options={"task": scarf})
        observe(desk, act("search_order", query="4821"))
        observe(desk, act("issue_refund", order_id="4821", amount=24.95))
        logs.append([read_table(desk.connection, table) for table in TABLES])
    assert logs[0] == logs[1]


def test_bad_rows_are_a_task_error_that_names_the_table(desk: SupportDesk, scarf: Task) -> None:
    state = {**scarf.initial_state, "orders": [["4821", 1]]}
    with pytest.raises(TaskError, match=r"initial_state\['orders'\]"):
        desk.reset(options={"task": msgspec.structs.replace(scarf, initial_state=state)})


def test_unknown_table_is_a_task_error(desk: SupportDesk, scarf: Task) -> None:
    state = {**scarf.initial_state, "tool_log": []}
    with pytest.raises(TaskError, match="no table"):
        desk.reset(options={"task": msgspec.structs.replace(scarf, initial_state=state)})


def test_D09_two_copies_keep_their_own_books_over_200_interleavings(scarf: Task) -> None:
    first, second = SupportDesk(), SupportDesk()
    try:
        for turn in range(200):
            first.reset(options={"task": scarf})
            second.reset(options={"task": scarf})
            order = (first, second) if turn % 2 else (second, first)
            for copy in order:
                copy.toolbox["search_order"].call({"query": "4821" if copy is first else "7310"})
            assert [row[3] for row in read_table(first.connection, "tool_log")] == ["4821"]
            assert [row[3] for row in read_table(second.connection, "tool_log")] == ["7310"]
    finally:
        first.close()
        second.close()


def test_D11_next_episode_knows_nothing_of_the_last(desk: SupportDesk, scarf: Task, act: Make) -> None:
    desk.reset(options={"task": scarf})
    fresh = desk.state_hash()
    observe(desk, act("search_order", query="4821"))
    observe(desk, act("issue_refund", order_id="4821", amount=24.95))
    desk.reset(options={"task": scarf})
    assert desk.state_hash() == fresh
    assert read_table(desk.connection, "tool_log") == []
    assert desk.current_verdict().progress == 0.0


def test_D11_connection_is_closed_when_reset_fails(desk: SupportDesk, scarf: Task) -> None:
    desk.reset(options={"task": scarf})
    connection = desk.connection
    broken = msgspec.structs.replace(scarf, initial_state={"orders": [[1]]})
    with pytest.raises(TaskError):
        desk.reset(options={"task": broken})
    with pytest.raises(Exception, match="closed database"):
        connection.execute("SELECT 1")
