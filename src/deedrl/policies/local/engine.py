"""Continuous batching over a model's own modules: sequences join and leave between steps, caches stay between turns.

`Engine.step` is one pass: a token for every turn that is being sampled, and the new context of every turn that joins.
It returns the turns that finished. After an update of the weights `reset` is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from deedrl.errors import ModelError
from deedrl.memory import give_back
from deedrl.policies.local.attention import context_limit, install
from deedrl.policies.local.kv_store import KVStore, Prefix, PrefixLayout
from deedrl.policies.local.layout import Fill, StepLayout
from deedrl.policies.local.merged import SamplingModel
from deedrl.policies.local.rows import Row, Rows
from deedrl.policies.local.sampling import sample_tokens
from deedrl.policies.local.turn import Turn

MAX_PREFIXES = 4
"""Shared prefixes held at once; each one in use costs small products of its own in every layer of a step."""


class Engine:
    """Batched decoding in up to `max_rows` rows; sequences that agree so far share a row."""

    def __init__(self, model: Any, *, stop_ids: Sequence[int], max_rows: int = 64, prefill_tokens: int = 1024) -> None:
        install(model)
        self._model = model
        self._weights = SamplingModel(model)
        self._stop_ids = frozenset(stop_ids)
        self._max_length = context_limit(model)
        self._max_rows = max_rows
        self._prefill_tokens = prefill_tokens
        self._waiting: list[Turn] = []
        self._rows = Rows(KVStore(model, 0))
        self.reset()

    # ------------------------------------------------------------ public

    def reset(self) -> None:
        """Forgets every cached key and value (the weights changed) and gives their memory back.

        Refuses while turns are being sampled.
        """
        if self.busy:
            raise RuntimeError("Engine.reset during sampling: wait for the running turns first")
        self._weights.weights_changed()
        self._store = KVStore(self._model, self._max_rows)
        self._rows = Rows(self._store)
        self._prefixes: list[Prefix] = []
        give_back()

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
        return self._rows.running

    @torch.inference_mode()  # storage that grew while sampling may only be written in this mode
    def release(self, key: str) -> None:
        """Forgets a finished sequence; frees its row unless others share it."""
        self._rows.release(key)

    def abandon(self, key: str) -> None:
        """Stops sampling the turn of `key`, if any (its caller went away); the sequence keeps its row."""
        self._waiting = [turn for turn in self._waiting if turn.key != key]
        self._rows.stop(key)

    @torch.inference_mode()
    def step(self) -> list[Turn]:
        """Advances every turn in the batch by one token, those that join now included; returns the turns that ended."""
        fills = self._admit()
        filled = {fill.row.index for fill in fills}
        decoding = [row for row in self._rows if row.turns and row.index not in filled]
        if not decoding and not fills:
            return []
        ends = [*(len(row.ids) for row in decoding), *(fill.start + len(fill.ids) for fill in fills)]
        self._store.reserve(max(ends) + 1)
        # All turns of a row have drawn the same tokens.
        newest = [next(iter(row.turns.values())).tokens[-1] for row in decoding]
        ids = torch.tensor([*newest, *(token for fill in fills for token in fill.ids)])
        layout = StepLayout(self._store, len(self._rows), decoding, fills)
        hidden = self._weights.hidden(ids[None], layout.positions[None], layout)[0]
        for row, token in zip(decoding, newest, strict=True):
            row.extend([token])
        for fill in fills:
            fill.row.extend(fill.ids)
        return self._sample([*decoding, *(fill.row for fill in fills)], hidden[layout.last])

    # ------------------------------------------------------------ admission

    def _admit(self) -> list[Fill]:
        """Gives waiting turns a row each, as many as one prefill may hold; turns that read the same share a row."""
        fills: dict[tuple[tuple[int, ...], tuple[int, ...]], Fill] = {}
        tokens = 0
        for turn in list(self._waiting):
            text = (tuple(turn.prefix), tuple(turn.ids))
            if text in fills:
                self._rows.join(fills[text].row, turn)
                self._waiting.remove(turn)
                continue
            if self._rows.full and self._rows.home(turn.key) is None:
                continue  # a turn of a sequence that has its row may still enter
            prefix = self._prefix_of(turn)
            own = turn.ids[len(prefix.ids) if prefix else 0 :]
            place = self._rows.find(turn.key, prefix, own)
            if place is None:
                continue
            new = len(own) - place.stored
            if fills and tokens + new > self._prefill_tokens:
                break
            tokens += new
            self._waiting.remove(turn)
            fills[text] = Fill(self._rows.take(place, turn, prefix), place.stored, own[place.stored :])
        return list(fills.values())

    def _prefix_of(self, turn: Turn) -> Prefix | None:
        """What the turn shares with others; None if that is nothing, or all of its context."""
        home = self._rows.home(turn.key)
        if home is not None and (home.prefix is None or _begins(turn.context, home.prefix.ids)):
            return home.prefix
        if not _begins(turn.context, turn.prefix):
            return None
        ids = tuple(turn.prefix)
        known = next((prefix for prefix in self._prefixes if prefix.ids == ids), None)
        return known or self._compute_prefix(ids)

    def _compute_prefix(self, ids: tuple[int, ...]) -> Prefix | None:
        """Keys and values of `ids`, in the place of a prefix that no row uses; None if all are in use."""
        used = {row.prefix for row in self._rows}
        unused = [prefix for prefix in self._prefixes if prefix not in used]
        if len(self._prefixes) >= MAX_PREFIXES and not unused:
            return None
        layout = PrefixLayout(len(ids), self._model)
        self._weights.hidden(torch.tensor([ids]), torch.arange(len(ids))[None], layout)
        # Only now: if the forward pass fails, the prefixes stay as they were.
        if len(self._prefixes) >= MAX_PREFIXES:
            self._prefixes.remove(unused[0])
        self._prefixes.append(Prefix(ids, layout.blocks))
        return self._prefixes[-1]

    # ------------------------------------------------------------ sampling

    def _sample(self, rows: Sequence[Row], hidden: Tensor) -> list[Turn]:
        """Draws a token for every turn of `rows`, whose newest hidden states [rows, hidden] are given.

        Each turn draws with its own random number from its row's distribution at its own temperature; a turn with a
        guide from a copy of its own. Turns that drew different tokens then part.
        """
        drawn: list[tuple[Turn, int]] = []
        made: dict[tuple[int, float, int | None], int] = {}
        for at, row in enumerate(rows):
            for turn in row.turns.values():
                distribution = (at, turn.temperature, id(turn.guide) if turn.guide is not None else None)
                drawn.append((turn, made.setdefault(distribution, len(made))))
        logits = self._weights.logits(hidden)
        if len(made) > len(rows):
            logits = logits[torch.tensor([at for at, _, _ in made])]
        for turn, which in drawn:
            if turn.guide is not None:
                turn.guide.mask(logits[which])
        tokens, logprobs = sample_tokens(
            logits,
            torch.tensor([temperature for _, temperature, _ in made]),
            torch.tensor([turn.uniform() for turn, _ in drawn], dtype=torch.float64),
            torch.tensor([which for _, which in drawn]),
        )
        turns = [turn for turn, _ in drawn]
        for turn, token, logprob in zip(turns, tokens.tolist(), logprobs.tolist(), strict=True):
            self._accept(turn, token, logprob)
        for row in rows:
            self._waiting[:0] = self._rows.split(row)
        return [turn for turn in turns if turn.finish_reason]

    def _accept(self, turn: Turn, token: int, logprob: float) -> None:
        turn.tokens.append(token)
        turn.logprobs.append(logprob)
        if turn.guide is not None:
            turn.guide.accept(token)
        if token in self._stop_ids or len(turn.tokens) >= turn.max_tokens:
            turn.finish_reason = "stop" if token in self._stop_ids else "length"
            self._rows.stop(turn.key)


def _begins(context: Sequence[int], prefix: Sequence[int]) -> bool:
    """Whether `prefix` is something, and less than all, of what `context` begins with."""
    return 0 < len(prefix) < len(context) and tuple(context[: len(prefix)]) == tuple(prefix)
