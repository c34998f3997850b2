"""Memory of this process: its peak, and what Python has freed, given back to the system."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path


def give_back() -> None:
    """Returns freed memory to the system where the C library can (glibc); elsewhere does nothing.

    glibc keeps what was freed between pieces still in use. A run alternates between two large users of memory, sampling
    and updates, whose pieces fit into each other's holes badly: without this the process holds the sum of both.
    """
    if sys.platform != "linux":
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def resident_gb() -> float | None:
    """What is resident now, in GB (10^9 bytes); None where there is no ``/proc`` to say it."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e9


def peak_gb() -> float | None:
    """The most that was resident so far, in GB (10^9 bytes); None where the system does not say."""
    if sys.platform == "win32":
        return None
    import resource

    units = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * units / 1e9
