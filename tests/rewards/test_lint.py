from __future__ import annotations

from deedrl.rewards import Outcome, Process, Rubric, WeightedTerm, default_rubric, lint_rubric, term, ungated
from deedrl.types import Verdict

OUTCOME = WeightedTerm(Outcome(), 0.75, gate=ungated)


def checks(rubric, sample=()):
    return [finding.check for finding in lint_rubric(rubric, sample)]


def scored(name, score, weight=0.25, **fields):
    return WeightedTerm(term(name)(score), weight, **fields)


def test_default_rubric_is_clean():
    assert lint_rubric(default_rubric()) == []


def test_large_process_share_is_named_in_percent():
    rubric = Rubric([WeightedTerm(Outcome(), 0.6, gate=ungated), WeightedTerm(Process(), 0.4)])
    (finding,) = lint_rubric(rubric)
    assert finding.check == "process_share"
    assert "40%" in str(finding)


def test_rubric_of_outcome_alone_lacks_process():
    assert checks(Rubric([WeightedTerm(Outcome(), 1.0, gate=ungated)])) == ["process_share"]


def test_term_of_another_name_counts_as_process_unless_it_says_otherwise():
    assert checks(Rubric([OUTCOME, scored("looked_first", lambda run: 1.0)])) == []
    assert "process_share" in checks(Rubric([OUTCOME, scored("brevity", lambda run: 1.0, aspect="efficiency")]))


def test_small_outcome_share_is_found():
    rubric = Rubric([WeightedTerm(Outcome(), 0.4, gate=ungated), scored("process", lambda run: 0.0, 0.6)])
    assert checks(rubric) == ["process_share", "outcome_share"]


def test_weights_that_do_not_sum_to_one_are_found():
    rubric = Rubric([WeightedTerm(Outcome(), 3.0, gate=ungated), WeightedTerm(Process(), 1.0)])
    (finding,) = lint_rubric(rubric)
    assert finding.check == "weights_sum"
    assert "sum to 4" in finding.message
    assert "outcome 75%, process 25%" in finding.message


def test_ten_terms_are_too_many():
    rubric = Rubric([OUTCOME, *(scored(f"term_{number}", lambda run: 1.0, 0.25 / 9) for number in range(9))])
    assert checks(rubric) == ["too_many_terms"]


def test_F16_term_that_pays_per_call_is_found():
    paid = scored("calls", lambda run: min(1.0, len(run.steps) / 10), gate=ungated)
    (finding,) = lint_rubric(Rubric([OUTCOME, paid]))
    assert finding.check == "earned_without_progress"
    assert "'calls' earns 0.25 without progress (ten useless calls)" in finding.message


def test_F15_term_that_pays_for_the_absence_of_errors_is_found():
    paid = scored("clean", lambda run: float(all(step.action.valid for step in run.steps)), gate=ungated)
    assert checks(Rubric([OUTCOME, paid])) == ["earned_without_progress"]


def test_F15_stored_episode_without_progress_is_looked_at_too(episode):
    paid = scored("polite", lambda run: float("thanks" in run.episode_id or run.episode_id == "e"), gate=ungated)
    idle = episode(("look",), Verdict(solved=False, milestones={}))
    assert checks(Rubric([OUTCOME, paid])) == []
    assert "earned_without_progress" in checks(Rubric([OUTCOME, paid]), [idle])


def test_terms_of_unequal_scale_are_found(episode):
    tiny = scored("depth", lambda run: len(run.steps) / 1000)
    sample = [
        episode(("look",) * count, Verdict(solved=count > 2, progress=float(count > 2), milestones={}))
        for count in (1, 2, 3, 4)
    ]
    (finding,) = lint_rubric(Rubric([OUTCOME, tiny]), sample)
    assert finding.check == "unequal_scale"
    assert "'depth' varies by 0.003" in finding.message


def test_constant_term_is_found(episode):
    sample = [
        episode(("look",), Verdict(solved=solved, progress=float(solved), milestones={"looked": True}))
        for solved in (True, False)
    ]
    (finding,) = lint_rubric(Rubric([OUTCOME, WeightedTerm(Process(), 0.25)]), sample)
    assert finding.check == "constant_term"
    assert "'process' is 1.00 in all 2 episodes" in finding.message


def test_term_that_cannot_score_is_counted(episode, errored):
    sample = [
        episode(("look",), Verdict(solved=True, progress=1.0, milestones={"looked": True})),
        episode(("look",), Verdict(solved=False)),
        errored,
    ]
    (finding,) = lint_rubric(Rubric([OUTCOME, WeightedTerm(Process(), 0.25)]), sample)
    assert finding.message == "term 'process' could not score 1 of 2 episodes of the sample"
