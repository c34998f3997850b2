"""How fast environments step: resets and the calls of demonstrations, by the wall clock, in one and more processes."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

from deedrl.benchmarks.measure import BenchmarkResult, Figure, check_count, figure, this_machine
from deedrl.environments.contract import checked_tasks, demonstration
from deedrl.environments.loading import load_environment
from deedrl.environments.suite import ENTRY_POINTS
from deedrl.types import Record

AT_LEAST = {"deedrl/SupportDesk-v0": 5000.0}
"""Steps a second on all cores that an environment is meant to reach."""


class EnvironmentsSettings(Record, frozen=True, kw_only=True):
    """What to measure; the ids of all environments that come with DeedRL if none are named."""

    refs: tuple[str, ...] = ()
    tasks: int = 120
    repetitions: int = 3


class Rates(Record, frozen=True):
    """Of one process: counts, and seconds by the wall clock."""

    steps: int
    solved: int
    step_s: float
    whole_s: float
    """With resets."""


def benchmark_environments(settings: EnvironmentsSettings) -> BenchmarkResult:
    """Plays demonstrations of training tasks of all difficulties; environments without any are left out."""
    machine = this_machine()
    figures: list[Figure] = []
    counts: dict[str, int] = {}
    for ref in settings.refs or ENTRY_POINTS:
        if not _demonstrates(ref):
            continue
        measured, steps = _measure(ref, settings.tasks, settings.repetitions, machine.cores)
        figures += measured
        counts[f"steps of {ref}"] = steps
    return BenchmarkResult(
        benchmark="environments",
        settings={"tasks": settings.tasks, "repetitions": settings.repetitions},
        counts=counts,
        figures=tuple(figures),
        machine=machine,
    )


def play_demonstrations(ref: str, tasks: int) -> Rates:
    """`BenchmarkError` if a task is left unsolved."""
    cls = load_environment(ref)
    environment, steps, solved, step_s, whole_s = cls(), 0, 0, 0.0, 0.0
    made = checked_tasks(cls, "train", tasks, 0)
    for task in made:
        began_s = time.perf_counter()
        environment.reset(seed=0, options={"task": task})
        whole_s += time.perf_counter() - began_s
        verdict = None
        for action in demonstration(environment, task):
            began_s = time.perf_counter()
            info = environment.step(action)[4]
            step_s += time.perf_counter() - began_s
            steps += 1
            verdict = info.get("verdict")
        solved += verdict is not None and verdict.solved
    environment.close()
    check_count(f"tasks of {ref} solved by their demonstration", len(made), solved)
    return Rates(steps=steps, solved=solved, step_s=step_s, whole_s=whole_s + step_s)


def _demonstrates(ref: str) -> bool:
    cls = load_environment(ref)
    environment = cls()
    try:
        for task in checked_tasks(cls, "train", 1, 0):
            environment.reset(seed=0, options={"task": task})
            return bool(demonstration(environment, task))
        return False
    finally:
        environment.close()


def _measure(ref: str, tasks: int, repetitions: int, cores: int) -> tuple[list[Figure], int]:
    alone = [play_demonstrations(ref, tasks) for _ in range(repetitions)]
    # A fresh interpreter each: a fork would share the threads of whoever calls this.
    with ProcessPoolExecutor(cores, mp_context=multiprocessing.get_context("spawn")) as pool:
        # Once unmeasured: imports, and what an environment starts at its first use.
        list(pool.map(play_demonstrations, [ref] * cores, [2] * cores))
        together = [list(pool.map(play_demonstrations, [ref] * cores, [tasks] * cores)) for _ in range(repetitions)]
    on_all = [_summed(processes) for processes in together]
    figures = [
        figure(f"{ref}: steps in one process", "1/s", [one.steps / one.step_s for one in alone]),
        figure(f"{ref}: with resets", "1/s", [one.steps / one.whole_s for one in alone]),
        figure(f"{ref}: steps in {cores} processes", "1/s", on_all, at_least=AT_LEAST.get(ref)),
    ]
    return figures, alone[0].steps


def _summed(processes: Sequence[Rates]) -> float:
    return sum(one.steps / one.step_s for one in processes)
