from __future__ import annotations

import re
import time

import pytest

from deedrl.benchmarks.measure import check_count, figure, this_machine, timed
from deedrl.errors import BenchmarkError


def test_a_figure_is_the_median_with_all_it_came_from() -> None:
    one = figure("speed", "MB/s", [3.0, 1.0, 8.0])
    assert (one.median, one.low, one.high, one.values) == (3.0, 1.0, 8.0, (3.0, 1.0, 8.0))
    assert one.met is None


@pytest.mark.parametrize(
    ("target", "met"),
    [({"at_most": 3.0}, True), ({"at_most": 2.9}, False), ({"at_least": 3.0}, True), ({"at_least": 3.1}, False)],
)
def test_the_median_is_held_against_the_target(target: dict[str, float], met: bool) -> None:
    assert figure("speed", "MB/s", [3.0, 1.0, 8.0], **target).met is met


def test_without_a_measurement_there_is_no_figure() -> None:
    with pytest.raises(BenchmarkError, match="at least one measured value"):
        figure("speed", "MB/s", [])


def test_work_is_timed_on_both_clocks() -> None:
    def busy() -> str:
        end = time.process_time() + 0.02
        while time.process_time() < end:
            pass
        return "done"

    result, spent = timed(busy)
    assert result == "done"
    assert 0.015 < spent.cpu_s <= spent.wall_s * 1.5
    assert timed(lambda: time.sleep(0.05))[1].wall_s >= 0.05


def test_other_work_than_asked_for_is_an_error() -> None:
    assert check_count("steps", 4, 4) == 4
    with pytest.raises(BenchmarkError, match="expected 4 steps, got 3"):
        check_count("steps", 4, 3)


def test_the_machine_is_named() -> None:
    machine = this_machine()
    assert machine.processor
    assert machine.cores >= 1
    assert re.fullmatch(r"\w+ 3\.\d+\.\d+\S*", machine.python)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", machine.date)
