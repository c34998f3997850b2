"""Memory that Python has freed, given back to the system."""

from __future__ import annotations

import ctypes
import sys


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
