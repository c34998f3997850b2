from __future__ import annotations

import math

import msgspec
import pytest

from deedrl.errors import ConfigError, EnvironmentAuthorError
from deedrl.rewards import (
    Outcome,
    RequiredEvidence,
    Rubric,
    WeightedTerm,
    by_progress,
    default_rubric,
    rescore,
    term,
    ungated,
)
from deedrl.types import TerminationReason, Verdict

SOLVED = Verdict(solved=True, progress=1.0, milestones={"looked": True, "acted": True})
HALF = Verdict(solved=False, progress=0.5, milestones={"looked": True, "acted": False})


def fixed(name, value):
    return term(name)(lambda trajectory: value)


def test_perfect_episode_earns_one(episode):
    assert default_rubric().score(episode(("look", "act"), SOLVED, shortest_steps=2)).total == pytest.approx(1.0)


def test_half_done_episode_by_hand(episode):
    # process 0.25 x 1/2 x gate 0.5, efficiency 0.10 x 1 x 0.5, format 0.10 x 1 x 0.5
    breakdown = default_rubric().score(episode(("look",), HALF, shortest_steps=2))
    assert breakdown.total == pytest.approx(0.0625 + 0.05 + 0.05)
    assert breakdown.terms["process"].value == 0.5
    assert breakdown.terms["process"].gate == 0.5
    assert breakdown.terms["process"].weight == 0.25


def test_contributions_sum_to_the_total(episode):
    breakdown = default_rubric().score(episode(("look", None, "act"), SOLVED))
    assert breakdown.total == pytest.approx(math.fsum(score.contribution or 0 for score in breakdown.terms.values()))


def test_optional_term_that_cannot_score_gives_its_weight_to_the_others(episode):
    # no milestones and no shortest solution: outcome 0.55 / 0.65 and format 0.10 / 0.65 are left
    breakdown = default_rubric().score(episode((None, "act"), Verdict(solved=True, progress=1.0)))
    assert breakdown.total == pytest.approx(0.55 / 0.65)
    assert breakdown.terms["process"].value is None
    assert breakdown.terms["process"].weight == 0.25
    assert breakdown.terms["format"].weight == pytest.approx(0.10 / 0.65)


def test_needed_term_that_cannot_score_leaves_the_episode_unscored(episode):
    rubric = Rubric([WeightedTerm(Outcome(), 0.8, gate=ungated), WeightedTerm(fixed("style", None), 0.2)])
    assert rubric.score(episode(("act",), SOLVED)).total is None


def test_term_of_weight_zero_is_shown_but_never_pays_nor_blocks(episode):
    rubric = Rubric([WeightedTerm(Outcome(), 1.0, gate=ungated), WeightedTerm(fixed("style", None), 0.0)])
    assert rubric.score(episode(("act",), SOLVED)).total == 1.0


def test_rubric_with_nothing_scored_is_unscored_rather_than_zero(episode):
    shown = WeightedTerm(fixed("shown", 1.0), 0.0, gate=ungated)
    rubric = Rubric([WeightedTerm(fixed("style", None), 1.0, optional=True), shown])
    assert rubric.score(episode(("act",), SOLVED)).total is None


def test_unjudged_episode_is_unscored(episode):
    assert default_rubric().score(episode(("look",), None)).total is None


def test_F24_parse_failure_without_verdict_earns_zero(episode):
    lost = episode((None, None), None, termination=TerminationReason.PARSE_FAILURES)
    assert default_rubric().score(lost).total == 0.0


def test_D02_errored_episode_has_no_reward(errored):
    breakdown = default_rubric().score(errored)
    assert breakdown.total is None
    assert breakdown.terms == {}


def test_violation_vetoes_a_solved_episode_and_is_recorded(episode):
    verdict = msgspec.structs.replace(SOLVED, violations=("refunded without a policy",))
    breakdown = default_rubric().score(episode(("act",), verdict))
    assert breakdown.total == 0.0
    assert breakdown.vetoes == ("refunded without a policy",)
    assert breakdown.terms["outcome"].value == 1.0


def test_veto_holds_even_when_a_needed_term_cannot_score(episode):
    rubric = Rubric([WeightedTerm(fixed("style", None), 1.0)], vetoes=[RequiredEvidence(("look",), ("act",))])
    assert rubric.score(episode(("act",), SOLVED)).total == 0.0


@pytest.mark.parametrize("value", [math.nan, math.inf, 1.5, -0.5, "0.5", 1 + 1j])
def test_F13_E07_term_outside_its_range_is_the_authors_bug_and_named(episode, value):
    rubric = Rubric([WeightedTerm(fixed("politeness", value), 1.0)])
    with pytest.raises(EnvironmentAuthorError, match="politeness"):
        rubric.score(episode(("act",), SOLVED))


@pytest.mark.parametrize("progress", [math.nan, 1.5, -0.5])
def test_F13_progress_outside_its_range_is_refused(episode, progress):
    with pytest.raises(EnvironmentAuthorError, match="gate"):
        default_rubric().score(episode(("act",), Verdict(solved=False, progress=progress)))


def test_term_that_raises_is_named(episode):
    @term("broken")
    def broken(trajectory):
        return trajectory.steps[99].reward

    with pytest.raises(EnvironmentAuthorError, match="'broken' raised IndexError"):
        Rubric([WeightedTerm(broken, 1.0)]).score(episode(("act",), SOLVED))


def test_rounding_error_at_the_edge_is_no_bug(episode):
    rubric = Rubric([WeightedTerm(fixed("sum", 0.1 + 0.2 + 0.7 + 1e-12), 1.0)])
    assert rubric.score(episode(("act",), SOLVED)).total == 1.0


def test_weights_are_shares_of_their_sum(episode):
    rubric = Rubric([WeightedTerm(Outcome(), 3, gate=ungated), WeightedTerm(fixed("extra", 0.0), 1)])
    assert rubric.score(episode(("act",), SOLVED)).total == 0.75


@pytest.mark.parametrize("weight", [-0.1, math.nan, math.inf])
def test_weight_that_is_no_share_is_refused(weight):
    with pytest.raises(EnvironmentAuthorError, match="weight of reward term 'outcome'"):
        Rubric([WeightedTerm(Outcome(), weight)])


def test_two_terms_of_one_name_are_refused():
    with pytest.raises(EnvironmentAuthorError, match="names of their own"):
        Rubric([WeightedTerm(Outcome(), 1), WeightedTerm(Outcome(), 1)])


def test_rubric_without_weight_is_refused():
    with pytest.raises(EnvironmentAuthorError, match="above 0"):
        Rubric([])


def test_reweighted_changes_the_named_terms_only():
    assert default_rubric().reweighted({"process": 0.45, "outcome": 0.35}).shares == pytest.approx(
        {"outcome": 0.35, "process": 0.45, "efficiency": 0.1, "format": 0.1}
    )


def test_reweighted_suggests_the_near_name():
    with pytest.raises(ConfigError, match="did you mean 'process'"):
        default_rubric().reweighted({"proces": 0.3})


def test_rescore_gives_a_new_record_and_leaves_the_old(episode):
    old = episode(("act",), SOLVED)
    new = rescore(old, Rubric([WeightedTerm(Outcome(), 1.0, gate=ungated)]))
    assert (old.reward, new.reward) == (None, 1.0)


def test_stored_episode_is_rescored_alike(episode):
    run = episode(("look", "act"), HALF, shortest_steps=2)
    read = msgspec.json.decode(msgspec.json.encode(run), type=type(run))
    assert default_rubric().score(read) == default_rubric().score(run)


def test_progress_of_the_initial_state_is_not_the_agents(episode, step):
    refused = episode(steps=(step(0, "act", ok=False),), verdict=HALF)
    assert by_progress(refused) == 0.0
    assert by_progress(episode(("look",), HALF)) == 0.5


def test_evidence_before_the_decision_satisfies(episode):
    veto = RequiredEvidence(("look", "search"), ("refund",))
    assert veto.reason(episode(("search", "refund"), SOLVED)) is None


def test_F10_decision_without_evidence_is_vetoed(episode):
    reason = RequiredEvidence(("look",), ("refund",)).reason(episode(("refund", "look"), SOLVED))
    assert reason == "called refund before look had answered"


def test_refused_look_up_is_no_evidence(episode, step):
    run = episode(steps=(step(0, "look", ok=False), step(1, "refund")), verdict=SOLVED)
    assert RequiredEvidence(("look",), ("refund",)).reason(run) is not None


def test_episode_that_never_decided_breaks_nothing(episode):
    assert RequiredEvidence(("look",), ("refund",)).reason(episode((None,), HALF)) is None


def test_F10_evidence_can_be_needed_by_the_whole_episode(episode):
    assert RequiredEvidence(("look",)).reason(episode(("reply",), SOLVED)) == "ended without an answer from look"
