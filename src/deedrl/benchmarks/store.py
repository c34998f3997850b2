"""What the trajectory store writes and reads a second, the way a run of the pipeline does it.

Writing is one `append` a record, each in the file when it returns, the file synced to the disk once a second. Reading
decodes every record in full, in a store opened anew. What the encoder and decoder below the store do by themselves, in
memory and at the same time, is measured beside it: no store that uses them is faster, however quiet the machine.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from deedrl.benchmarks.episodes import LONG, SHORT, EpisodeShape, made_up_trajectory
from deedrl.benchmarks.measure import BenchmarkResult, Figure, Spent, check_count, figure, this_machine, timed
from deedrl.config import require
from deedrl.errors import BenchmarkError
from deedrl.store.jsonl import TrajectoryStore
from deedrl.types import Record, Trajectory

T = TypeVar("T")

MIN_WRITE_MB_PER_S = 50.0
MIN_READ_MB_PER_S = 200.0
RUN_ID = CONFIG_HASH = "benchmark"


class StoreSettings(Record, frozen=True):
    """How much to write and where."""

    short_records: int = 2000
    """Of about 10 kB each."""
    long_records: int = 100
    """Of about 300 kB each."""
    folder: str = ""
    """On the disk to be measured; a folder for the files is made in it and removed. Empty: where temporary files go."""
    repetitions: int = 5

    def __post_init__(self) -> None:
        for name in ("short_records", "long_records", "repetitions"):
            require(getattr(self, name) >= 1, name, f"expected at least 1, got {getattr(self, name)}")
        exists = not self.folder or Path(self.folder).is_dir()
        require(exists, "folder", f"expected an existing folder, got '{self.folder}'; make it first")


class _Round(Record, frozen=True):
    """One repetition over one file."""

    bytes: int
    written: Spent
    opened: Spent
    read: Spent
    encoded: Spent
    """By msgspec alone, from records in memory to lines in memory."""
    decoded: Spent
    """The other way round."""


def benchmark_store(settings: StoreSettings) -> BenchmarkResult:
    """Writes and reads both kinds of records. Raises `BenchmarkError` if what is read is not what was written."""
    machine = this_machine()
    figures: list[Figure] = []
    counts: dict[str, int] = {}
    for kind, shape, records in (("short", SHORT, settings.short_records), ("long", LONG, settings.long_records)):
        trajectories = [made_up_trajectory(index, shape) for index in range(records)]
        rounds = [_round(trajectories, settings.folder) for _ in range(settings.repetitions)]
        figures += _figures(kind, records, rounds)
        counts |= {f"{kind} records": records, f"bytes of a {kind} file": rounds[0].bytes}
    return BenchmarkResult(
        benchmark="store",
        settings={
            **{name: getattr(settings, name) for name in settings.__struct_fields__ if name != "folder"},
            "short": _described(SHORT),
            "long": _described(LONG),
        },
        counts=counts,
        figures=tuple(figures),
        machine=machine,
    )


def _described(shape: EpisodeShape) -> str:
    return ", ".join(f"{name} {getattr(shape, name)}" for name in shape.__struct_fields__)


def _round(trajectories: list[Trajectory], folder: str) -> _Round:
    with tempfile.TemporaryDirectory(prefix="deedrl-", dir=folder or None) as place:
        path = Path(place) / "trajectories.jsonl"
        new, written = timed(lambda: _write(path, trajectories))
        check_count("new records", len(trajectories), new)
        _, opened = timed(lambda: TrajectoryStore(path, run_id=RUN_ID, config_hash=CONFIG_HASH))
        read_back, read = timed(lambda: sum(1 for _ in TrajectoryStore(path)))
        check_count("records read back", len(trajectories), read_back)
        _check_equal(trajectories, path)
        lines = path.read_bytes().splitlines()
        _, encoded = timed(lambda: _each(msgspec.json.Encoder().encode, trajectories))
        _, decoded = timed(lambda: _each(msgspec.json.Decoder(Trajectory).decode, lines))
        return _Round(
            bytes=path.stat().st_size, written=written, opened=opened, read=read, encoded=encoded, decoded=decoded
        )


def _each(work: Callable[[T], object], items: list[T]) -> None:
    for item in items:
        work(item)


def _write(path: Path, trajectories: list[Trajectory]) -> int:
    """How many of them were new; each is in the file before the next."""
    store = TrajectoryStore(path, run_id=RUN_ID, config_hash=CONFIG_HASH)
    return sum(store.append(trajectory) for trajectory in trajectories)


def _check_equal(trajectories: list[Trajectory], path: Path) -> None:
    """Raises unless the steps in the file are those that were written (the store adds its run to each record)."""
    for written, found in zip(trajectories, TrajectoryStore(path), strict=True):
        if written.steps != found.steps or written.breakdown != found.breakdown:
            raise BenchmarkError(
                f"expected episode '{written.episode_id}' to be read as it was written, got something else; this is a "
                "bug of the store: run its tests"
            )


def _figures(kind: str, records: int, rounds: list[_Round]) -> list[Figure]:
    def rate(name: str, key: str, clock: str, at_least: float | None = None) -> Figure:
        seconds = [getattr(getattr(one, key), clock) for one in rounds]
        rates = [one.bytes / 1e6 / second for one, second in zip(rounds, seconds, strict=True)]
        wall = " (wall)" if clock == "wall_s" else ""
        return figure(f"{kind}: {name}{wall}", "MB/s", rates, at_least=at_least)

    return [
        rate("written", "written", "cpu_s", MIN_WRITE_MB_PER_S),
        rate("written", "written", "wall_s", MIN_WRITE_MB_PER_S),
        figure(f"{kind}: a record written", "µs", [one.written.cpu_s / records * 1e6 for one in rounds]),
        rate("read", "read", "cpu_s", MIN_READ_MB_PER_S),
        rate("read", "read", "wall_s", MIN_READ_MB_PER_S),
        figure(f"{kind}: a record read", "µs", [one.read.cpu_s / records * 1e6 for one in rounds]),
        rate("opened to resume", "opened", "cpu_s"),
        rate("encoded by msgspec alone", "encoded", "cpu_s"),
        rate("decoded by msgspec alone", "decoded", "cpu_s"),
    ]
