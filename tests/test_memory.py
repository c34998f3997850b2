"""Freed memory goes back to the system, also from between pieces that are still in use."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import pytest

from deedrl.memory import give_back, peak_gb

PIECE = 64 * 1024
"""Small enough for the C library's heap, which it does not shrink by itself while its end is in use."""


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="needs glibc on Linux"
)
def test_holes_in_the_heap_are_given_back() -> None:
    pieces = [bytearray(b"\x01" * PIECE) for _ in range(2000)]
    kept = pieces[::100]
    full = resident_bytes()
    del pieces
    give_back()
    assert resident_bytes() < full - 1000 * PIECE
    assert all(piece[0] == 1 for piece in kept)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_peak_is_what_was_resident_at_most() -> None:
    before = peak_gb()
    block = bytearray(b"\x01" * 300_000_000)
    assert before is not None
    assert resident_bytes() / 1e9 <= (peak_gb() or 0) + 0.01
    del block
    assert (peak_gb() or 0) >= max(before, 0.3)
