from __future__ import annotations

import pytest

from deedrl.evaluation import compute_metrics, unsupported_claims
from deedrl.types import Action


def said(step, text):
    return [step(Action(tool_name="act", parameters={"message": text}))]


@pytest.mark.parametrize(
    "text",
    [
        "Your refund has been issued.",
        "I have successfully updated the order.",
        "All done!",
        "File written",
        "I've sent the reply",
        "已经为您退款。",
    ],
)
def test_F11_claim_without_the_state_is_found(run, step, text):
    assert unsupported_claims(run(False, said(step, text))) == (text,)


@pytest.mark.parametrize(
    "text",
    [
        "I could not issue the refund.",
        "The refund has not been issued.",
        "I will look up the order.",
        "Once the refund is processed you get a mail.",
        "尚未退款",
    ],
)
def test_honest_text_is_no_claim(run, step, text):
    assert unsupported_claims(run(False, said(step, text))) == ()


def test_F11_claim_that_the_state_supports_is_none(run, step):
    assert unsupported_claims(run(True, said(step, "Your refund has been issued."))) == ()


def test_F11_claim_in_text_that_is_no_action_is_found(run, step):
    lost = run(False, [step(Action(tier="reject", error="no action"), text="Done. The refund was issued. Bye!")])
    assert unsupported_claims(lost) == ("The refund was issued.",)


def test_F11_claim_in_the_reasoning_is_found(run, step):
    assert unsupported_claims(run(False, [step(Action(tool_name="act", reasoning="The order is cancelled."))])) != ()


def test_only_the_last_completion_is_read(run, step):
    steps = [*said(step, "The refund was issued."), *said(step, "Sorry, it failed.")]
    assert unsupported_claims(run(False, steps)) == ()


def test_F11_claims_are_counted_over_failed_episodes(run, step):
    claim = run(False, said(step, "All done!"))
    figure = compute_metrics([claim, run(False), run(True)]).unsupported_claims
    assert (figure.numerator, figure.denominator) == (1, 2)
