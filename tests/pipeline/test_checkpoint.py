from __future__ import annotations

import errno
import json
import os
import pickle
import random
from pathlib import Path
from typing import Any

import pytest

from deedrl.errors import CheckpointError
from deedrl.pipeline import checkpoint
from deedrl.pipeline.checkpoint import CheckpointFolder, load_checkpoint

torch = pytest.importorskip("torch")


def tensors(value: float = 1.0) -> dict[str, Any]:
    return {"adapter.a": torch.full((2, 3), value), "step": torch.tensor(7), "half": torch.ones(2).bfloat16()}


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_what_was_saved_comes_back_bit_for_bit(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, owner="h")
    generator = torch.Generator().manual_seed(5)
    saved = {**tensors(), "rng.torch": generator.get_state()}
    folder.save(3, saved, {"python_rng": random.Random(1).getstate(), "rate": 1e-4}, score=0.5)
    loaded = folder.latest()
    assert loaded is not None
    assert loaded.step == 3
    assert loaded.score == 0.5
    assert loaded.state["rate"] == 1e-4
    assert set(loaded.tensors) == set(saved)
    assert all(torch.equal(loaded.tensors[name], saved[name]) for name in saved)


def test_tied_and_sliced_tensors_can_be_saved(tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    path = CheckpointFolder(tmp_path).save(1, {"a": base, "b": base, "column": base[:, 1]}, {})
    assert torch.equal(load_checkpoint(path).tensors["column"], base[:, 1])


def test_the_newest_is_loaded_and_old_ones_are_removed(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep_last=2)
    for step in (1, 2, 10):
        folder.save(step, tensors(step), {})
    assert names(tmp_path) == ["step-00000002", "step-00000010"]
    latest = folder.latest()
    assert latest is not None
    assert latest.step == 10


def test_the_best_is_kept_whatever_its_age(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep_last=1)
    for step, score in ((1, 0.2), (2, 0.9), (3, 0.9), (4, None), (5, 0.1)):
        folder.save(step, tensors(), {}, score=score)
    assert names(tmp_path) == ["step-00000002", "step-00000005"]
    best = folder.best()
    assert best is not None
    assert best.step == 2


def test_nothing_saved_is_none(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "none")
    assert folder.latest() is None
    assert folder.best() is None


@pytest.mark.parametrize("file", [checkpoint.TENSORS, checkpoint.STATE, checkpoint.MANIFEST])
def test_a_torn_checkpoint_is_skipped_with_a_warning(tmp_path: Path, file: str) -> None:
    warnings: list[str] = []
    folder = CheckpointFolder(tmp_path, warn=warnings.append)
    folder.save(1, tensors(), {})
    newest = folder.save(2, tensors(), {"a": 1})
    data = (newest / file).read_bytes()
    (newest / file).write_bytes(data[: len(data) // 2])
    latest = folder.latest()
    assert latest is not None
    assert latest.step == 1
    assert len(warnings) == 1
    assert "torn" in warnings[0]


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    path = CheckpointFolder(tmp_path).save(1, tensors(), {})
    data = bytearray((path / checkpoint.TENSORS).read_bytes())
    data[-1] ^= 1
    (path / checkpoint.TENSORS).write_bytes(data)
    with pytest.raises(CheckpointError, match="checksum differs"):
        load_checkpoint(path)


def test_torn_checkpoints_do_not_count_as_kept(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep_last=2)
    folder.save(1, tensors(), {})
    torn = folder.save(2, tensors(), {})
    (torn / checkpoint.MANIFEST).unlink()
    folder.save(3, tensors(), {})
    assert [int(name[5:]) for name in names(tmp_path) if (tmp_path / name / checkpoint.MANIFEST).exists()] == [1, 3]


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.save(1, tensors(1.0), {})
    folder.save(1, tensors(2.0), {})
    latest = folder.latest()
    assert latest is not None
    assert latest.tensors["adapter.a"][0, 0] == 2.0
    assert names(tmp_path) == ["step-00000001"]


def test_killed_between_the_two_renames_of_a_rewrite_keeps_the_old_one(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    path = folder.save(1, tensors(1.0), {})
    os.rename(path, tmp_path / ".old-step-00000001-123")
    latest = folder.latest()
    assert latest is not None
    assert latest.step == 1


def test_leftovers_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".tmp-step-00000001-99").mkdir()
    CheckpointFolder(tmp_path).save(2, tensors(), {})
    assert names(tmp_path) == ["step-00000002"]


class Payload:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize(
    "name", ["optimizer.pt", "rng_state.pth", "pytorch_model.bin", "state.pkl", "data.safetensors.pt"]
)
def test_H10_pickle_is_refused_and_never_opened(tmp_path: Path, name: str) -> None:
    marker = tmp_path / "marker"
    path = CheckpointFolder(tmp_path / "c").save(1, tensors(), {})
    (path / name).write_bytes(pickle.dumps(Payload(marker)))
    with pytest.raises(CheckpointError, match="refused"):
        load_checkpoint(path)
    with pytest.raises(CheckpointError, match="refused"):
        load_checkpoint(path / name)
    assert not marker.exists()


def test_H10_pickle_under_a_safe_name_is_not_executed(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    path = CheckpointFolder(tmp_path / "c").save(1, tensors(), {})
    for name in (checkpoint.TENSORS, checkpoint.STATE):
        (path / name).write_bytes(pickle.dumps(Payload(marker)))
    with pytest.raises(CheckpointError):
        load_checkpoint(path)
    assert not marker.exists()


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    path = CheckpointFolder(tmp_path, owner="a" * 64).save(1, tensors(), {})
    with pytest.raises(CheckpointError, match="belongs to another run"):
        load_checkpoint(path, owner="b" * 64)


def test_state_that_is_not_plain_json_is_refused(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    for state in ({"loss": float("nan")}, {"path": object()}):
        with pytest.raises(CheckpointError, match="plain JSON"):
            folder.save(1, tensors(), state)
    assert names(tmp_path) == []


def test_E12_a_full_disk_keeps_the_previous_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = CheckpointFolder(tmp_path, keep_last=1)
    folder.save(1, tensors(), {})

    def no_space(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_synced", no_space)
    with pytest.raises(CheckpointError, match=r"step 2: No space left on device; the newest complete one is .*01"):
        folder.save(2, tensors(), {})
    latest = folder.latest()
    assert latest is not None
    assert latest.step == 1
    assert names(tmp_path) == ["step-00000001"]


def test_E12_superseded_checkpoints_make_room_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = CheckpointFolder(tmp_path, keep_last=3)
    for step in (1, 2, 3):
        folder.save(step, tensors(), {})
    real = checkpoint.write_synced

    def tight(path: Path, data: bytes) -> None:
        if (tmp_path / "step-00000001").exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, data)

    monkeypatch.setattr(checkpoint, "write_synced", tight)
    folder.save(4, tensors(), {})
    assert names(tmp_path) == ["step-00000003", "step-00000004"]


def test_the_manifest_is_readable_json(tmp_path: Path) -> None:
    path = CheckpointFolder(tmp_path, owner="h").save(1, tensors(), {}, score=0.25)
    manifest = json.loads((path / checkpoint.MANIFEST).read_text())
    assert (manifest["step"], manifest["owner"], manifest["score"]) == (1, "h", 0.25)
    assert set(manifest["files"]) == {checkpoint.TENSORS, checkpoint.STATE}
