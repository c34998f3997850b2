"""What all benchmarks share: clocks, figures with their spread, and the facts of the machine.

Times are processor time unless a name says "wall": what else runs on the machine then disturbs them least. It still
disturbs them (caches are shared), so every figure keeps all its repetitions.
"""

from __future__ import annotations

import gc
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable
from datetime import date
from pathlib import Path
from typing import NamedTuple, TypeVar

from deedrl.errors import BenchmarkError
from deedrl.memory import peak_gb
from deedrl.types import Record

T = TypeVar("T")
Setting = int | float | str


class Machine(Record, frozen=True):
    """Where and when something was measured."""

    processor: str
    cores: int
    """Cores this process may use."""
    python: str
    system: str
    date: str
    """Year-month-day, local time."""
    load: float | None = None
    """Processes that wanted a core in the minute before, on average; far above 0 means a disturbed measurement."""


class Figure(Record, frozen=True):
    """One measured quantity: its median and its smallest and largest value over the repetitions."""

    name: str
    unit: str
    median: float
    low: float
    high: float
    values: tuple[float, ...]
    """One a repetition, in order."""
    at_most: float | None = None
    """Target for the median, where there is one."""
    at_least: float | None = None
    met: bool | None = None
    """Whether the median meets its target; None without one."""


class BenchmarkResult(Record, frozen=True):
    """What one benchmark measured, with what it did and where."""

    benchmark: str
    settings: dict[str, Setting]
    counts: dict[str, int]
    """How much was done, counted while it was done and checked against the settings."""
    figures: tuple[Figure, ...]
    machine: Machine
    details: tuple[Figure, ...] = ()
    """Figures behind `figures` that the table leaves out."""


class Spent(NamedTuple):
    """Seconds on two clocks."""

    cpu_s: float
    """Processor time of all threads of this process."""
    wall_s: float


def figure(
    name: str, unit: str, values: Iterable[float], *, at_most: float | None = None, at_least: float | None = None
) -> Figure:
    """A `Figure` from one value a repetition; without a value there is nothing to report: `BenchmarkError`."""
    measured = tuple(values)
    if not measured:
        raise BenchmarkError(f"{name}: expected at least one measured value, got none; run at least one repetition")
    median = statistics.median(measured)
    met = None
    if at_most is not None or at_least is not None:
        met = (at_most is None or median <= at_most) and (at_least is None or median >= at_least)
    return Figure(
        name=name,
        unit=unit,
        median=median,
        low=min(measured),
        high=max(measured),
        values=measured,
        at_most=at_most,
        at_least=at_least,
        met=met,
    )


def timed(work: Callable[[], T]) -> tuple[T, Spent]:
    """Does `work` once; its result, and what it took. Garbage of earlier work is collected first, outside the clock."""
    gc.collect()
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    result = work()
    return result, Spent(cpu_s=time.process_time() - cpu_s, wall_s=time.perf_counter() - wall_s)


def peak_figures() -> list[Figure]:
    """The most memory this process has held so far; nothing where the system does not say."""
    peak = peak_gb()
    return [] if peak is None else [figure("peak memory of the process", "GB", [peak])]


def check_count(what: str, expected: int, got: int) -> int:
    """`got`, if it is as many as `expected`; else `BenchmarkError`, for the figures would be of something else."""
    if got != expected:
        raise BenchmarkError(
            f"expected {expected} {what}, got {got}; the figures would be of something else than they say, so this is "
            "a bug of the benchmark or of what it measures: run the tests"
        )
    return got


def this_machine() -> Machine:
    """The facts of this machine, now."""
    affinity = getattr(os, "sched_getaffinity", None)
    return Machine(
        processor=_processor_name(),
        cores=len(affinity(0)) if affinity else os.cpu_count() or 1,
        python=f"{platform.python_implementation()} {platform.python_version()}",
        system=f"{platform.system()} {platform.machine()}",
        date=date.today().isoformat(),
        load=round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    )


def _processor_name() -> str:
    """As the system calls it; Linux tells it in a file and gives Python an empty name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine() or "unknown"
