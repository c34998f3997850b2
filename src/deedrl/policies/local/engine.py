"""Continuous batching over a model's own modules: sequences join and leave between steps, caches stay between turns.

`Engine.step` is one pass: a token for every turn that is being sampled, and the new context of every turn that joins.
It returns the turns that finished. After an update of the weights `reset` is needed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from deedrl.errors import ModelError
from deedrl.memory import give_back
from deedrl.policies.local.attention import context_limit, install
from deedrl.policies.local.kv_store import Fill, KVStore, PrefixLayout, StepLayout
from deedrl.policies.local.merged import SamplingModel
from deedrl.policies.local.sampling import sample_tokens


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

    def __post_init__(self) -> None:
        # A private stream per turn: what is drawn does not depend on who else is in the batch.
        self._random = random.Random(self.seed)

    def uniform(self) -> float:
        return self._random.random()


@dataclass(eq=False)
class _Row:
    key: str
    cached: list[int]
    """Token ids whose keys and values are stored, prefix excluded if the row uses it."""
    with_prefix: bool
    turn: Turn | None = None

    @property
    def last_token(self) -> int:
        """The newest token of the turn being sampled: its keys and values are not stored yet."""
        assert self.turn is not None
        return self.turn.tokens[-1]


class Engine:
    """Batched decoding of up to `max_rows` sequences with one shared prefix at a time."""

    def __init__(self, model: Any, *, stop_ids: Sequence[int], max_rows: int = 64, prefill_tokens: int = 1024) -> None:
        install(model)
        self._model = model
        self._weights = SamplingModel(model)
        self._stop_ids = frozenset(stop_ids)
        self._max_length = context_limit(model)
        self._max_rows = max_rows
        self._prefill_tokens = prefill_tokens
        self._waiting: list[Turn] = []
        self.reset()

    # ------------------------------------------------------------ public

    def reset(self) -> None:
        """Forgets every cached key and value (the weights changed) and gives their memory back.

        Refuses while turns are being sampled.
        """
        if self._waiting or any(row.turn for row in getattr(self, "_rows", [])):
            raise RuntimeError("Engine.reset during sampling: wait for the running turns first")
        self._weights.weights_changed()
        self._store = KVStore(self._model, self._max_rows)
        give_back()
        self._rows: list[_Row] = []
        self._by_key: dict[str, int] = {}
        self._prefix: list[int] = []

    def submit(self, turn: Turn) -> None:
        if len(turn.context) + turn.max_tokens > self._max_length:
            raise ModelError(
                f"a turn needs {len(turn.context)} + {turn.max_tokens} tokens, the model holds {self._max_length}; "
                "lower limits.max_tokens_per_episode or sampling.max_tokens"
            )
        self._waiting.append(turn)

    @property
    def busy(self) -> bool:
        return bool(self._waiting) or self.running

    @property
    def running(self) -> bool:
        """Whether a turn has a row; False while all that is left waits for a row to be released."""
        return any(row.turn for row in self._rows)

    @torch.inference_mode()  # storage that grew while sampling may only be written in this mode
    def release(self, key: str) -> None:
        """Frees the row of a finished sequence by moving the last row into its place."""
        index = self._by_key.pop(key, None)
        if index is None:
            return
        last = self._rows.pop()
        if index < len(self._rows):
            self._store.move_row(len(self._rows), index)
            self._rows[index] = last
            self._by_key[last.key] = index

    def abandon(self, key: str) -> None:
        """Stops sampling the turn of `key`, if any (its caller went away); the sequence keeps its row."""
        self._waiting = [turn for turn in self._waiting if turn.key != key]
        if key in self._by_key:
            self._rows[self._by_key[key]].turn = None

    @torch.inference_mode()
    def step(self) -> list[Turn]:
        """Advances every turn in the batch by one token, those that join now included; returns the turns that ended."""
        decoding = [index for index, row in enumerate(self._rows) if row.turn]
        fills = self._fills(self._admit())
        if not decoding and not fills:
            return []
        lengths = torch.tensor([len(row.cached) for row in self._rows])
        needed = max([int(lengths.max()), *(fill.start + len(fill.ids) for fill in fills)])
        self._store.reserve(needed + 1)
        shared = torch.tensor([row.with_prefix for row in self._rows])
        layout = StepLayout(self._store, decoding, lengths, shared, fills)
        last_tokens = [self._rows[index].last_token for index in decoding]
        ids = torch.tensor([*last_tokens, *(token for fill in fills for token in fill.ids)])
        positions = layout.positions + shared[layout.rows] * len(self._prefix)
        hidden = self._weights.hidden(ids[None], positions[None], layout)[0]
        for index, token in zip(decoding, last_tokens, strict=True):
            self._rows[index].cached.append(token)
        sampled, at = list(decoding), list(range(len(decoding)))
        end = len(decoding)
        for fill in fills:
            self._store.copy_context(fill)
            end += len(fill.ids)
            for index in (fill.row, *fill.twins):
                self._rows[index].cached = self._rows[index].cached[: fill.start] + fill.ids
                sampled.append(index)
                at.append(end - 1)
        return self._sample(sampled, hidden[torch.tensor(at)])

    # ------------------------------------------------------------ admission

    def _admit(self) -> list[int]:
        """Gives waiting turns a row each, as many as one prefill may hold; returns the rows."""
        admitted: list[int] = []
        tokens = 0
        opened: set[tuple[int, ...]] = set()
        for turn in list(self._waiting):
            index = self._by_key.get(turn.key)
            if index is None and len(self._rows) == self._max_rows:
                continue  # a turn of a sequence that has its row may still enter
            new = len(turn.context) - (len(self._rows[index].cached) if index is not None else len(turn.prefix))
            if index is None:
                new = 0 if tuple(turn.context) in opened else new  # a twin costs a copy
                opened.add(tuple(turn.context))
            if admitted and tokens + new > self._prefill_tokens:
                break
            tokens += new
            self._waiting.remove(turn)
            index = self._open(turn) if index is None else index
            self._rows[index].turn = turn
            admitted.append(index)
        return admitted

    def _open(self, turn: Turn) -> int:
        if not self._rows and list(turn.prefix) != self._prefix:
            self._compute_prefix(list(turn.prefix))
        self._rows.append(_Row(key=turn.key, cached=[], with_prefix=self._shares_prefix(turn)))
        self._by_key[turn.key] = len(self._rows) - 1
        return len(self._rows) - 1

    def _compute_prefix(self, ids: list[int]) -> None:
        layout = PrefixLayout(len(ids), self._model)
        if ids:
            self._weights.hidden(torch.tensor([ids]), torch.arange(len(ids))[None], layout)
        # Only now: if the forward pass fails, the old prefix stays whole.
        self._prefix, self._store.prefix, self._store.prefix_length = ids, layout.prefix, len(ids)

    def _shares_prefix(self, turn: Turn) -> bool:
        """Whether the turn begins with the stored prefix and has at least one token more, to be computed."""
        length = len(self._prefix)
        return 0 < length < len(turn.context) and list(turn.context[:length]) == self._prefix

    def _own_context(self, row: _Row, turn: Turn) -> list[int]:
        if row.with_prefix and not self._shares_prefix(turn):
            row.with_prefix, row.cached = False, []
        return list(turn.context[len(self._prefix) if row.with_prefix else 0 :])

    def _fills(self, indices: list[int]) -> list[Fill]:
        """What these rows lack of their turns' contexts; rows that lack the same after the same are twins."""
        found: dict[tuple[bool, int, tuple[int, ...]], list[int]] = {}
        for index in indices:
            row = self._rows[index]
            assert row.turn is not None
            own = self._own_context(row, row.turn)
            kept = len(row.cached)
            if own[:kept] != row.cached:
                kept = 0  # not an extension: the row starts again after the shared prefix
            kept = min(kept, len(own) - 1)
            row.cached = own[:kept]
            # Only whole own contexts are told equal: then what is stored is equal too.
            twin_key = tuple(own) if kept == 0 else (-1, index)
            found.setdefault((row.with_prefix, kept, twin_key), []).append(index)
        fills = []
        for (with_prefix, start, _), rows in found.items():
            first = self._rows[rows[0]]
            assert first.turn is not None
            ids = self._own_context(first, first.turn)[start:]
            fills.append(Fill(row=rows[0], start=start, ids=ids, with_prefix=with_prefix, twins=tuple(rows[1:])))
        return fills

    # ------------------------------------------------------------ sampling

    def _sample(self, indices: list[int], hidden: Tensor) -> list[Turn]:
        logits = self._weights.logits(hidden)
        turns = [turn for i in indices if (turn := self._rows[i].turn) is not None]
        for turn, row_logits in zip(turns, logits, strict=True):
            if turn.guide is not None:
                turn.guide.mask(row_logits)
        tokens, logprobs = sample_tokens(
            logits,
            torch.tensor([turn.temperature for turn in turns]),
            torch.tensor([turn.uniform() for turn in turns], dtype=torch.float64),
        )
        ended = []
        for index, turn, token, logprob in zip(indices, turns, tokens.tolist(), logprobs.tolist(), strict=True):
            turn.tokens.append(token)
            turn.logprobs.append(logprob)
            if turn.guide is not None:
                turn.guide.accept(token)
            if token in self._stop_ids or len(turn.tokens) >= turn.max_tokens:
                turn.finish_reason = "stop" if token in self._stop_ids else "length"
                self._rows[index].turn = None
                ended.append(turn)
        return ended
