from __future__ import annotations

import pytest

from deedrl.tasks.failures import FailureSignature, error_class, failure_signature, similarity
from deedrl.types import Action, Completion, Step, TerminationReason, ToolOutput, Trajectory, Verdict


def call(tool: str, output: str | None = None, **parameters) -> Step:
    return Step(
        index=0,
        observation="",
        completion=Completion(text=""),
        action=Action(tool_name=tool, parameters=parameters),
        tool_output=ToolOutput(text=output or "", ok=output is None),
    )


def failed(*steps: Step, **fields) -> Trajectory:
    return Trajectory(**{"episode_id": "e", "task_id": "t", "verdict": Verdict(solved=False), **fields}, steps=steps)


SOLUTION = failed(call("search", order="A1"), call("policy"), call("refund", order="A1", amount=20))


def test_first_wrong_tool_is_named_with_the_needed_one():
    signature = failure_signature(failed(call("search", order="A1"), call("refund"), call("reply")), SOLUTION)
    assert (signature.used, signature.needed) == ("refund", "policy")


def test_episode_that_stopped_early_lacks_the_next_tool():
    signature = failure_signature(failed(call("search", order="A1")), SOLUTION)
    assert (signature.used, signature.needed) == ("(ended)", "policy")


def test_right_tools_with_another_value_name_the_parameter():
    run = failed(call("search", order="A1"), call("policy"), call("refund", order="A1", amount=35))
    signature = failure_signature(run, SOLUTION)
    assert (signature.used, signature.wrong_parameters) == (None, ("refund.amount",))


def test_free_text_may_differ():
    solution = failed(call("reply", text="Your order is on its way"))
    assert failure_signature(failed(call("reply", text="It was shipped this morning")), solution).wrong_parameters == ()


def test_without_a_solution_nothing_is_said_of_tools():
    signature = failure_signature(failed(call("reply")))
    assert (signature.used, signature.needed, signature.wrong_parameters) == (None, None, ())


def test_missing_milestones_are_sorted():
    run = failed(verdict=Verdict(solved=False, milestones={"z": False, "a": False, "m": True}))
    assert failure_signature(run).missing_milestones == ("a", "z")


def test_last_refusal_gives_the_error():
    run = failed(call("search", "Order 'A1' not found"), call("refund", "Amount 35.00 is above 20.00"), call("reply"))
    assert failure_signature(run).error == "refund: amount … is above …"


def test_parse_error_gives_the_error():
    bad = Step(
        index=0, observation="", completion=Completion(text=""), action=Action(tier="reject", error="No JSON found")
    )
    assert failure_signature(failed(bad)).error == "no json found"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Order 'A-17' not found", 'order "B-99" not found'),
        ("Amount 35.00 is above 20.00", "Amount 7 is above 120"),
        ("no customer C12", "no customer X9"),
    ],
)
def test_errors_of_a_kind_share_a_class(one, other):
    assert error_class(one) == error_class(other)


def test_errors_of_two_kinds_do_not():
    assert error_class("order not found") != error_class("amount too high")


def test_similarity_by_hand():
    first = FailureSignature(termination="goal", missing_milestones=("a", "b"))
    second = FailureSignature(termination="goal", missing_milestones=("b", "c"))
    assert similarity(first, second) == 2 / 4
    assert similarity(first, first) == 1.0


def test_text_is_readable():
    signature = FailureSignature(
        termination=TerminationReason.STEP_LIMIT.value,
        missing_milestones=("read_policy",),
        used="refund",
        needed="policy",
        error="refund: no such order",
    )
    assert signature.text() == (
        "refund instead of policy; not reached: read_policy; error: refund: no such order; ended by step_limit"
    )
