"""Locking and reading of the store's files."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from portalocker import LOCK_EX, LOCK_NB, lock, unlock
from portalocker.exceptions import AlreadyLocked

READ_BUFFER_BYTES = 1 << 20
LOCK_CHECK_S = 0.005
_AT_ONCE = LOCK_EX | LOCK_NB


@contextlib.contextmanager
def locked(path: Path, timeout_s: float) -> Iterator[None]:
    """Holds the lock file `path`, made with its folder if need be, against threads, other processes and forks alike.

    The file is opened anew each time: a lock belongs to what `open` gave, and threads or forks that shared one would
    not exclude each other. Raises portalocker's AlreadyLocked after `timeout_s` seconds, its LockException where the
    file system has no locks, and OSError where the file cannot be made.
    """
    descriptor = _open_lock(path)
    try:
        _wait_for_lock(descriptor, timeout_s)
        try:
            yield
        finally:
            unlock(descriptor)  # closing does not: a fork may have a copy of the descriptor
    finally:
        os.close(descriptor)


def _open_lock(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)


def _wait_for_lock(descriptor: int, timeout_s: float) -> None:
    until_s = time.monotonic() + timeout_s
    while True:
        try:
            return lock(descriptor, _AT_ONCE)
        except AlreadyLocked:
            if time.monotonic() >= until_s:
                raise
        time.sleep(LOCK_CHECK_S)


def read_lines(path: Path, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
    """Lines that begin in [start, stop), each with its offset, newline included; memory for one line at a time."""
    with path.open("rb", buffering=READ_BUFFER_BYTES) as file:
        file.seek(start)
        offset = start
        for line in file:
            if offset >= stop:
                return
            yield offset, line
            offset += len(line)


def read_line_at(file: BinaryIO, offset: int) -> bytes:
    file.seek(offset)
    return file.readline()
