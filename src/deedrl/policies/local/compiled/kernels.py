"""The compiled functions on tensors.

Shapes as in `attention`: H query heads, K key/value heads, G = H / K, head size D. N tokens of a pass; row and slot
[N] int64 say where in a store [rows, K, S, D] the keys and values of each lie.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from deedrl.policies.local.attention import Part
from deedrl.policies.local.compiled.loading import library

_POINTER, _INTEGER, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float


class Places(NamedTuple):
    """Where the tokens of a pass lie in the store, both [N] int64."""

    rows: Tensor
    slots: Tensor


class Rotation(NamedTuple):
    """Cosines and sines of the tokens' positions, both [N, D]."""

    cosine: Tensor
    sine: Tensor


class HeadNorms(NamedTuple):
    """Weights [D] of the RMSNorm that queries and keys pass before they are rotated."""

    query: Tensor
    key: Tensor
    epsilon: float


class Norm(NamedTuple):
    """An RMSNorm of hidden states."""

    weight: Tensor
    epsilon: float


class Projected(NamedTuple):
    """What a layer's projections made of the tokens of a pass, and what is still to be done to it."""

    products: Tensor
    """Queries, keys and values [N, (H + 2 K) D]."""
    rotation: Rotation
    norms: HeadNorms | None


class Kernels:
    """The C of this folder for models of one shape and type. Raises NotCompiled."""

    def __init__(self, heads: int, kv_heads: int, head_size: int, dtype: torch.dtype) -> None:
        self._heads, self._kv_heads, self._size, self._dtype = heads, kv_heads, head_size, dtype
        self.width = (heads + 2 * kv_heads) * head_size
        """Of a token's queries, keys and values together."""
        self._library = library(head_size, heads // kv_heads, dtype)
        self.tiled = bool(self._library.tiles())
        """Whether `attend_tiled`, `attend_feeds`, `pack` and `linear` can be used: in bf16, on a processor with AMX."""
        for name, types in (_SIGNATURES | (_TILED if self.tiled else {})).items():
            getattr(self._library, name).argtypes = types
            getattr(self._library, name).restype = None

    def reads(self, tensor: Tensor, *shape: int) -> bool:
        """Whether the functions, which see an address only, read `tensor` rightly; -1 is the size of a head."""
        expected = tuple(self._size if size < 0 else size for size in shape)
        return tensor.dtype == self._dtype and tensor.shape == expected and tensor.is_contiguous()

    def empty_store(self, rows: int, slots: int) -> Tensor:
        """Room for keys or values [rows, K, slots, D], not set to anything."""
        return torch.empty(rows, self._kv_heads, slots, self._size, dtype=self._dtype)

    def rms_norm(self, hidden: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """Of hidden [N, size]."""
        hidden = hidden.contiguous()
        output = torch.empty_like(hidden)
        self._library.rms_norm(_at(hidden), _at(weight), _at(output), *hidden.shape, epsilon)
        return output

    def add_rms_norm_gradient(
        self, hidden: Tensor, weight: Tensor, epsilon: float, gradient: Tensor, total: Tensor
    ) -> None:
        """Adds to `total` the gradient of `rms_norm` in hidden, from the one in its result; all [N, size]."""
        inputs = (hidden, weight, gradient.contiguous(), total)
        self._library.rms_norm_back(*map(_at, inputs), *hidden.shape, epsilon)

    def gated(self, products: Tensor) -> Tensor:
        """SiLU of the first half of each row of products [N, 2 size], times the second half."""
        tokens, width = products.shape
        output = torch.empty(tokens, width // 2, dtype=self._dtype)
        self._library.gate(_at(products), _at(output), tokens, width // 2)
        return output

    def gated_gradient(self, products: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """What `gated` gives [N, size], and its gradient in products [N, 2 size] from that in the result."""
        result, found = torch.empty_like(gradient), torch.empty_like(products)
        self._library.gate_back(*map(_at, (products, gradient, result, found)), *gradient.shape)
        return result, found

    def place(self, projected: Projected, keys: Tensor, values: Tensor, to: Places) -> Tensor:
        """The queries [K, N, G, D], rotated; keys, rotated, and values go into the store at `to`."""
        groups = self._heads // self._kv_heads
        query = torch.empty(self._kv_heads, len(projected.products), groups, self._size, dtype=self._dtype)
        self._place(projected, query, keys, values, to, in_rows=False)
        return query

    def spread(self, projected: Projected, at: Places, rows: int) -> tuple[Tensor, Tensor, Tensor]:
        """As `place`, into room of their own: queries [rows, H, S, D], keys and values [rows, K, S, D], of N = rows S
        tokens that all lie somewhere else."""
        slots = len(projected.products) // rows
        query = torch.empty(rows, self._heads, slots, self._size, dtype=self._dtype)
        keys, values = self.empty_store(rows, slots), self.empty_store(rows, slots)
        self._place(projected, query, keys, values, at, in_rows=True)
        return query, keys, values

    def spread_gradient(self, projected: Projected, at: Places, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """The gradient of `spread` in the products, from those in what it gives."""
        found = torch.empty_like(projected.products)
        gradients = [part.contiguous() for part in (query, keys, values)]  # held until the function has read them
        sizes = (len(found), self._kv_heads, keys.shape[2])
        self._library.collect(*_addresses(projected), *map(_at, (*gradients, *at, found)), *sizes)
        return found

    def _place(
        self, projected: Projected, query: Tensor, keys: Tensor, values: Tensor, to: Places, *, in_rows: bool
    ) -> None:
        stored = map(_at, (query, keys, values, *to))
        sizes = (len(projected.products), self._kv_heads, keys.shape[2])
        self._library.place(*_addresses(projected), *stored, *sizes, in_rows)

    def attend(
        self,
        query: Tensor,
        prefix: Part | None,
        keys: Tensor,
        values: Tensor,
        at: Places,
        scaling: float,
        *,
        tokens: int | None = None,
    ) -> Tensor:
        """Attention [N, H D] of query [K, N, G, D] to its rows up to its own slots, and to a prefix before them.

        `prefix` is attention to the prefix alone, output [1, K, N G, D] and logsum [1, K, N G, 1], -inf where a token
        has none. Of the output only the first `tokens` are set (None: all), not those for `attend_feeds` or `join`.
        """
        count = query.shape[1]
        output = torch.empty(count, self._heads * self._size, dtype=self._dtype)
        before = self._by_query(prefix)
        to = (*map(_at, at), count if tokens is None else tokens, count, self._kv_heads, keys.shape[2])
        self._library.attend(_at(query), _at(keys), _at(values), *map(_at, before), _at(output), *to, scaling)
        return output

    def join(self, own: Part, at: Tensor, prefix: Part | None, output: Tensor) -> None:
        """Sets the last tokens of `output` [N, H D]: attention to their own parts and to their prefixes in one.

        `own` has output [R, K, T G, D] and logsum [R, K, T G, 1]; the tokens are those `at` r T + t there. `prefix` is
        as for `attend`.
        """
        parts = (*self._by_query(own), at, *self._by_query(prefix), output)
        self._library.join(*map(_at, parts), len(output) - len(at), len(at), self._kv_heads)

    def draw(self, logits: Tensor, temperatures: Tensor, uniforms: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
        """As `sample_tokens`; logits [B, V] are left as they are."""
        draws = len(uniforms)
        tokens, logprobs = torch.empty(draws, dtype=torch.int64), torch.empty(draws)
        tensors = (logits.contiguous(), temperatures, uniforms, which, tokens, logprobs)
        self._library.draw(*map(_at, tensors), draws, logits.shape[1])
        return tokens, logprobs

    def attend_tiled(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scaling: float) -> Part:
        """Attention of many queries [R, K, Q, D] to keys and values [R, K, S, D].

        `mask` [R or 1, 1, Q, S] is added to the scores. The output is bf16, laid out [R, Q, K, D].
        """
        query, keys, values = query.contiguous(), self._with_whole_heads(keys), self._with_whole_heads(values)
        count, heads, queries, _ = query.shape
        output = torch.empty(count, queries, heads, self._size, dtype=self._dtype)
        logsum = torch.empty(count, queries, heads)
        tensors = (query, keys, values, mask, output, logsum)
        self._library.attend_tiles(*map(_at, tensors), *_tiled_sizes(query, keys, values, mask), scaling)
        return Part(output.transpose(1, 2), logsum.transpose(1, 2)[..., None])

    def attend_feeds(
        self,
        query: Tensor,
        prefix: Part | None,
        keys: Tensor,
        values: Tensor,
        feeds: Tensor,
        scaling: float,
        output: Tensor,
    ) -> None:
        """As `attend`, for feeds of many tokens each: sets these tokens of `output` [N, H D].

        `feeds` [F, 4] int64: where in the pass the tokens of each begin, how many they are, their row, and the slot of
        the first, which the others follow. A token gets the same bits whatever other feeds there are.
        """
        before = self._by_query(prefix)
        sizes = (len(feeds), query.shape[1], self._kv_heads, keys.shape[2])
        tensors = (query, keys, values, *before, output, feeds)
        self._library.attend_feeds(*map(_at, tensors), *sizes, scaling)

    def attend_tiled_gradients(
        self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scaling: float, part: Part, to: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of `attend_tiled` in query, keys and values, from that in its output `to` [R, K, Q, D]."""
        query, keys, values = query.contiguous(), self._with_whole_heads(keys), self._with_whole_heads(values)
        laid_out = [x.transpose(1, 2).contiguous() for x in (part.output, part.logsum[..., 0], to)]
        found = [torch.empty(tensor.shape, dtype=self._dtype) for tensor in (query, keys, values)]
        tensors = (query, keys, values, mask, *laid_out, *found)
        self._library.attend_tiles_back(*map(_at, tensors), *_tiled_sizes(query, keys, values, mask), scaling)
        return found[0], found[1], found[2]

    def pack(self, weight: Tensor) -> Tensor:
        """A weight [outputs, inputs] as `linear` reads it; both sizes are multiples of 32."""
        weight = weight.contiguous()
        packed = torch.empty_like(weight)
        self._library.pack(_at(weight), _at(packed), *weight.shape)
        return packed

    def linear(
        self,
        inputs: Tensor,
        packed: Tensor,
        bias: Tensor | None,
        norm: Norm | None,
        other: Tensor | None,
        *,
        gated: bool,
    ) -> Tensor:
        """The product [N, outputs] of inputs [N, inputs], normed first, and a packed weight; `other` is added.

        With `gated`, of a weight whose lines come as 16 gates, then 16 inputs: SiLU of the ones, times the others.
        """
        inputs, other = inputs.contiguous(), None if other is None else other.contiguous()
        (tokens, size), lines = inputs.shape, len(packed)
        output = torch.empty(tokens, lines // 2 if gated else lines, dtype=self._dtype)
        weight, epsilon = norm or (None, 0.0)
        tensors = (packed, bias, other, output)
        self._library.linear(_at(inputs), _at(weight), epsilon, *map(_at, tensors), tokens, size, lines, gated)
        return output

    def _with_whole_heads(self, tensor: Tensor) -> Tensor:
        """Such that the numbers of a head follow each other."""
        return tensor if tensor.stride()[2:] == (self._size, 1) else tensor.contiguous()

    def _by_query(self, part: Part | None) -> tuple[Tensor | None, Tensor | None]:
        """Output and logsum, each [.., queries, K, ..] without gaps, which is how torch's fused attention leaves them.

        Where torch has none, the output comes in float32, whatever the model's type.
        """
        if part is None:
            return None, None
        output = part.output.transpose(1, 2).to(self._dtype)
        return output.contiguous(), part.logsum.transpose(1, 2).contiguous()


_SIGNATURES = {
    "rms_norm": [*[_POINTER] * 3, *[_INTEGER] * 2, _FLOAT],
    "rms_norm_back": [*[_POINTER] * 4, *[_INTEGER] * 2, _FLOAT],
    "gate": [_POINTER, _POINTER, _INTEGER, _INTEGER],
    "gate_back": [*[_POINTER] * 4, *[_INTEGER] * 2],
    "place": [*[_POINTER] * 5, _FLOAT, *[_POINTER] * 5, *[_INTEGER] * 4],
    "collect": [*[_POINTER] * 5, _FLOAT, *[_POINTER] * 6, *[_INTEGER] * 3],
    "attend": [*[_POINTER] * 8, *[_INTEGER] * 4, _FLOAT],
    "draw": [*[_POINTER] * 6, *[_INTEGER] * 2],
    "join": [*[_POINTER] * 6, *[_INTEGER] * 3],
}
_TILED = {
    "attend_tiles": [*[_POINTER] * 6, *[_INTEGER] * 9, _FLOAT],
    "attend_feeds": [*[_POINTER] * 7, *[_INTEGER] * 4, _FLOAT],
    "attend_tiles_back": [*[_POINTER] * 10, *[_INTEGER] * 9, _FLOAT],
    "pack": [*[_POINTER] * 2, *[_INTEGER] * 2],
    "linear": [*[_POINTER] * 2, _FLOAT, *[_POINTER] * 4, *[_INTEGER] * 4],
}


def _tiled_sizes(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> tuple[int, ...]:
    strides = (*keys.stride()[:2], *values.stride()[:2])
    if mask is None:
        return (*query.shape[:3], keys.shape[2], *strides, 0)
    if not mask.is_contiguous() or mask.shape[2:] != (query.shape[2], keys.shape[2]):
        raise ValueError(f"expected a mask [.., 1, {query.shape[2]}, {keys.shape[2]}], got {tuple(mask.shape)}")
    return (*query.shape[:3], keys.shape[2], *strides, mask.stride(0) if len(mask) > 1 else 0)


def _at(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _addresses(projected: Projected) -> tuple[int | float | None, ...]:
    """Of the products, of what they are rotated by, and of the norms before that."""
    products, rotation, norms = projected
    weights = (None, None, 0.0) if norms is None else (_at(norms.query), _at(norms.key), norms.epsilon)
    return (_at(products), *map(_at, rotation), *weights)
