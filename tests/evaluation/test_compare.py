from __future__ import annotations

import random

import pytest

from deedrl.evaluation import compare_completion, gap_alarm


def runs(run, outcomes):
    return [run(outcome == "1", task_id=str(number)) for number, outcome in enumerate(outcomes)]


def test_comparison_by_hand(run):
    result = compare_completion(runs(run, "0000011"), runs(run, "1111101"))
    assert (result.pairs, result.gained, result.lost) == (7, 5, 1)
    assert result.difference == pytest.approx(4 / 7)
    assert result.p_value == pytest.approx(2 * 7 / 64)
    assert (result.before.numerator, result.after.numerator) == (2, 6)


def test_clear_gain_excludes_zero(run):
    result = compare_completion(runs(run, "0" * 30), runs(run, "1" * 27 + "000"))
    assert result.low > 0.5
    assert result.p_value < 1e-6


def test_no_change_includes_zero(run):
    result = compare_completion(runs(run, "0101"), runs(run, "0101"))
    assert result.low < 0.0 < result.high
    assert result.p_value == 1.0


def test_tasks_are_paired_by_id_and_not_by_place(run):
    result = compare_completion(runs(run, "01"), list(reversed(runs(run, "01"))))
    assert (result.gained, result.lost) == (0, 0)


def test_episodes_without_a_judged_partner_are_counted(run, errored):
    before = [run(True, task_id="a"), run(True, task_id="b"), run(True, task_id="c")]
    after = [run(True, task_id="a"), errored("b"), run(True, task_id="d")]
    result = compare_completion(before, after)
    assert (result.pairs, result.unpaired) == (1, 4)


def test_nothing_in_common_gives_no_difference(run):
    result = compare_completion([run(True, task_id="a")], [run(True, task_id="b")])
    assert (result.difference, result.low, result.p_value) == (None, None, None)


def test_F20_training_rises_while_held_out_falls():
    train = [0.2 + 0.008 * step for step in range(100)]
    heldout = [0.4, 0.5, 0.6, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.3]
    alarm = gap_alarm(train, heldout)
    assert alarm is not None
    assert alarm.best_heldout == pytest.approx(0.7)
    assert alarm.heldout_now == pytest.approx(0.4)
    assert alarm.train_now > alarm.train_then
    assert "held-out score fell from 0.700 to 0.400" in str(alarm)


def test_F20_no_alarm_while_both_rise():
    assert gap_alarm([0.01 * step for step in range(100)], [0.1 * step for step in range(10)]) is None


def test_F20_no_alarm_when_both_fall():
    assert gap_alarm([1 - 0.01 * step for step in range(100)], [1 - 0.1 * step for step in range(10)]) is None


def test_F20_no_alarm_for_one_bad_validation():
    assert gap_alarm([0.01 * step for step in range(100)], [0.6, 0.7, 0.7, 0.7, 0.7, 0.6]) is None


def test_F20_no_alarm_from_noise_on_a_plateau():
    rng = random.Random(0)
    train = [0.8 + rng.uniform(-0.02, 0.02) for _ in range(60)]
    heldout = [0.75 + rng.uniform(-0.02, 0.02) for _ in range(20)]
    assert gap_alarm(train, heldout) is None


@pytest.mark.parametrize(
    ("train", "heldout"), [([], []), ([0.1, 0.2], [0.5, 0.4, 0.3, 0.2]), ([0.1] * 9, [0.5, 0.1, 0.1])]
)
def test_F20_short_series_say_nothing(train, heldout):
    assert gap_alarm(train, heldout) is None
