"""Writing that survives: a file on the disk is the old one or the new one, and what is appended is there whole or not.

Nothing here words an error for the user; an `OSError` goes on to the caller, who knows what the file was for.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import Protocol


def write_atomically(path: Path, data: bytes) -> None:
    """Replaces `path` by `data` in one step, synced to the disk.

    On any failure (a full disk, an interruption) the old file is as it was and the scratch file beside it is gone.
    """
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write_synced(scratch, data)
        os.replace(scratch, path)
    except BaseException:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise
    # The new file is in place; a folder that refuses to be synced must not make that look like a failure.
    with contextlib.suppress(OSError):
        sync_folder(path.parent)


def write_synced(path: Path, data: bytes) -> None:
    """Writes `data` and returns when it is on the disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Makes the names in `folder` durable; does nothing where a folder cannot even be opened (Windows)."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class RawFile(Protocol):
    """An unbuffered file opened for appending and reading (``open(path, "ab+", buffering=0)``)."""

    def seek(self, offset: int, whence: int = 0, /) -> int: ...
    def read(self, size: int = -1, /) -> bytes | None: ...
    def write(self, data: bytes | memoryview, /) -> int | None: ...
    def truncate(self, size: int | None = None, /) -> int: ...


def append_bytes(file: RawFile, data: bytes) -> int:
    """Appends all of `data` and returns the offset at which it starts.

    A file that ends in the middle of a line (a writer was killed) gets a newline first, so that the torn line is
    never glued to the next record. On failure the file is cut back to its old length and the OSError goes on.
    """
    start = file.seek(0, os.SEEK_END)
    closing = b"\n" if _ends_mid_line(file, start) else b""
    rest = memoryview(closing + data)
    try:
        while rest:
            written = file.write(rest)
            if not written:
                raise OSError(errno.EIO, "the device took no data")
            rest = rest[written:]
    except BaseException:
        with contextlib.suppress(OSError):
            file.truncate(start)
        raise
    return start + len(closing)


def _ends_mid_line(file: RawFile, size: int) -> bool:
    if size == 0:
        return False
    file.seek(size - 1)
    return file.read(1) != b"\n"
