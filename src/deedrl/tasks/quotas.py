"""Whole numbers from shares: how many tasks of each kind."""

from __future__ import annotations

import math
from collections.abc import Mapping

from deedrl.errors import TaskError


def apportion(shares: Mapping[str, float], count: int) -> dict[str, int]:
    """`count` split in proportion to `shares` (any positive scale) by the largest-remainder method.

    Each part is the exact share rounded down or up; ties go to the share named first. A negative or non-finite
    share, or none above 0, raises `TaskError`.
    """
    if count < 0:
        raise TaskError(f"expected a count of at least 0, got {count}")
    total = sum(shares.values())
    if not math.isfinite(total) or total <= 0 or min(shares.values()) < 0:
        raise TaskError(f"expected shares of at least 0 with a sum above 0, got {dict(shares)}")
    exact = {name: count * share / total for name, share in shares.items()}
    parts = {name: math.floor(value) for name, value in exact.items()}
    by_remainder = sorted(exact, key=lambda name: parts[name] - exact[name])
    for name in by_remainder[: count - sum(parts.values())]:
        parts[name] += 1
    return parts
