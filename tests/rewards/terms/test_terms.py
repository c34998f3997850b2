from __future__ import annotations

import pytest

from deedrl.rewards import Efficiency, Format, Outcome, Process
from deedrl.types import Verdict

SOLVED = Verdict(solved=True, progress=1.0)


@pytest.mark.parametrize(
    ("verdict", "value"), [(SOLVED, 1.0), (Verdict(solved=False, progress=0.9), 0.0), (None, None)]
)
def test_outcome_is_the_verifiers_word_without_partial_credit(episode, verdict, value):
    assert Outcome().score(episode(("act",), verdict)) == value


def test_process_counts_a_milestone_once(episode):
    verdict = Verdict(solved=False, milestones={"looked": True, "checked": False, "acted": False, "told": True})
    assert Process().score(episode(("look",) * 10, verdict)) == 0.5


def test_process_without_milestones_cannot_score(episode):
    assert Process().score(episode(("look",), SOLVED)) is None


def test_F08_lone_strict_actions_score_one(episode):
    assert Format().score(episode(("look", "act"), SOLVED)) == 1.0


def test_F08_extra_actions_lower_the_format(episode, step):
    assert Format().score(episode(steps=(step(0, ignored_actions=2),))) < 1.0


def test_repair_lowers_the_format(episode, step):
    assert 0.0 < Format().score(episode(steps=(step(0, tier="repair", repairs=("trailing_comma",)), step(1)))) < 1.0


def test_one_rejected_completion_takes_the_format(episode):
    assert Format().score(episode(("look", None, "look"), SOLVED)) == 0.0


def test_F15_no_completions_show_no_format(episode):
    assert Format().score(episode(())) == 0.0


def test_efficiency_by_hand(episode, step):
    # shortest 2: steps 2/4, calls 2/4, tokens 2 x 10 / 40
    run = episode(steps=tuple(step(index, tokens=10) for index in range(4)), shortest_steps=2)
    assert Efficiency(tokens_per_step=10).score(run) == pytest.approx(0.5)


def test_failed_parse_is_a_step_but_no_call(episode):
    # steps 2/4, calls 2/2, no tokens recorded
    assert Efficiency().score(episode(("look", None, None, "act"), shortest_steps=2)) == pytest.approx(0.75)


def test_brevity_below_the_token_budget_earns_nothing(episode, step):
    short = episode(steps=(step(0, tokens=1),), shortest_steps=1)
    longer = episode(steps=(step(0, tokens=90),), shortest_steps=1)
    assert Efficiency().score(short) == Efficiency().score(longer) == 1.0


def test_efficiency_without_a_shortest_solution_cannot_score(episode):
    assert Efficiency().score(episode(("act",))) is None


def test_reference_steps_stand_in_for_an_unknown_solution(episode):
    assert Efficiency(reference_steps=1).score(episode(("look", "act"))) == 0.5
