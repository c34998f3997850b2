"""Continuous batching over a model's own modules: sequences join and leave between steps, caches stay between turns.

`Engine.step` is one pass: the newest token of every turn that is being sampled, the new context of every turn that
joins, and guesses at how they go on (`drafts`), so that a turn may advance by several tokens.
It returns the turns that finished. After an update of the weights `reset` is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from deedrl.errors import ModelError
from deedrl.memory import give_back
from deedrl.policies.local.attention import context_limit, install
from deedrl.policies.local.drafts import KEY, Drafts
from deedrl.policies.local.kv_store import KVStore, Prefix, PrefixLayout
from deedrl.policies.local.layout import Feed, StepLayout
from deedrl.policies.local.merged import SamplingModel
from deedrl.policies.local.rows import Row, Rows
from deedrl.policies.local.turn import Turn

MAX_PREFIXES = 4
"""Shared prefixes held at once; each one in use costs small products of its own in every layer of a step."""

MAX_DRAFT = 6
"""Guessed tokens a row and pass; of more, few are still right."""
DRAFT_ROOM = 256
"""Guessed tokens a pass: logits are formed for each of them, and where many rows decode, products cost by the token."""

FEW_GUESSES = 4
"""One guess to so many rows is not worth it: products come in steps of tokens, and a pass is as dear as its largest."""


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
        # Guesses change nothing that is drawn, but rounding: what a run computes must not depend on what came earlier.
        self._drafts = Drafts()
        give_back()

    def hold_weights(self) -> None:
        """Samples with the weights as they are now until `reset`; see `SamplingModel.hold`."""
        self._weights.hold()

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
        """Advances every turn in the batch, those that join now too, by a token or more; returns those that ended."""
        fills = self._admit()
        filled = {fill.row.index for fill in fills}
        decoding = [
            # All turns of a row have drawn the same tokens.
            Feed(row, len(row.ids), [next(iter(row.turns.values())).tokens[-1]])
            for row in self._rows
            if row.turns and row.index not in filled
        ]
        feeds = self._with_guesses([*decoding, *fills])
        if not feeds:
            return []
        self._store.reserve(len(self._rows), slots=max(feed.slots for feed in feeds) + 1)
        layout = StepLayout(self._store, len(self._rows), feeds[: len(decoding)], feeds[len(decoding) :])
        ids = torch.tensor([token for feed in feeds for token in (*feed.ids, *feed.guesses)], device=self._store.device)
        hidden = self._weights.hidden(ids[None], layout.positions[None], layout)[0]
        return self._sample(feeds, hidden[layout.drawn])

    def _with_guesses(self, feeds: Sequence[Feed]) -> list[Feed]:
        """Each feed with guesses at what its turns will draw."""
        most = min(MAX_DRAFT, DRAFT_ROOM // max(len(feeds), 1))
        guesses = [self._guesses(list(feed.row.turns.values()), most) for feed in feeds]
        if FEW_GUESSES * sum(map(len, guesses)) < len(feeds):
            return list(feeds)
        return [replace(feed, guesses=guessed) for feed, guessed in zip(feeds, guesses, strict=True)]

    def _guesses(self, turns: Sequence[Turn], most: int) -> list[int]:
        # A guide has to see a token before it can say which may follow.
        if any(turn.guide is not None for turn in turns):
            return []
        room = min(turn.max_tokens - len(turn.tokens) for turn in turns) - 1
        guesses = self._drafts.guess(turns[0].newest(KEY), min(most, room))
        # Nothing is drawn after a stop token.
        return guesses[: next((at for at, token in enumerate(guesses) if token in self._stop_ids), None)]

    # ------------------------------------------------------------ admission

    def _admit(self) -> list[Feed]:
        """Gives waiting turns a row each, as many as one prefill may hold; turns that read the same share a row."""
        fills: dict[tuple[tuple[int, ...], tuple[int, ...]], Feed] = {}
        tokens = 0
        # At once, for growing copies all that is held; sharing may leave some unused.
        newcomers = sum(self._rows.home(turn.key) is None for turn in self._waiting)
        self._store.reserve(min(len(self._rows) + newcomers, self._max_rows))
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
            turn.computed += new
            self._waiting.remove(turn)
            fills[text] = Feed(self._rows.take(place, turn, prefix), place.stored, own[place.stored :])
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
        if known is None and (known := self._compute_prefix(ids)) is not None:
            turn.computed += len(ids)
        return known

    def _compute_prefix(self, ids: tuple[int, ...]) -> Prefix | None:
        """Keys and values of `ids`, in the place of a prefix that no row uses; None if all are in use."""
        used = {row.prefix for row in self._rows}
        unused = [prefix for prefix in self._prefixes if prefix not in used]
        if len(self._prefixes) >= MAX_PREFIXES and not unused:
            return None
        layout = PrefixLayout(len(ids), self._model)
        device = self._store.device
        self._weights.hidden(torch.tensor([ids], device=device), torch.arange(len(ids), device=device)[None], layout)
        # Only now: if the forward pass fails, the prefixes stay as they were.
        if len(self._prefixes) >= MAX_PREFIXES:
            self._prefixes.remove(unused[0])
        self._prefixes.append(Prefix(ids, layout.blocks))
        return self._prefixes[-1]

    # ------------------------------------------------------------ sampling

    def _sample(self, feeds: Sequence[Feed], hidden: Tensor) -> list[Turn]:
        """Draws tokens for the turns of all feeds' rows, given the hidden states they follow (`StepLayout.drawn`).

        Each turn draws with its own random numbers: its next token, and those after each guess, which count only if
        it draws the guesses before them.
        """
        draws: list[_Draw] = []
        place = 0
        for feed in feeds:
            for ahead in range(1 + len(feed.guesses)):
                draws += [_Draw(turn, place, turn.uniform(ahead)) for turn in feed.row.turns.values()]
                place += 1
        drawn = iter(self._drawn(draws, self._weights.logits(hidden)))
        taken: list[tuple[Row, list[list[tuple[int, float]]]]] = []
        for feed in feeds:
            rounds = [[next(drawn) for _ in feed.row.turns] for _ in range(1 + len(feed.guesses))]
            right = _right_guesses(feed.guesses, rounds)
            feed.row.extend([*feed.ids, *feed.guesses[:right]])
            taken.append((feed.row, rounds[: right + 1]))
        # Only now, when all rows say what they hold: rows that part copy and may move others.
        return [turn for row, rounds in taken for turn in self._give(row, rounds)]

    def _drawn(self, draws: Sequence[_Draw], logits: Tensor) -> list[tuple[int, float]]:
        """Tokens and their log-probabilities; `logits` [places, V] are overwritten.

        A turn draws from the distribution of its place at its own temperature; one with a guide from a copy of its own.
        """
        made: dict[tuple[int, float, int | None], int] = {}
        which = [
            made.setdefault((place, turn.temperature, id(turn.guide) if turn.guide is not None else None), len(made))
            for turn, place, _ in draws
        ]
        if len(made) > len(logits):
            logits = logits[torch.tensor([place for place, _, _ in made])]
        for (turn, _, _), distribution in zip(draws, which, strict=True):
            if turn.guide is not None:
                turn.guide.mask(logits[distribution])
        tokens, logprobs = self._weights.draw(
            logits,
            torch.tensor([temperature for _, temperature, _ in made]),
            torch.tensor([uniform for _, _, uniform in draws], dtype=torch.float64),
            torch.tensor(which),
        )
        return list(zip(tokens.tolist(), logprobs.tolist(), strict=True))

    def _give(self, row: Row, rounds: Sequence[Sequence[tuple[int, float]]]) -> list[Turn]:
        """Gives the turns of a row what they drew, round by round; those that drew different tokens in the last part.

        Returns the turns that ended.
        """
        turns = list(row.turns.values())
        for drew in rounds:
            for turn, (token, logprob) in zip(turns, drew, strict=True):
                self._accept(turn, token, logprob)
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
            self._drafts.learn(turn.newest(KEY + len(turn.tokens)))


class _Draw(NamedTuple):
    """One number drawn by a turn from the distribution at a place of the pass."""

    turn: Turn
    place: int
    uniform: float


def _right_guesses(guesses: Sequence[int], rounds: Sequence[Sequence[tuple[int, float]]]) -> int:
    """How many of `guesses` all turns of a row drew, one round after the other."""
    for right, (guess, drew) in enumerate(zip(guesses, rounds, strict=False)):
        if any(token != guess for token, _ in drew):
            return right
    return len(guesses)


def _begins(context: Sequence[int], prefix: Sequence[int]) -> bool:
    """Whether `prefix` is something, and less than all, of what `context` begins with."""
    return 0 < len(prefix) < len(context) and tuple(context[: len(prefix)]) == tuple(prefix)
