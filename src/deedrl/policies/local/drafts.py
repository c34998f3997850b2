"""Guesses at what a turn goes on with, from what followed the same few tokens before.

Agents repeat themselves: the brackets, keys and tool names of their actions follow from the tokens before them nearly
always. Guessed tokens are computed together with the newest one, in one pass, and each is kept only where the turn's
own draw is the same token (prompt lookup decoding, Saxena 2023, with draws in place of greedy choices). So a guess
never changes what is sampled, only how many passes that takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

KEY = 3
"""Tokens that a guess is made from. Fewer repeat by chance, more are found less often."""
SIGHTINGS = 2
"""How often in a row a token must have followed before it is guessed."""
MAX_KEYS = 100_000
"""The oldest half is forgotten beyond these (a few tens of MB)."""


class Drafts:
    """What followed every `KEY` tokens lately. Wrong guesses cost, so a token has to prove itself."""

    def __init__(self) -> None:
        self._next: dict[tuple[int, ...], tuple[int, int]] = {}
        """From a key to the token seen last, and how often in a row; one less after a key has had another."""

    def learn(self, ids: Sequence[int]) -> None:
        """Takes note of every token of `ids` that comes after at least `KEY` others."""
        for at in range(KEY, len(ids)):
            key = tuple(ids[at - KEY : at])
            known = self._next.get(key)
            if known is None:
                self._next[key] = (ids[at], 1)
            else:
                self._next[key] = (ids[at], known[1] + 1 if known[0] == ids[at] else 0)
        if len(self._next) > MAX_KEYS:
            self._next = dict(islice(self._next.items(), MAX_KEYS // 2, None))

    def guess(self, ids: Sequence[int], limit: int) -> list[int]:
        """Up to `limit` tokens that may follow `ids`."""
        known = list(ids[-KEY:])
        while len(known) < KEY + limit and (found := self._next.get(tuple(known[-KEY:]))) and found[1] >= SIGHTINGS:
            known.append(found[0])
        return known[KEY:]
