"""One writer at a time: threads, processes, forks, and lock files that vanish."""

import errno
import fcntl
import os
import threading

import pytest
from filelock import FileLock, Timeout

from deedrl.errors import StoreError
from deedrl.store import TrajectoryStore, jsonl, lock
from deedrl.store.lock import locked


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / "t.jsonl.lock"


def test_a_second_holder_waits_until_the_first_is_done(path):
    order = []

    def second():
        with locked(path, 10.0):
            order.append("second")

    with locked(path, 10.0):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.1)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_it_excludes_filelock_and_filelock_excludes_it(path):
    with locked(path, 1.0), pytest.raises(Timeout):
        FileLock(path, timeout=0.05).acquire()
    with FileLock(path), pytest.raises(Timeout), locked(path, 0.05):
        pass


def test_a_fork_of_a_holder_keeps_nothing(path):
    with locked(path, 1.0):
        child = os.fork()
        if child == 0:  # lives on with a copy of every descriptor
            threading.Event().wait(30)
            os._exit(0)
    try:
        with locked(path, 1.0):
            pass
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def test_an_exception_inside_gives_the_lock_back(path):
    with pytest.raises(OSError, match="disk"), locked(path, 1.0):
        raise OSError("disk")
    with locked(path, 0.0):
        pass


def test_a_lock_file_removed_while_someone_waits_excludes_nobody_wrongly(path, monkeypatch):
    taken = []

    def take_then_lose(descriptor):
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        taken.append(os.fstat(descriptor).st_ino)
        if len(taken) == 1:
            path.unlink()
        return True

    monkeypatch.setattr(lock, "_try_to_lock", take_then_lose)
    with locked(path, 1.0):
        assert path.stat().st_ino == taken[1]


def test_without_flock_filelock_does_it_all(path, monkeypatch):
    def missing(descriptor):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(lock, "_try_to_lock", missing)
    with locked(path, 1.0), pytest.raises(Timeout):
        FileLock(path, timeout=0.05).acquire()


def test_no_descriptor_is_left_open(path):
    with locked(path, 1.0):
        pass
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with locked(path, 1.0):
            pass
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_lock_that_is_never_given_back_is_told_with_its_path(tmp_path, make, monkeypatch):
    monkeypatch.setattr(jsonl, "LOCK_TIMEOUT_S", 0.05)
    store = TrajectoryStore(tmp_path / "t.jsonl")
    with (
        locked(tmp_path / "t.jsonl.lock", 1.0),
        pytest.raises(StoreError, match=r"another process holds .*jsonl\.lock"),
    ):
        store.append(make())
    assert store.append(make())
