from __future__ import annotations

import pytest

from deedrl.benchmarks.desk import SupportDesk, measure_desk, play_demonstrations
from deedrl.errors import BenchmarkError
from deedrl.types import Task


def test_every_ticket_is_played_to_its_end() -> None:
    rates = play_demonstrations(14)
    assert rates.solved == rates.resets == 14
    assert 2 * 14 <= rates.steps <= 5 * 14
    assert rates.step_s > 0
    assert rates.reset_s > 0


def test_figures_are_of_one_process_and_of_several() -> None:
    found = measure_desk(tickets=7, repetitions=2, cores=2)
    assert found.solved == 7
    assert [one.name for one in found.figures] == [
        "support desk: steps on one core",
        "support desk: steps on 2 cores",
        "support desk: resets on one core",
    ]
    assert all(len(one.values) == 2 and one.low > 0 for one in found.figures)
    assert [one.at_least for one in found.figures] == [None, 5000.0, None]


def test_a_desk_that_solves_less_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    def solved_by_half(self: SupportDesk, task: Task) -> bool:
        return int(task.id, 16) % 2 == 0

    monkeypatch.setattr(SupportDesk, "verify", solved_by_half)
    with pytest.raises(BenchmarkError, match="expected 20 tickets solved"):
        play_demonstrations(20)
