"""Full disks and killed writers, with real processes."""

import errno
import io
import os
import resource
import signal
import subprocess
import sys
import time

import pytest

from deedrl.errors import StoreError
from deedrl.files import append_bytes
from deedrl.store import TrajectoryStore


class FillingFile(io.BytesIO):
    """A raw file on a device with `room` bytes; like a kernel it takes what fits, then says ENOSPC."""

    def __init__(self, content: bytes, room: int) -> None:
        super().__init__(content)
        self.room = room

    def write(self, data):
        taken = min(len(data), self.room)
        if taken == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= taken
        return super().write(bytes(data[:taken]))


def test_E12_short_writes_are_continued():
    file = FillingFile(b"one\n", room=100)
    file.write = lambda data: io.BytesIO.write(file, bytes(data[:3]))
    assert append_bytes(file, b"a longer record\n") == 4
    assert file.getvalue() == b"one\na longer record\n"


def test_E12_partial_write_is_cut_off_again():
    file = FillingFile(b"one\n", room=5)
    with pytest.raises(OSError, match="No space left"):
        append_bytes(file, b"a longer record\n")
    assert file.getvalue() == b"one\n"


def test_E12_a_torn_tail_stays_torn_when_the_write_fails():
    file = FillingFile(b"one\ntw", room=5)
    with pytest.raises(OSError, match="No space left"):
        append_bytes(file, b"a longer record\n")
    assert file.getvalue() == b"one\ntw"


def test_E12_an_interrupt_in_the_middle_leaves_no_half_record():
    file = FillingFile(b"one\n", room=100)

    def write(data):
        if len(data) < 16:
            raise KeyboardInterrupt
        return io.BytesIO.write(file, bytes(data[:3]))

    file.write = write
    with pytest.raises(KeyboardInterrupt):
        append_bytes(file, b"a longer record\n")
    assert file.getvalue() == b"one\n"


def test_E12_disk_full_on_record_four(tmp_path, make):
    """A file-size limit stands in for a full disk: the kernel takes what fits and refuses the rest."""
    path = tmp_path / "t.jsonl"
    store = TrajectoryStore(path)
    store.append_many(make(f"e{i}", observation="x" * 1000) for i in range(3))
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 500, limits[1]))
    try:
        with pytest.raises(StoreError, match=r"cannot write to .*records already there are intact"):
            store.append(make("e3", observation="x" * 1000))
        assert path.read_bytes() == before
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert store.append(make("e3"))
    assert store.episode_ids() == {"e0", "e1", "e2", "e3"}


def test_E12_real_full_disk(tmp_path, make):
    mount = tmp_path / "tiny"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(mount)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        store = TrajectoryStore(mount / "t.jsonl")
        records = [make(f"e{i}", observation="x" * 5000) for i in range(100)]
        with pytest.raises(StoreError, match="No space left"):
            all(store.append(record) for record in records)
        report = store.scan()
        assert 5 < report.good < 13
        assert report.torn == 0
    finally:
        subprocess.run(["umount", str(mount)], check=True)


WRITER = """
import sys, msgspec
from deedrl.store import TrajectoryStore
from deedrl.types import Trajectory
from deedrl.types import Step, Completion, Action
step = Step(index=0, observation="x" * 20_000, completion=Completion(text=""), action=Action())
store = TrajectoryStore(sys.argv[1])
for i in range(100_000):
    store.append(Trajectory(episode_id=f"{sys.argv[2]}-{i}", task_id="t", steps=(step,)))
    print(i, flush=True)
"""


def test_E14_kill_9_loses_nothing_that_append_returned_from(tmp_path):
    path = tmp_path / "t.jsonl"
    for attempt in range(2):
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(attempt)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        while process.stdout.readline().strip() != b"20":
            pass
        time.sleep(0.013 * attempt)
        process.send_signal(signal.SIGKILL)
        reported = process.stdout.read().split()
        process.wait()
        last = int(reported[-1]) if reported else 20
        found = TrajectoryStore(path).episode_ids()
        assert {f"{attempt}-{i}" for i in range(last + 1)} <= found
    assert TrajectoryStore(path).scan().quarantined == 0
