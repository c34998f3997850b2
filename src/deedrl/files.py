"""Writing that survives: a file on the disk is the old one or the new one, never half of one.

Nothing here words an error for the user; an `OSError` goes on to the caller, who knows what the file was for.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


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
