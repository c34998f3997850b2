from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from deedrl.benchmarks import store
from deedrl.benchmarks.measure import BenchmarkResult
from deedrl.benchmarks.store import StoreSettings, benchmark_store
from deedrl.errors import BenchmarkError, ConfigError
from deedrl.store.jsonl import TrajectoryStore
from deedrl.types import Trajectory

LIMIT = {"written": "encoded", "read": "decoded"}
TINY = StoreSettings(short_records=5, long_records=2, repetitions=2)


@pytest.fixture(scope="module")
def result() -> BenchmarkResult:
    return benchmark_store(TINY)


def test_counts_and_figures_are_of_both_kinds(result: BenchmarkResult) -> None:
    assert result.counts["short records"] == 5
    assert result.counts["long records"] == 2
    assert result.counts["bytes of a long file"] > result.counts["bytes of a short file"] > 5 * 5000
    assert {one.name.split(":")[0] for one in result.figures} == {"short", "long"}
    assert all(len(one.values) == 2 and one.low > 0 for one in result.figures)


def test_rates_agree_with_times_and_sizes(result: BenchmarkResult) -> None:
    found = {one.name: one for one in result.figures}
    for kind, records in (("short", 5), ("long", 2)):
        megabytes = result.counts[f"bytes of a {kind} file"] / 1e6
        for verb in ("written", "read"):
            assert f"{kind}: {LIMIT[verb]} by msgspec alone" in found
            seconds = found[f"{kind}: a record {verb}"].values[0] * records / 1e6
            assert found[f"{kind}: {verb}"].values[0] == pytest.approx(megabytes / seconds)
        assert found[f"{kind}: written"].at_least == 50.0
        assert found[f"{kind}: read"].at_least == 200.0


def test_the_folder_asked_for_is_used_and_left_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used = []
    append = TrajectoryStore.append

    def watched(self: TrajectoryStore, trajectory: Trajectory) -> bool:
        used.append(self.path)
        return append(self, trajectory)

    monkeypatch.setattr(TrajectoryStore, "append", watched)
    benchmark_store(msgspec.structs.replace(TINY, folder=str(tmp_path), repetitions=1))
    assert len(used) == 7
    assert all(tmp_path in path.parents for path in used)
    assert os.listdir(tmp_path) == []


def test_a_store_that_loses_a_record_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    append = TrajectoryStore.append

    def forgetful(self: TrajectoryStore, trajectory: Trajectory) -> bool:
        return True if trajectory.episode_id == "benchmark-1" else append(self, trajectory)

    monkeypatch.setattr(TrajectoryStore, "append", forgetful)
    with pytest.raises(BenchmarkError, match="expected 5 records read back, got 4"):
        benchmark_store(TINY)


def test_a_store_that_changes_a_record_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    append = TrajectoryStore.append

    def careless(self: TrajectoryStore, trajectory: Trajectory) -> bool:
        return append(self, msgspec.structs.replace(trajectory, steps=trajectory.steps[:-1]))

    monkeypatch.setattr(store.TrajectoryStore, "append", careless)
    with pytest.raises(BenchmarkError, match="'benchmark-0' to be read as it was written"):
        benchmark_store(TINY)


def test_settings_without_work_or_place_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="short_records: expected at least 1, got 0"):
        StoreSettings(short_records=0)
    with pytest.raises(ConfigError, match="folder: expected an existing folder"):
        StoreSettings(folder=str(tmp_path / "none"))
