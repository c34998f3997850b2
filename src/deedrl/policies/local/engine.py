"""Continuous batching over a model's own weights: sequences join and leave between steps, caches stay between turns.

`Engine.step` does one prefill (if turns wait) or one decode step and returns the turns that finished. There is no
weight copy: the engine runs the very modules the trainer updates, so after an update only `reset` is needed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from deedrl.errors import ModelError
from deedrl.policies.local.attention import context_limit, install
from deedrl.policies.local.kv_store import DecodeLayout, KVStore, PrefillLayout, PrefixLayout
from deedrl.policies.local.sampling import sample_tokens

WAITING_SHARE = 0.25
"""Turns are admitted once they are this share of the running ones…"""
MAX_STEPS_WAITING = 12
"""… or after this many decode steps."""


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


class Engine:
    """Batched decoding of up to `max_rows` sequences with one shared prefix at a time."""

    def __init__(self, model: Any, *, stop_ids: Sequence[int], max_rows: int = 64, prefill_tokens: int = 8192) -> None:
        install(model)
        self._model = model
        self._head = model.get_output_embeddings()
        self._body = decoder_of(model)
        self._stop_ids = frozenset(stop_ids)
        self._max_length = context_limit(model)
        self._max_rows = max_rows
        self._prefill_tokens = prefill_tokens
        self._waiting: list[Turn] = []
        self._steps_since_prefill = 0
        self.reset()

    # ------------------------------------------------------------ public

    def reset(self) -> None:
        """Forgets every cached key and value (the weights changed). Refuses while turns are being sampled."""
        if self._waiting or any(row.turn for row in getattr(self, "_rows", [])):
            raise RuntimeError("Engine.reset during sampling: wait for the running turns first")
        self._store = KVStore(self._model, self._max_rows)
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
        """Advances all running turns by one token, or admits waiting ones; returns the turns that ended."""
        admitted = self._admit() if self._admission_is_due() else []
        if admitted:
            self._steps_since_prefill = 0
            return self._prefill(admitted)
        self._steps_since_prefill += 1
        return self._decode()

    # ------------------------------------------------------------ admission and prefill

    def _admission_is_due(self) -> bool:
        """Whether enough turns wait to be worth a pass of their own: a prefill costs about as much for one as for ten.

        A turn never waits longer than `MAX_STEPS_WAITING` tokens of the others.
        """
        running = sum(row.turn is not None for row in self._rows)
        enough = WAITING_SHARE * running <= len(self._waiting)
        return bool(self._waiting) and (enough or self._steps_since_prefill >= MAX_STEPS_WAITING)

    def _admit(self) -> list[int]:
        """Gives waiting turns a row each, as many as one prefill may hold; returns the rows."""
        admitted: list[int] = []
        tokens = 0
        for turn in list(self._waiting):
            index = self._by_key.get(turn.key)
            if index is None and len(self._rows) == self._max_rows:
                continue  # a turn of a sequence that has its row may still enter
            new = len(turn.context) - (len(self._rows[index].cached) if index is not None else len(turn.prefix))
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
            self._forward(torch.tensor([ids]), torch.arange(len(ids))[None], layout)
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

    def _prefill(self, indices: list[int]) -> list[Turn]:
        fresh: list[list[int]] = []
        for index in indices:
            row = self._rows[index]
            assert row.turn is not None
            own = self._own_context(row, row.turn)
            kept = len(row.cached)
            if own[:kept] != row.cached:
                kept = 0  # not an extension: the row starts again after the shared prefix
            kept = min(kept, len(own) - 1)
            row.cached = own[:kept]
            fresh.append(own[kept:])
        starts = torch.tensor([len(self._rows[i].cached) for i in indices])
        longest = max(map(len, fresh))
        self._store.reserve(int(starts.max()) + longest + 1)
        ids = torch.tensor([[*new, *[0] * (longest - len(new))] for new in fresh])
        with_prefix = torch.tensor([self._rows[i].with_prefix for i in indices])
        offsets = starts + with_prefix * len(self._prefix)
        layout = PrefillLayout(self._store, indices, starts, longest, with_prefix)
        hidden = self._forward(ids, offsets[:, None] + torch.arange(longest)[None], layout)
        for index, new in zip(indices, fresh, strict=True):
            self._rows[index].cached += new
        last = torch.tensor([len(new) - 1 for new in fresh])
        return self._sample(indices, hidden[torch.arange(len(indices)), last])

    # ------------------------------------------------------------ decoding

    def _decode(self) -> list[Turn]:
        running = [i for i, row in enumerate(self._rows) if row.turn]
        if not running:
            return []
        lengths = torch.tensor([len(row.cached) for row in self._rows])
        self._store.reserve(int(lengths.max()) + 1)
        with_prefix = torch.tensor([row.with_prefix for row in self._rows])
        ids = torch.tensor([[row.turn.tokens[-1] if row.turn else 0] for row in self._rows])
        layout = DecodeLayout(self._store, lengths, with_prefix)
        hidden = self._forward(ids, (lengths + with_prefix * len(self._prefix))[:, None], layout)
        for index in running:
            self._rows[index].cached.append(int(ids[index, 0]))
        return self._sample(running, hidden[:, 0] if len(running) == len(self._rows) else hidden[running, 0])

    def _sample(self, indices: list[int], hidden: Tensor) -> list[Turn]:
        logits = self._head(hidden)
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

    def _forward(self, ids: Tensor, positions: Tensor, layout: Any) -> Tensor:
        output = self._body(input_ids=ids, position_ids=positions, use_cache=False, layout=layout)
        hidden: Tensor = output.last_hidden_state
        return hidden


def decoder_of(model: Any) -> Any:
    """The part of a causal model below its output head, whether or not PEFT wraps it."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return inner.get_decoder() if hasattr(inner, "get_decoder") else inner.model
