"""Keeps writers of one file apart, threads and processes alike, for the microseconds that an append takes."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

if sys.platform != "win32":
    import fcntl

_FIRST_WAIT_S = 0.001
_LONGEST_WAIT_S = 0.05
_BUSY = (errno.EACCES, errno.EAGAIN)
_NO_LOCKS_HERE = (errno.ENOSYS, errno.EOPNOTSUPP)


@contextlib.contextmanager
def locked(path: Path, timeout_s: float) -> Iterator[None]:
    """Holds the lock file `path`, made with its folder where missing; raises filelock's `Timeout` after `timeout_s`.

    Where the system has `flock` this is filelock's own lock, on the same file, without its bookkeeping, which costs
    more than the append. A process that dies loses the lock. Elsewhere filelock does it all.
    """
    try:
        descriptor = None if sys.platform == "win32" else _take(path, timeout_s)
    except OSError as error:
        if error.errno not in _NO_LOCKS_HERE:
            raise
        descriptor = None
    if descriptor is None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path, timeout=timeout_s):
            yield
        return
    try:
        yield
    finally:
        # Not left to `close`: a process forked meanwhile has the descriptor too, and would keep the lock.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _take(path: Path, timeout_s: float) -> int:
    """A descriptor that holds the lock. It is opened anew each time, since one that is shared excludes nobody."""
    give_up_s = time.monotonic() + timeout_s
    wait_s = _FIRST_WAIT_S
    while True:
        descriptor = _open(path)
        try:
            if _try_to_lock(descriptor) and os.fstat(descriptor).st_nlink:
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        # Another writer is at it, or the file was removed before it was locked and others lock a new one.
        os.close(descriptor)
        if time.monotonic() > give_up_s:
            raise Timeout(str(path))
        time.sleep(wait_s)
        wait_s = min(2 * wait_s, _LONGEST_WAIT_S)


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT
    try:
        return os.open(path, flags, 0o644)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, flags, 0o644)


def _try_to_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _BUSY:
            return False
        raise
    return True
