"""The layout of one step: which tokens a forward pass holds, and who of them may attend to whom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from deedrl.policies.local.attention import Part, attend_few, attend_part, attend_shared, merged
from deedrl.policies.local.compiled.kernels import Kernels, Places, Projected
from deedrl.policies.local.kv_store import KVStore, Prefix
from deedrl.policies.local.rows import Row

GATHERING = 3
"""Copying what a row holds and reading the copy costs as much as reading this many rows in place."""
FEW_QUERIES = 12
"""Query heads a row and key/value head up to which plain products beat the fused attention in float32.

In bf16 they never do: batched products of few rows copy keys and values first.
"""

MANY_TOKENS = 16
"""New tokens of a row from which on attention by matrix products beats the compiled one of single queries."""

_Attend = Callable[[Tensor, Tensor, Tensor, Any, float], Part]
"""From query, keys, values, what is added to scores and the scaling, as `attend_part`."""


@dataclass(frozen=True)
class Feed:
    """What one row takes in: `ids` are to be computed and written from own slot `start` on, `guesses` after them."""

    row: Row
    start: int
    ids: list[int]
    guesses: Sequence[int] = ()

    @property
    def tokens(self) -> int:
        return len(self.ids) + len(self.guesses)

    @property
    def slots(self) -> int:
        """Own slots of the row in use with these tokens."""
        return self.start + self.tokens


class StepLayout:
    """One pass over the tokens of many rows laid end to end: first the decoding rows', few each, then the fills'.

    Laid so, the model's products see one long row without padding, and no row waits for another's context. Only
    attention knows which token belongs to which row: all tokens after one prefix attend to it in one call, and to
    their rows' own parts in padded calls for tokens that come in similar numbers a row.
    """

    def __init__(self, store: KVStore, used: int, decoding: Sequence[Feed], fills: Sequence[Feed]) -> None:
        """`used` rows of the store are in use; `decoding` (in the order of the store) and those of `fills` are some."""
        self._store = store
        device = store.device
        feeds = [*decoding, *fills]
        counts = torch.tensor([feed.tokens for feed in feeds])
        offsets = torch.tensor([len(feed.row.prefix.ids) if feed.row.prefix else 0 for feed in feeds])
        columns = torch.cat([torch.arange(int(count)) for count in counts])
        rows = torch.tensor([feed.row.index for feed in feeds]).repeat_interleave(counts)
        slots = torch.tensor([feed.start for feed in feeds]).repeat_interleave(counts) + columns
        # Small numbers are counted out on the processor, which an accelerator is not to wait for one by one.
        self._places = Places(rows.to(device), slots.to(device))
        self.positions = (slots + offsets.repeat_interleave(counts)).to(device)
        """Position of every token [N] in its sequence, prefix included."""
        first = [0, *counts.cumsum(0).tolist()]
        drawn = [range(end - 1 - len(feed.guesses), end) for feed, end in zip(feeds, first[1:], strict=True)]
        self.drawn = torch.tensor([place for places in drawn for place in places], device=device)
        """Places in the pass that tokens are drawn after: of every feed the last of its ids, and all guesses."""
        self._used = used
        placed = [_Placed(feed, place) for feed, place in zip(feeds, first, strict=False)]
        self._decoding, self._fills = placed[: len(decoding)], placed[len(decoding) :]
        self._prefixes = _tokens_by_prefix(feeds, device)
        self._apart = max((feed.tokens for feed in fills), default=0) >= MANY_TOKENS

    @cached_property
    def _own(self) -> list[_Own]:
        groups = (*_alike(self._decoding), self._fills)
        return [_Own(self._store, self._used, group) for group in groups if group]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        rows, slots = self._places
        self._store.keys[layer][rows, :, slots] = key[0].transpose(0, 1)
        self._store.values[layer][rows, :, slots] = value[0].transpose(0, 1)
        by_token = query[0].transpose(0, 1)
        folded = by_token.reshape(len(by_token), self._store.kv_heads, self._store.groups, -1)
        own = Part(
            torch.empty(folded.shape, dtype=torch.float32, device=query.device),
            torch.empty((*folded.shape[:-1], 1), dtype=torch.float32, device=query.device),
        )
        for group in self._own:
            group.attend(layer, folded, own, scaling)
        output = own.output
        for prefix, at in self._prefixes:
            if at is None:
                output = merged(own, attend_shared(folded, *prefix.blocks[layer], scaling))
                continue
            part = Part(own.output[at], own.logsum[at])
            output.index_copy_(0, at, merged(part, attend_shared(folded[at], *prefix.blocks[layer], scaling)))
        return output.to(query.dtype).reshape(by_token.shape).transpose(0, 1)[None]

    def attend_products(self, layer: int, projected: Projected, kernels: Kernels, scaling: float) -> Tensor:
        keys, values = self._store.keys[layer], self._store.values[layer]
        query = kernels.place(projected, keys, values, self._places)
        prefix = self._before(layer, query, scaling, kernels.attend_tiled if kernels.tiled else attend_part)
        tokens = self._fills[0].place if self._apart else None
        output = kernels.attend(query, prefix, keys, values, self._places, scaling, tokens=tokens)
        if self._apart and kernels.tiled:
            kernels.attend_feeds(query, prefix, keys, values, self._filled, scaling, output)
        elif self._apart:
            many = self._many
            padded = query[:, many.tokens].transpose(0, 1).flatten(2, 3)  # [R, K, T G, D]
            kernels.join(many.part(layer, padded, scaling, attend_part), many.kept, prefix, output)
        return output

    @cached_property
    def _many(self) -> _Own:
        return _Own(self._store, self._used, self._fills)

    @cached_property
    def _filled(self) -> Tensor:
        """The fills as `Kernels.attend_feeds` takes them."""
        return torch.tensor([(place, feed.tokens, feed.row.index, feed.start) for feed, place in self._fills])

    def _before(self, layer: int, query: Tensor, scaling: float, attend: _Attend) -> Part | None:
        """Attention of query [K, N, G, D] to the tokens' prefixes, as `Kernels.attend` takes it."""
        if not self._prefixes:
            return None
        if self._prefixes[0][1] is None:
            keys, values = self._prefixes[0][0].blocks[layer]
            return attend(query.flatten(1, 2)[None], keys, values, None, scaling)
        whole = Part(query.new_zeros(query.shape), query.new_full((*query.shape[:-1], 1), -torch.inf).float())
        for prefix, at in self._prefixes:
            assert at is not None
            keys, values = prefix.blocks[layer]
            part = attend(query[:, at].flatten(1, 2)[None], keys, values, None, scaling)
            for tensor, found in zip(whole, part, strict=True):
                tensor.index_copy_(1, at, found[0].reshape(len(query), len(at), query.shape[2], -1).to(tensor.dtype))
        return Part(*(tensor.flatten(1, 2)[None] for tensor in whole))


class _Placed(NamedTuple):
    """A feed, and where in the pass its first token lies."""

    feed: Feed
    place: int


class _Own:
    """Attention of the tokens of some feeds to their rows' own parts, padded to one number of tokens T a row."""

    def __init__(self, store: KVStore, used: int, placed: Sequence[_Placed]) -> None:
        self._store = store
        counts = torch.tensor([feed.tokens for feed, _ in placed])
        begin = torch.tensor([place for _, place in placed])[:, None]
        columns = torch.arange(int(counts.max()))[None]
        real = columns < counts[:, None]
        # Padding repeats the first token; its output is never looked at.
        tokens = torch.where(real, begin + columns, begin)
        self.tokens = tokens.to(store.device)
        """The places in the pass of the tokens of every row [R, T]."""
        padded = real.flatten().nonzero()[:, 0]
        self._places = tokens.flatten()[padded].to(store.device)
        self._few = store.dtype == torch.float32 and columns.shape[1] * store.groups <= FEW_QUERIES
        rows = torch.tensor([feed.row.index for feed, _ in placed])
        self._rows = rows.to(store.device)
        newest = torch.tensor([feed.start for feed, _ in placed])[:, None] + columns
        # Where most rows take part, all are read in place: those that do not have a query of zeros that sees one slot.
        self._in_place = used if GATHERING * len(placed) >= used else 0
        self._spread = bool(self._in_place) and rows.tolist() != list(range(used))
        if self._spread:
            newest = newest.new_zeros(used, newest.shape[1]).index_copy_(0, rows, newest)
        row_of = rows if self._spread else torch.arange(len(placed))
        self.kept = (row_of[:, None] * columns.shape[1] + columns).flatten()[padded].to(store.device)
        """Where `part` has the tokens, in their order: token t of row r at r T + t."""
        self._slots = max(feed.slots for feed, _ in placed)
        visible = torch.arange(self._slots, device=store.device)[None, None] <= newest.to(store.device)[:, :, None]
        bias = torch.where(visible, 0.0, -torch.inf)[:, None].repeat_interleave(store.groups, dim=2)
        self._bias = bias if self._few else bias.to(store.dtype)

    def attend(self, layer: int, query: Tensor, own: Part, scaling: float) -> None:
        """Query [N, K, G, D] of all tokens of the pass; writes those of the feeds into `own`."""
        padded = query[self.tokens].transpose(1, 2).flatten(2, 3)  # [R, K, T G, D]
        attend = attend_few if self._few else attend_part
        for tensor, whole in zip(self.part(layer, padded, scaling, attend), own, strict=True):
            rows, heads, queries, size = tensor.shape
            by_row = tensor.reshape(rows, heads, queries // query.shape[2], query.shape[2], size)
            by_token = by_row.transpose(1, 2).flatten(0, 1)
            whole[self._places] = by_token[self.kept].to(whole.dtype)

    def part(self, layer: int, padded: Tensor, scaling: float, attend: _Attend) -> Part:
        """Attention of the padded queries [R, K, T G, D] of the feeds' rows; where rows are read in place, of all."""
        keys, values = (self._read(blocks[layer]) for blocks in (self._store.keys, self._store.values))
        if self._spread:
            padded = padded.new_zeros(len(keys), *padded.shape[1:]).index_copy_(0, self._rows, padded)
        return attend(padded, keys, values, self._bias, scaling)

    def _read(self, block: Tensor) -> Tensor:
        """Keys or values [rows, K, slots, D] of the rows that take part, and where read in place of all in use."""
        rows = slice(self._in_place) if self._in_place else self._rows
        return block[rows, :, : self._slots]


def _alike(decoding: Sequence[_Placed]) -> list[list[_Placed]]:
    """The decoding feeds in groups: few with guesses are not worth padding all others to their width."""
    guessing = [placed for placed in decoding if placed.feed.guesses]
    if GATHERING * len(guessing) >= len(decoding):
        return [list(decoding)]
    return [[placed for placed in decoding if not placed.feed.guesses], guessing]


def _tokens_by_prefix(feeds: Sequence[Feed], device: torch.device) -> list[tuple[Prefix, Tensor | None]]:
    """The prefixes of the pass, each with the places of the tokens that come after it (None: all)."""
    owners = [feed.row.prefix for feed in feeds for _ in range(feed.tokens)]
    found: list[tuple[Prefix, Tensor | None]] = []
    for prefix in dict.fromkeys(owners):
        at = [i for i, owner in enumerate(owners) if owner is prefix]
        if prefix is not None:
            found.append((prefix, torch.tensor(at, device=device) if len(at) < len(owners) else None))
    return found
