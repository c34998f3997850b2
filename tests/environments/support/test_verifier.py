"""The verifier against right, wrong and cheating play, and against a database that was tampered with."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pytest

from deedrl.environments.suite.support.environment import SupportDesk
from deedrl.environments.suite.support.fixtures import fixtures
from deedrl.environments.suite.support.verifier import NO_LOOKUP
from deedrl.errors import TaskError
from deedrl.types import Action, Task, Verdict

Play = Callable[[Task, Sequence[Action]], Verdict]
Make = Callable[..., Action]

TASKS = SupportDesk.generate_tasks("train", 21 * 8, 5) + SupportDesk.generate_tasks("test_unseen", 21 * 4, 5)
FIXTURE_NAMES = sorted({fixture.name for task in TASKS for fixture in fixtures(task)})


@pytest.mark.parametrize("name", FIXTURE_NAMES)
def test_F11_F13_every_fixture_gets_the_verdict_it_must(play: Play, name: str) -> None:
    for task in TASKS:
        for fixture in fixtures(task):
            if fixture.name == name:
                verdict = play(task, fixture.actions)
                assert (verdict.solved, verdict.violations) == (fixture.solved, fixture.violations), task
                assert verdict.progress <= fixture.most_progress, (task, verdict)


def test_right_play_earns_the_milestones_in_order(desk: SupportDesk, scarf: Task, act: Make) -> None:
    desk.reset(options={"task": scarf})
    assert desk.current_verdict() == Verdict(
        solved=False, progress=0.0, milestones={"looked_up_order": False, "right_decision": False, "exact": False}
    )
    desk.step(act("search_order", query="4821"))
    assert desk.current_verdict().progress == 0.2
    desk.step(act("issue_refund", order_id="4821", amount=24.95))
    verdict = desk.current_verdict()
    assert (verdict.solved, verdict.progress) == (True, 1.0)
    assert verdict.milestones == {"looked_up_order": True, "right_decision": True, "exact": True}


def test_F10_guess_earns_less_than_looking_up_and_is_a_violation(play: Play, scarf: Task, act: Make) -> None:
    guess = play(scarf, [act("issue_refund", order_id="4821", amount=24.95)])
    looked = play(scarf, [act("search_order", query="4821")])
    assert guess == Verdict(
        solved=False,
        progress=0.0,
        milestones={"looked_up_order": False, "right_decision": False, "exact": False},
        violations=(NO_LOOKUP,),
    )
    assert guess.progress < looked.progress
    assert looked.violations == ()


def test_F10_a_short_listing_is_no_evidence(play: Play) -> None:
    """Three orders are listed without details, so the right one is still to be looked up."""
    task = next(t for t in TASKS if (t.family, t.difficulty) == ("several_orders", "medium"))
    actions = SupportDesk().demonstrate(task)
    assert play(task, [actions[0], actions[2]]).violations == (NO_LOOKUP,)


def test_F15_doing_nothing_is_worth_nothing(play: Play) -> None:
    assert {play(task, []).progress for task in TASKS} == {0.0}


def test_F16_ten_useless_calls_earn_what_one_earns(desk: SupportDesk, scarf: Task) -> None:
    desk.reset(options={"task": scarf})
    for _ in range(10):
        desk.toolbox["search_order"].call({"query": "7310"})
    assert desk.current_verdict().progress == 0.0
    for _ in range(10):
        desk.toolbox["search_order"].call({"query": "4821"})
        desk.toolbox["get_policy"].call({"order_id": "4821"})
    assert desk.current_verdict().progress == 0.2


def test_F13_numbers_written_into_the_database_by_the_agent_do_nothing(play: Play, scarf: Task, act: Make) -> None:
    for message in ("1.0", "nan", '{"solved": true, "progress": 1.5}', "reward: 1.0"):
        verdict = play(scarf, [act("search_order", query="4821"), act("reply_customer", message=message)])
        assert (verdict.solved, verdict.progress) == (False, 0.2)


@pytest.mark.parametrize(
    "damage",
    [
        "INSERT INTO refunds (order_id, amount_cents) VALUES ('4821', 2495)",
        "INSERT INTO refunds (order_id, amount_cents) VALUES ('7310', 100)",
        "UPDATE refunds SET amount_cents = 2494",
        "DELETE FROM refunds",
        "UPDATE orders SET photo = 'broken' WHERE id = '7310'",
        "DELETE FROM shipments WHERE id = 2",
        "UPDATE policies SET window_days = 99",
        "INSERT INTO messages (ticket_id, sender, text) VALUES (1, 'desk', 'hello')",
        "UPDATE messages SET text = 'other'",
        "INSERT INTO tickets (customer_id, status) VALUES (2, 'closed')",
    ],
)
def test_collateral_damage_is_never_solved(desk: SupportDesk, scarf: Task, act: Make, damage: str) -> None:
    desk.reset(options={"task": scarf})
    desk.step(act("search_order", query="4821"))
    desk.step(act("issue_refund", order_id="4821", amount=24.95))
    assert desk.current_verdict().solved
    desk.connection.execute(damage)
    assert not desk.current_verdict().solved


def test_looking_up_after_the_decision_is_no_evidence(desk: SupportDesk, scarf: Task) -> None:
    desk.reset(options={"task": scarf})
    desk.toolbox["issue_refund"].call({"order_id": "4821", "amount": 24.95})
    desk.toolbox["search_order"].call({"query": "4821"})
    verdict = desk.current_verdict()
    assert (verdict.solved, verdict.progress, verdict.violations) == (False, 0.0, (NO_LOOKUP,))


@pytest.mark.parametrize(
    ("message", "solved"),
    [
        ("Your code is QF729.", True),
        ("qf729", True),
        ("Your code is XQF729", False),
        ("Your code is QF7290", False),
        ("QF729 or ZZ111", False),
        ("您的查询码是QF729。", True),
        ("QF729，也可能是ZZ111吧", False),
        ("It is on its way.", False),
    ],
)
def test_F01_F02_reply_needs_the_code_as_a_word_and_no_other(
    play: Play, scarf: Task, act: Make, message: str, solved: bool
) -> None:
    state = {
        **scarf.initial_state,
        "shipments": [[1, "4821", None, "in transit", "QF729", None], [2, "7310", None, "in transit", "ZZ111", None]],
    }
    task = Task.create(
        prompt="Where is order 4821?",
        initial_state=state,
        goal_state={"decision": "reply", "order_id": "4821", "tracking": "QF729"},
    )
    actions = [act("search_order", query="4821"), act("reply_customer", message=message)]
    assert play(task, actions).solved is solved


def test_F18_goal_is_in_no_prompt_and_in_no_error(desk: SupportDesk) -> None:
    """Amounts and codes must come from the look-up: not from the prompt, nor from what refusals say."""
    for task in TASKS:
        secrets = [re.compile(rf"(?<![\w.]){re.escape(gold)}(?![\w])") for gold in desk.gold_strings(task)]
        observation, info = desk.reset(options={"task": task})
        order_id = task.goal_state["order_id"]
        seen = [observation, str(info), desk.instructions, str(desk.toolbox.schemas())]
        for action in (
            Action(tool_name="issue_refund", parameters={"order_id": order_id, "amount": 1e6}),
            Action(tool_name="issue_refund", parameters={"order_id": order_id, "amount": 0.001}),
            Action(tool_name="search_order", parameters={"query": ""}),
            Action(tool_name="get_policy", parameters={"order_id": "*"}),
            Action(tool_name="reply_customer", parameters={"message": ""}),
        ):
            seen.append(desk.step(action)[0])
        assert not [text for text in seen for secret in secrets if secret.search(text)], task


def test_F18_goal_is_not_in_the_database(desk: SupportDesk) -> None:
    for task in TASKS[:21]:
        desk.reset(options={"task": task})
        stored = "\n".join(desk.connection.iterdump())
        assert "goal" not in stored
        assert "cause" not in stored


def test_task_without_a_goal_of_this_desk_is_a_task_error(desk: SupportDesk, scarf: Task) -> None:
    other = Task.create(prompt="hello", initial_state=scarf.initial_state, goal_state={"decision": "dance"})
    desk.reset(options={"task": other})
    with pytest.raises(TaskError, match="not a goal of the support desk"):
        desk.current_verdict()
