from __future__ import annotations

import math
import sys

import pytest

from deedrl.benchmarks import runner
from deedrl.benchmarks.measure import BenchmarkResult
from deedrl.benchmarks.runner import PARTS, RunnerSettings, benchmark_runner
from deedrl.benchmarks.tally import Tally, tally_script, tally_specs
from deedrl.errors import BenchmarkError, ConfigError
from deedrl.types import Task

TINY = RunnerSettings(concurrency=12, threaded_concurrency=3, steps=3, tickets=7, repetitions=2)


@pytest.fixture(scope="module")
def result() -> BenchmarkResult:
    return benchmark_runner(TINY)


def values(result: BenchmarkResult) -> dict[str, tuple[float, ...]]:
    return {one.name: one.values for one in (*result.figures, *result.details)}


def test_what_was_done_is_what_was_asked_for(result: BenchmarkResult) -> None:
    assert result.settings["concurrency"] == 12
    assert result.counts["episodes a run"] == 12
    assert result.counts["steps a run"] == 36
    assert result.counts["episodes in flight"] == 12
    assert result.counts["episodes in flight, threaded"] <= 3
    assert result.counts["tickets solved"] == 7


def test_every_figure_has_one_positive_value_a_repetition(result: BenchmarkResult) -> None:
    once = {"memory of an episode in flight", "peak memory of the process"}
    for name, measured in values(result).items():
        assert len(measured) == (1 if name in once else 2), name
        assert all(math.isfinite(value) for value in measured), name
        if name not in ("runner itself", "share of runner", *once) and "threads of" not in name:
            assert min(measured) > 0, name


def test_parts_and_the_runner_add_up(result: BenchmarkResult) -> None:
    found = values(result)
    for index in range(TINY.repetitions):
        assert sum(found[f"share of {name}"][index] for name in ("runner", *PARTS)) == pytest.approx(100.0)
        parts = sum(found[f"{name} by itself"][index] for name in ("environment", "parser", "policy"))
        bare = found["run: no rubric, no store"][index]
        assert found["runner itself"][index] + parts == pytest.approx(bare)


def test_only_environments_that_block_have_threads(result: BenchmarkResult) -> None:
    found = values(result)
    assert found["threads of a run in the event loop"] == (0.0, 0.0)
    assert all(1 <= threads <= 3 for threads in found["threads of that run"])


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_is_among_the_figures(result: BenchmarkResult) -> None:
    assert values(result)["peak memory of the process"][0] > 0.01


def test_episodes_that_are_not_solved_are_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tally, "verify", lambda self, task: False)
    with pytest.raises(BenchmarkError, match="expected 12 solved episodes, got 0"):
        benchmark_runner(TINY)


def test_episodes_that_were_not_in_flight_together_are_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    play = runner._play
    monkeypatch.setattr(
        runner, "_play", lambda specs, environment, concurrency, *rest: play(specs, environment, 5, *rest)
    )
    with pytest.raises(BenchmarkError, match="expected 12 episodes in flight at once, got 5"):
        benchmark_runner(TINY)


def test_a_desk_that_solves_less_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    def solved_by_half(self: runner.SupportDesk, task: Task) -> bool:
        return int(task.id, 16) % 2 == 0

    monkeypatch.setattr(runner.SupportDesk, "verify", solved_by_half)
    tasks = runner.SupportDesk.generate_tasks("train", 20, seed=0)
    with pytest.raises(BenchmarkError, match="expected 20 tickets solved"):
        runner._desk_round(tasks)


@pytest.mark.parametrize(("name", "least"), [("concurrency", 1), ("steps", 2), ("repetitions", 1)])
def test_settings_without_work_are_refused(name: str, least: int) -> None:
    with pytest.raises(ConfigError, match=f"{name}: expected at least {least}, got {least - 1}"):
        RunnerSettings(**{name: least - 1})


def test_the_script_solves_the_tally_at_its_last_step() -> None:
    [spec] = tally_specs(1, 5)
    script = tally_script(5)
    environment = Tally()
    environment.reset(seed=0, options={"task": spec.task})
    ended = [environment.step(completion.text)[2] for completion in script]
    assert ended == [False, False, False, False, True]
    assert environment.current_verdict().solved
