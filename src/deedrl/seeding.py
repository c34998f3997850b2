"""Seeds derived from names, so that a stream depends on what it is for and not on the order it was asked for."""

from __future__ import annotations

import hashlib
import random


def derive_seed(seed: int, *names: object) -> int:
    """A 63-bit seed for the stream called `names` under the run's `seed`; equal arguments give equal seeds."""
    text = "\x1f".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def stream(seed: int, *names: object) -> random.Random:
    """A private random stream; never touches the global one."""
    return random.Random(derive_seed(seed, *names))
