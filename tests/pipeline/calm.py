"""AdamW whose step along a gradient of next to nothing is next to nothing; run as a script, DeedRL with it.

With the usual epsilon of 1e-8 a step is as long along a gradient that is rounding alone as along any other, and what
one processor computes for three rows at once another computes for five a little differently. So runs that have to
end alike are compared with a larger one.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

import torch

EPSILON = 1e-4
_ADAMW = torch.optim.AdamW


@contextmanager
def calm_adamw() -> Iterator[None]:
    """In this process."""
    torch.optim.AdamW = functools.partial(_ADAMW, eps=EPSILON)  # type: ignore[assignment,misc]
    try:
        yield
    finally:
        torch.optim.AdamW = _ADAMW  # type: ignore[misc]


if __name__ == "__main__":
    from deedrl.cli.main import main

    with calm_adamw():
        main()
