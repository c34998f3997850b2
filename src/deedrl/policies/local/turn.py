"""One turn to sample, and what may restrict its tokens."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor


class Guide(Protocol):
    """Restricts the next token of one turn (constrained decoding)."""

    def mask(self, logits: Tensor) -> None:
        """Sets forbidden entries of `logits` [V] to -inf in place."""
        ...

    def accept(self, token: int) -> None: ...


@dataclass(eq=False)
class Turn:
    """One turn to sample: the sequence it belongs to, its whole context, and what has been sampled so far."""

    key: str
    context: Sequence[int]
    prefix: Sequence[int]
    """Head of `context` shared with other sequences (may be empty)."""
    max_tokens: int
    temperature: float
    seed: int
    guide: Guide | None = None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str = ""
    computed: int = 0
    """Tokens whose keys and values were computed for it before it drew, instead of being found."""

    def __post_init__(self) -> None:
        # A private stream per turn: what is drawn does not depend on who else is in the batch.
        self._random = random.Random(self.seed)
        self._uniforms: list[float] = []

    def uniform(self, ahead: int) -> float:
        """The number in [0, 1) that draws the token `ahead` places after the next: the n-th number, the n-th token."""
        place = len(self.tokens) + ahead
        while len(self._uniforms) <= place:
            self._uniforms.append(self._random.random())
        return self._uniforms[place]

    def newest(self, count: int) -> list[int]:
        """The last `count` of `ids`."""
        missing = count - len(self.tokens)
        return [*self.context[-missing:], *self.tokens] if missing > 0 else self.tokens[-count:]

    @property
    def ids(self) -> list[int]:
        """Context and what has been sampled."""
        return [*self.context, *self.tokens]
