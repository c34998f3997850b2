from __future__ import annotations

import gc
import math
import sys
import time

import anyio
import pytest

from deedrl.benchmarks import runner
from deedrl.benchmarks.clocks import PARTS, PARTS_ALWAYS, PartClocks
from deedrl.benchmarks.measure import BenchmarkResult
from deedrl.benchmarks.runner import RunnerSettings, benchmark_runner
from deedrl.benchmarks.tally import Tally, tally_script, tally_specs
from deedrl.errors import BenchmarkError, ConfigError
from deedrl.policies.policy import CompletionRequest
from deedrl.policies.scripted import ScriptedPolicy, SlowPolicy
from deedrl.rollouts import episode
from deedrl.types import Message, SamplingParams

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


def test_every_figure_has_one_value_a_repetition(result: BenchmarkResult) -> None:
    once = {"memory of an episode in flight", "peak memory of the process"}
    may_be_none = ("garbage", "threads of", "memory of")
    for name, measured in values(result).items():
        assert len(measured) == (1 if name in once else 2), name
        assert all(math.isfinite(value) for value in measured), name
        assert min(measured) >= 0, name
        assert min(measured) > 0 or any(word in name for word in may_be_none), name


def test_parts_and_the_runner_add_up(result: BenchmarkResult) -> None:
    found = values(result)
    for index in range(TINY.repetitions):
        assert sum(found[f"share of {name}"][index] for name in ("runner", *PARTS)) == pytest.approx(100.0)
        full = found["run: rubric and store"][index]
        assert sum(found[f"of that, {name}"][index] for name in ("runner", *PARTS)) == pytest.approx(full)
        parts = sum(found[f"no rubric, no store: {name}"][index] for name in PARTS_ALWAYS)
        parts += found["garbage collection"][index]
        bare = found["run: no rubric, no store"][index]
        assert found["runner itself"][index] + parts == pytest.approx(bare, rel=0.05)  # nothing but an empty callback


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
        runner,
        "_play",
        lambda specs, environment, concurrency, *rest, **more: play(specs, environment, 5, *rest, **more),
    )
    with pytest.raises(BenchmarkError, match="expected 12 episodes in flight at once, got 5"):
        benchmark_runner(TINY)


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


# ---------------------------------------------------------------- clocks


def test_a_part_is_charged_for_its_own_time_and_not_for_collecting_garbage() -> None:
    clocks = PartClocks()

    def work() -> str:
        time.sleep(0.02)
        clocks.seconds["garbage collection"] += 0.015  # as if that much of it had been collecting
        return "done"

    assert clocks.run("parser", work) == "done"
    assert clocks.seconds["parser"] > 0.004
    assert clocks.seconds["policy"] == 0.0


def test_a_part_that_raises_is_charged_too() -> None:
    clocks = PartClocks()
    with pytest.raises(ZeroDivisionError):
        clocks.run("rubric", lambda: 1 / 0)
    assert clocks.seconds["rubric"] > 0


def test_parser_and_garbage_collection_are_on_the_clock_only_while_it_is_on() -> None:
    clocks = PartClocks()
    original = episode.parse_action
    with clocks.on():
        episode.parse_action("{}", ())
        gc.collect()
    assert episode.parse_action is original
    assert clocks.seconds["parser"] > 0
    assert clocks.seconds["garbage collection"] > 0
    before = dict(clocks.seconds)
    episode.parse_action("{}", ())
    gc.collect()
    assert clocks.seconds == before


def test_a_policy_that_waits_cannot_be_timed() -> None:
    policy = PartClocks().policy(SlowPolicy(ScriptedPolicy(["x"]), delay_s=0.01))
    messages = (Message(role="user", content="go"),)
    request = CompletionRequest(episode_id="e", messages=messages, tools=(), sampling=SamplingParams(), seed=0)
    with pytest.raises(RuntimeError, match="expected a policy that answers at once"):
        anyio.run(policy.complete, request)
