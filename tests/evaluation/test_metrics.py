from __future__ import annotations

import math

import msgspec
import pytest

from deedrl.errors import TaskError
from deedrl.evaluation import Figure, check_split, compute_metrics, low_tool_use, reward_outcome_correlation
from deedrl.evaluation.metrics import split_identity
from deedrl.parsing import parse_action
from deedrl.types import Action, RewardBreakdown, SamplingParams, Task, TerminationReason, ToolSchema

LOOK = ToolSchema(name="look", parameters={"type": "object", "properties": {"id": {"type": "integer"}}})
UNKNOWN_TOOL = parse_action('{"tool_name": "lok", "parameters": {"id": 1}}', [LOOK])
BAD_PARAMETER = parse_action('{"tool_name": "look", "parameters": {"id": "x"}}', [LOOK])
NO_ACTION = parse_action("Done!", [LOOK])


def numbers(figure: Figure) -> tuple[float | None, float, int]:
    return figure.value, figure.numerator, figure.denominator


def test_completion_rate_over_judged_episodes(run):
    metrics = compute_metrics([run(True), run(True), run(False), run(False)])
    assert numbers(metrics.completion_rate) == (0.5, 2, 4)
    assert (metrics.completion_rate.low, metrics.completion_rate.high) == pytest.approx((0.1500, 0.8500), abs=1e-3)


def test_D02_errored_episodes_enter_nothing_but_their_count(run, errored):
    metrics = compute_metrics([run(True, 2), errored(), errored()])
    assert metrics.errored == 2
    assert numbers(metrics.completion_rate) == (1.0, 1, 1)
    assert numbers(metrics.mean_steps) == (2.0, 2, 1)
    assert metrics.errors == {"reset:RuntimeError": 2}


def test_unscored_episodes_are_counted_apart(run):
    metrics = compute_metrics([run(True), run(None, 3), run(False)])
    assert (metrics.episodes, metrics.unscored) == (3, 1)
    assert numbers(metrics.completion_rate) == (0.5, 1, 2)


def test_episodes_are_judged_unscored_or_errored(run, errored):
    metrics = compute_metrics([run(True), run(False), run(None), errored()])
    assert metrics.episodes == metrics.completion_rate.denominator + metrics.unscored + metrics.errored


@pytest.mark.parametrize("verdict", [False, None])
def test_F24_unparsable_answers_stay_in_the_denominator(run, verdict):
    lost = [run(verdict, 2, termination=TerminationReason.PARSE_FAILURES)] * 3
    metrics = compute_metrics([run(True)] * 5 + [run(False)] * 2 + lost)
    assert numbers(metrics.completion_rate) == (0.5, 5, 10)
    assert numbers(metrics.parse_failures) == (0.3, 3, 10)
    assert metrics.unscored == 0


def test_mean_steps_is_total_over_episodes(run):
    metrics = compute_metrics([run(True, 1), run(True, 2), run(False, 3)])
    assert numbers(metrics.mean_steps) == (2.0, 6, 3)
    assert metrics.mean_steps.low == 0.0  # 2 - 2.48 is below what steps can be
    assert metrics.mean_steps.high == pytest.approx(4.484, abs=1e-2)


def test_steps_of_the_solved_beside_their_shortest(run):
    metrics = compute_metrics([run(True, 3, shortest_steps=2), run(False, 8, shortest_steps=2), run(True, 5)])
    assert numbers(metrics.mean_steps_solved) == (4.0, 8, 2)
    assert numbers(metrics.mean_shortest_steps) == (2.0, 2, 1)


def test_tool_call_accuracy_splits_into_name_and_parameters(run, step):
    steps = [step(), step(ok=False), step(BAD_PARAMETER), step(UNKNOWN_TOOL), step(NO_ACTION)]
    metrics = compute_metrics([run(False, steps)])
    assert numbers(metrics.tool_call_accuracy) == (0.2, 1, 5)
    assert numbers(metrics.name_accuracy) == (0.6, 3, 5)
    assert numbers(metrics.parameter_accuracy) == (1 / 3, 1, 3)


def test_format_compliance_needs_one_lone_strict_action(run, step):
    steps = [
        step(),
        step(ok=False),
        step(Action(tool_name="look", tier="repair")),
        step(Action(tool_name="look", ignored_actions=1)),
        step(NO_ACTION),
    ]
    assert numbers(compute_metrics([run(True, steps)]).format_compliance) == (0.4, 2, 5)


def test_no_episodes_give_no_values_rather_than_zeros():
    metrics = compute_metrics([])
    for figure in (metrics.completion_rate, metrics.mean_steps, metrics.tool_call_accuracy, metrics.format_compliance):
        assert figure == Figure(value=None, numerator=0, denominator=0, low=None, high=None)


def test_one_episode_has_mean_steps_without_an_interval(run):
    figure = compute_metrics([run(True, 4)]).mean_steps
    assert (figure.value, figure.low, figure.high) == (4.0, None, None)


def test_E07_figure_refuses_what_is_not_finite():
    with pytest.raises(ValueError, match="finite"):
        Figure(value=math.nan, numerator=0, denominator=0, low=None, high=None)


def test_tokens_only_over_episodes_that_recorded_some(run, step):
    metrics = compute_metrics([run(True, [step(tokens=10), step(tokens=20)]), run(True, [step()])])
    assert numbers(metrics.tokens) == (30.0, 30, 1)


def test_mean_reward_leaves_out_what_has_none(run):
    rewarded = [run(True, breakdown=RewardBreakdown(total=total)) for total in (0.5, 1.0, None)]
    assert numbers(compute_metrics(rewarded).mean_reward) == (0.75, 1.5, 2)


def test_parts_by_family_difficulty_and_split(run, errored):
    runs = [
        run(True, family="refund", difficulty="easy", split="test"),
        run(False, family="refund", difficulty="hard", split="test_unseen"),
        run(True, family="escalate", difficulty="hard", split="test"),
    ]
    metrics = compute_metrics(runs)
    assert numbers(metrics.by_family["refund"].completion_rate) == (0.5, 1, 2)
    assert numbers(metrics.by_difficulty["hard"].completion_rate) == (0.5, 1, 2)
    assert numbers(metrics.by_split["test"].completion_rate) == (1.0, 2, 2)
    assert list(metrics.by_family) == ["escalate", "refund"]


def test_F10_tool_use_is_tracked_per_family(run, step):
    guess = [step(Action(tool_name="act"))]
    runs = [run(True, guess, family="refund")] * 3 + [run(True, family="refund"), run(True, family="reply")]
    metrics = compute_metrics(runs, evidence_tools={"look"})
    assert numbers(metrics.by_family["refund"].tool_use) == (0.25, 1, 4)
    assert numbers(metrics.by_family["reply"].tool_use) == (1.0, 1, 1)


def test_F10_low_tool_use_is_flagged(run, step):
    guess = [step(Action(tool_name="act"))]
    runs = [run(True, guess, family="refund")] * 3 + [run(True, family="refund"), run(True, family="reply")]
    (flag,) = low_tool_use(compute_metrics(runs, evidence_tools={"look"}).by_family)
    assert flag == "family 'refund': 1 of 4 episodes looked before acting"


def test_refused_call_is_no_tool_use(run, step):
    metrics = compute_metrics([run(True, [step(ok=False)])])
    assert numbers(metrics.by_family["default"].tool_use) == (0.0, 0, 1)


def test_correlation_by_hand(run):
    runs = [
        run(solved, breakdown=RewardBreakdown(total=total))
        for solved, total in [(True, 1.0), (True, 0.5), (False, 0.5), (False, 0.0)]
    ]
    # covariance 1/3 x 0.5, standard deviations sqrt(1/6) and sqrt(1/3)
    assert reward_outcome_correlation(runs) == pytest.approx((0.5 / 3) / math.sqrt(1 / 18))


def test_correlation_of_constants_is_absent(run):
    assert reward_outcome_correlation([run(True, breakdown=RewardBreakdown(total=1.0))] * 4) is None


def test_correlation_leaves_out_what_has_no_reward(run, errored):
    runs = [
        run(True, breakdown=RewardBreakdown(total=0.9)),
        run(False, breakdown=RewardBreakdown(total=0.1)),
        run(False, breakdown=RewardBreakdown(total=None)),
        run(True),
        errored(),
    ]
    assert reward_outcome_correlation(runs) == pytest.approx(1.0)


def test_F22_overlap_with_training_is_an_error():
    tasks = [Task.create(f"order {number}", split="test") for number in range(5)]
    with pytest.raises(TaskError, match="2 of 5"):
        check_split(tasks, {tasks[1].id, tasks[3].id, "another"})


def test_F22_renamed_copy_is_found_by_content():
    task = Task.create("order 1")
    renamed = msgspec.structs.replace(task, id="my-test-1", split="test")
    with pytest.raises(TaskError, match="my-test-1"):
        check_split([renamed], {task.id})


def test_F22_disjoint_split_passes():
    check_split([Task.create("order 1", split="test")], {Task.create("order 2").id})


def test_F22_metrics_name_split_size_and_hash(run):
    runs = [run(True, task_id=task_id, split="test") for task_id in ("b", "a", "a")]
    metrics = compute_metrics(runs)
    assert metrics.splits == {"test": split_identity(["a", "b"])}
    assert metrics.splits["test"].size == 2
    assert split_identity(["a", "c"]).hash != split_identity(["a", "b"]).hash


def test_sampling_is_kept(run):
    assert compute_metrics([run()], sampling=SamplingParams(temperature=0.0)).sampling == SamplingParams(
        temperature=0.0
    )
