"""One writer at a time: threads, processes and forks."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from portalocker import Lock
from portalocker.exceptions import LockException

from deedrl.errors import StoreError
from deedrl.store import TrajectoryStore, files, jsonl


@pytest.fixture
def store(tmp_path):
    return TrajectoryStore(tmp_path / "folder" / "t.jsonl")


def lock_path(store):
    return f"{store.path}.lock"


def test_a_writer_waits_until_the_lock_is_given_back(store, make):
    store.append(make(episode_id="first"))
    lock = Lock(lock_path(store))
    with ThreadPoolExecutor() as pool:
        with lock:
            writing = pool.submit(store.append, make(episode_id="second"))
            with pytest.raises(TimeoutError):
                writing.result(0.1)
            assert [t.episode_id for t in TrajectoryStore(store.path)] == ["first"]
        assert writing.result(10)
    assert [t.episode_id for t in TrajectoryStore(store.path)] == ["first", "second"]


def test_threads_of_one_store_exclude_each_other(store, make, monkeypatch):
    inside, most = [], []
    write = store._write

    def watched(data):
        inside.append(1)
        most.append(len(inside))
        threading.Event().wait(0.002)
        inside.pop()
        return write(data)

    monkeypatch.setattr(store, "_write", watched)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(store.append, [make(episode_id=f"e{i}") for i in range(20)]))
    assert max(most) == 1
    assert len(list(TrajectoryStore(store.path))) == 20


def test_a_fork_of_a_writer_keeps_nothing(store, make, monkeypatch):
    children = []
    write = store._write

    def forking(data):
        children.append(os.fork())
        if children[0] == 0:  # lives on with a copy of every descriptor
            threading.Event().wait(30)
            os._exit(0)
        return write(data)

    monkeypatch.setattr(store, "_write", forking)
    monkeypatch.setattr(jsonl, "LOCK_TIMEOUT_S", 1.0)
    try:
        store.append(make(episode_id="one"))
        monkeypatch.setattr(store, "_write", write)
        assert store.append(make(episode_id="two"))
    finally:
        os.kill(children[0], 9)
        os.waitpid(children[0], 0)


def test_a_failed_write_gives_the_lock_back(store, make, monkeypatch):
    write = store._write

    def full(data):
        raise OSError("disk")

    monkeypatch.setattr(store, "_write", full)
    with pytest.raises(StoreError, match="disk"):
        store.append(make())
    monkeypatch.setattr(store, "_write", write)
    monkeypatch.setattr(jsonl, "LOCK_TIMEOUT_S", 0.0)
    assert store.append(make())


def test_no_descriptor_is_left_open(store, make):
    store.append(make(episode_id="first"))
    before = len(os.listdir("/proc/self/fd"))
    for index in range(20):
        store.append(make(episode_id=f"e{index}"))
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_lock_that_is_never_given_back_is_told_with_its_path(store, make, monkeypatch):
    store.append(make(episode_id="first"))
    monkeypatch.setattr(jsonl, "LOCK_TIMEOUT_S", 0.05)
    with Lock(lock_path(store)), pytest.raises(StoreError, match=r"another process holds .*jsonl\.lock"):
        store.append(make())
    assert store.append(make())


def test_a_file_system_without_locks_is_told_at_once(store, make, monkeypatch):
    def refused(*_, **__):
        raise LockException("Function not implemented")

    monkeypatch.setattr(files, "lock", refused)
    with pytest.raises(StoreError, match=r"cannot lock .*jsonl\.lock: Function not implemented; put the run on"):
        store.append(make())
