from __future__ import annotations

import pytest

from deedrl.evaluation import spread_over_repeats


def repeats(run, **outcomes):
    """Runs of each task, repeat by repeat, given as e.g. ``a="10"``: solved first, failed second."""
    count = max(map(len, outcomes.values()))
    return [
        run(row[index] == "1", task_id=task_id)
        for index in range(count)
        for task_id, row in outcomes.items()
        if index < len(row)
    ]


def test_spread_by_hand(run):
    spread = spread_over_repeats(repeats(run, a="11", b="10", c="00", d="10"))
    assert (spread.tasks, spread.repeats) == (4, 2)
    assert spread.completion_rates == (0.75, 0.25)
    assert spread.completion_sd == pytest.approx(0.5 / 2**0.5)
    assert spread.task_variance == pytest.approx((0 + 0.5 + 0 + 0.5) / 4)


def test_same_outcome_every_time_has_no_spread(run):
    spread = spread_over_repeats(repeats(run, a="111", b="000"))
    assert (spread.task_variance, spread.completion_sd) == (0.0, 0.0)


def test_single_runs_have_no_spread_to_tell(run):
    assert spread_over_repeats(repeats(run, a="1", b="0")) is None


def test_nothing_has_no_spread():
    assert spread_over_repeats([]) is None


def test_lost_episode_takes_its_task_out_and_shifts_nothing(run, errored):
    runs = [run(True, task_id="a"), errored("b"), run(False, task_id="a"), run(True, task_id="b")]
    spread = spread_over_repeats(runs)
    assert (spread.tasks, spread.completion_rates) == (1, (1.0, 0.0))


def test_task_run_less_often_than_the_others_is_left_out(run):
    spread = spread_over_repeats(repeats(run, a="11", b="00", c="1"))
    assert (spread.tasks, spread.repeats) == (2, 2)
