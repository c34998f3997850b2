"""How fast the support desk steps: the environment alone, on one core and on all of them."""

from __future__ import annotations

import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor

from deedrl.benchmarks.measure import Figure, check_count, figure
from deedrl.environments.suite.support.environment import SupportDesk
from deedrl.types import Record

MIN_STEPS_PER_S = 5000.0


class DeskRates(Record, frozen=True):
    """Of one process: counts, and seconds of its processor time inside `step` and `reset`."""

    steps: int
    resets: int
    solved: int
    step_s: float
    reset_s: float


class DeskFigures(Record, frozen=True):
    """What `measure_desk` found."""

    figures: tuple[Figure, ...]
    solved: int
    """Tickets, of each process and repetition."""


def measure_desk(tickets: int, repetitions: int, cores: int) -> DeskFigures:
    """Plays the demonstrations of `tickets` tickets in one process, then in `cores` processes at the same time."""
    alone = [play_demonstrations(tickets) for _ in range(repetitions)]
    # A fresh interpreter each: a fork would share the threads of whoever calls this.
    with ProcessPoolExecutor(cores, mp_context=multiprocessing.get_context("spawn")) as pool:
        together = [list(pool.map(play_demonstrations, [tickets] * cores)) for _ in range(repetitions)]
    on_all = [sum(one.steps / one.step_s for one in processes) for processes in together]
    return DeskFigures(
        figures=(
            figure("support desk: steps on one core", "1/s", [one.steps / one.step_s for one in alone]),
            figure(f"support desk: steps on {cores} cores", "1/s", on_all, at_least=MIN_STEPS_PER_S),
            figure("support desk: resets on one core", "1/s", [one.resets / one.reset_s for one in alone]),
        ),
        solved=alone[0].solved,
    )


def play_demonstrations(tickets: int) -> DeskRates:
    """Only `reset` and `step` are on the clock. Raises `BenchmarkError` if a ticket is left unsolved."""
    desk = SupportDesk()
    reset_s = step_s = 0.0
    steps = solved = 0
    tasks = SupportDesk.generate_tasks("train", tickets, seed=0)
    for task in tasks:
        began_s = time.process_time()
        desk.reset(seed=0, options={"task": task})
        reset_s += time.process_time() - began_s
        verdict = None
        for action in desk.demonstrate(task):
            began_s = time.process_time()
            info = desk.step(action)[4]
            step_s += time.process_time() - began_s
            steps += 1
            verdict = info.get("verdict")
        solved += verdict is not None and verdict.solved
    desk.close()
    check_count("tickets solved by their demonstration", tickets, solved)
    return DeskRates(steps=steps, resets=tickets, solved=solved, step_s=step_s, reset_s=reset_s)
