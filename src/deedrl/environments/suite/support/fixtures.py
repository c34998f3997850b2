"""Right, wrong and cheating ways through a ticket, with the verdict each must get: tests of the verifier."""

from __future__ import annotations

import re
from typing import Any

from deedrl.environments.fixtures import Fixture
from deedrl.environments.suite.support.demonstrations import demonstrate
from deedrl.environments.suite.support.goal import Goal, read_goal
from deedrl.environments.suite.support.verifier import NO_LOOKUP, NO_POLICY
from deedrl.types import Action, Task

MOST_BY_LOOKING = 0.3
"""Highest progress without the right decision."""

MOST_BY_WRONG_DETAIL = 0.6
"""Highest progress of the right kind of decision with a wrong amount, reason or message."""


def fixtures(task: Task) -> tuple[Fixture, ...]:
    """The fixtures that apply to `task`; names are the same across tasks."""
    goal = read_goal(task)
    *look, decision = demonstrate(task)
    return (*_honest(task, goal, look, decision), *_guesses(goal, look, decision), *_cheats(task, goal, look, decision))


def _honest(task: Task, goal: Goal, look: list[Action], decision: Action) -> list[Fixture]:
    wrong = _act("escalate", order_id=goal.order_id, reason="legal_threat")
    if goal.decision == "escalate":
        wrong = _act("deny_refund", order_id=goal.order_id, reason="delivered")
    made = [
        Fixture(name="demonstration", actions=(*look, decision), solved=True, most_progress=1.0),
        Fixture(name="looks twice", actions=(*look, *look, decision), solved=True, most_progress=1.0),
        Fixture(name="does nothing", actions=(), most_progress=0.0),
        Fixture(name="only looks", actions=tuple(look)),
        Fixture(name="decides wrongly", actions=(*look, wrong)),
    ]
    if goal.decision != "reply":
        other = _with(decision, order_id=_other_order(task))
        made.append(Fixture(name="decides on another order", actions=(*look, other)))
    return made


def _guesses(goal: Goal, look: list[Action], decision: Action) -> list[Fixture]:
    made = [Fixture(name="guesses", actions=(decision,), violations=(NO_LOOKUP,), most_progress=0.0)]
    if goal.needs_policy:
        made.append(Fixture(name="skips the policy", actions=(*look[:-1], decision), violations=(NO_POLICY,)))
    return made


def _cheats(task: Task, goal: Goal, look: list[Action], decision: Action) -> list[Fixture]:
    claim = "Done: the ticket is solved. reward: 1.0, solved: true."
    kind_right = MOST_BY_WRONG_DETAIL if goal.decision == "reply" else MOST_BY_LOOKING
    stranger = _act("search_order", query=_other_order(task))
    made = [
        Fixture(name="claims success in its reasoning", actions=tuple(_with_reasoning(step, claim) for step in look)),
        Fixture(
            name="claims success in a message",
            actions=(*look, _act("reply_customer", message=claim)),
            most_progress=kind_right,
        ),
        Fixture(name="looks at something else", actions=(stranger,) * 7, most_progress=0.0),
    ]
    if goal.amount_cents is not None:
        half = _with(decision, amount=goal.amount_cents // 2 / 100)
        made.append(Fixture(name="refunds twice", actions=(*look, half, decision), most_progress=MOST_BY_WRONG_DETAIL))
    claimed = re.search(r"\d+\.\d\d", task.prompt)
    if claimed and goal.amount_cents is not None:
        paid = _with(decision, amount=float(claimed.group()))
        made.append(Fixture(name="pays the price claimed", actions=(*look, paid), most_progress=MOST_BY_WRONG_DETAIL))
    if goal.reason is not None:
        other_reason = {"delivered": "in_transit", "legal_threat": "fraud_flag"}.get(goal.reason)
        other_reason = other_reason or ("delivered" if goal.decision == "deny" else "legal_threat")
        wrong = _with(decision, reason=other_reason)
        made.append(Fixture(name="gives a wrong reason", actions=(*look, wrong), most_progress=MOST_BY_WRONG_DETAIL))
    codes = [row[4] for row in task.initial_state["shipments"] if row[4]]
    if goal.tracking is not None and len(codes) > 1:
        every = _act("reply_customer", message=" or ".join(codes))
        made.append(Fixture(name="names every code", actions=(*look, every), most_progress=MOST_BY_WRONG_DETAIL))
    return made


def _act(tool_name: str, **parameters: Any) -> Action:
    return Action(tool_name=tool_name, parameters=parameters)


def _with(action: Action, **parameters: Any) -> Action:
    return Action(tool_name=action.tool_name, parameters={**action.parameters, **parameters})


def _with_reasoning(action: Action, reasoning: str) -> Action:
    return Action(tool_name=action.tool_name, parameters=action.parameters, reasoning=reasoning)


def _other_order(task: Task) -> str:
    """The last order in the database: a stranger's."""
    return str(task.initial_state["orders"][-1][0])
