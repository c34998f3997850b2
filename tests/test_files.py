"""Files that are replaced as a whole, whatever happens in between."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from deedrl.files import sync_folder, write_atomically


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "figures.json"
    write_atomically(path, b"old")
    return path


def no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_the_file_is_replaced_and_nothing_else_is_left(path: Path) -> None:
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize(("failure", "kind"), [(no_space, OSError), (interrupted, KeyboardInterrupt)])
def test_E12_a_failure_at_any_step_keeps_the_old_file_and_removes_the_scratch_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, step: str, failure: object, kind: type[BaseException]
) -> None:
    monkeypatch.setattr(os, step, failure)
    with pytest.raises(kind):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]


def test_data_and_then_the_folder_are_synced(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(stat.S_ISDIR(os.fstat(fd).st_mode)))
    write_atomically(path, b"new")
    assert synced == [False, True]


def test_a_folder_that_cannot_be_synced_does_not_undo_a_complete_write(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def only_files(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", only_files)
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"


def test_a_path_below_a_file_gives_the_reason_of_the_write_itself(path: Path) -> None:
    with pytest.raises(NotADirectoryError):
        write_atomically(path / "inside", b"new")


def test_a_folder_that_cannot_be_opened_is_not_synced(tmp_path: Path) -> None:
    sync_folder(tmp_path / "none")
