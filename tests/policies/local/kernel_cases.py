"""Inputs of the compiled functions, and what slow references make of them."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from deedrl.policies.local.attention import Part
from deedrl.policies.local.compiled.kernels import Kernels, Places

DTYPES = [torch.float32, torch.bfloat16]
KV_HEADS = 2


def kernels_for(dtype, size=16, groups=1):
    return Kernels(KV_HEADS * groups, KV_HEADS, size, dtype)


def random(*shape, dtype, seed=0, scale=1.0):
    return (scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))).to(dtype)


def check(found, expected):
    """Rounding to bf16 is at most 1 in 256, and may happen twice."""
    tolerance = 1e-5 if found.dtype == torch.float32 else 1 / 128
    torch.testing.assert_close(found.double(), expected.double(), rtol=tolerance, atol=tolerance)


def close(found: Tensor, expected: Tensor) -> bool:
    return float((found.double() - expected).norm() / expected.norm()) < 0.004


class Case(NamedTuple):
    """Tokens in rows of a store, some of them after a prefix of 5 tokens."""

    kernels: Kernels
    query: Tensor
    keys: Tensor
    values: Tensor
    at: Places
    prefix: tuple[Tensor, Tensor]
    after: list[bool]
    """Whether each token comes after the prefix."""

    @property
    def scaling(self) -> float:
        return self.query.shape[-1] ** -0.5

    def expected(self, first: int = 0, *, own: bool = True, before: bool = True) -> tuple[Tensor, Tensor]:
        """Attention [N, H, D] and logarithm of the sum of weights [N, H] in float64, one query at a time."""
        outputs, logsums = [], []
        kv_heads, tokens, groups, size = self.query.shape
        for n in range(first, tokens):
            for head in range(kv_heads * groups):
                k, g = divmod(head, groups)
                parts = [(self.keys, self.values, int(self.at.rows[n]), int(self.at.slots[n]) + 1)] if own else []
                parts += [(*self.prefix, 0, 5)] if before and self.after[n] else []
                keys = [keys[row, k, :seen].double() for keys, _, row, seen in parts]
                values = [values[row, k, :seen].double() for _, values, row, seen in parts]
                nothing = torch.zeros(0, size, dtype=torch.float64)
                scores = torch.cat([nothing, *keys]) @ self.query[k, n, g].double() * self.scaling
                outputs.append(scores.softmax(0) @ torch.cat([nothing, *values]))
                logsums.append(scores.logsumexp(0))
        shape = (tokens - first, kv_heads * groups)
        return torch.stack(outputs).reshape(*shape, size), torch.stack(logsums).reshape(shape)

    def part(self, output: Tensor, logsum: Tensor) -> Part:
        """[N, H, D] and [N, H] as a part of attention, [1, K, N G, D] and [1, K, N G, 1]."""
        by_head = [
            x.unflatten(1, (KV_HEADS, -1)).transpose(0, 1).flatten(1, 2)[None] for x in (output, logsum[..., None])
        ]
        return Part(by_head[0].to(self.query.dtype).contiguous(), by_head[1].float().contiguous())

    def attended(self, **options) -> Tensor:
        before = self.part(*self.expected(own=False)) if any(self.after) else None
        found = self.kernels.attend(self.query, before, self.keys, self.values, self.at, self.scaling, **options)
        return found.unflatten(-1, (-1, self.query.shape[-1]))


def case(dtype, size=16, groups=1, *, places, slots=64, after=(), scale=1.0):
    """`places`: (row, slot) of each token."""
    rows = max(row for row, _ in places) + 1
    store = [random(rows, KV_HEADS, slots, size, dtype=dtype, seed=seed) for seed in (1, 2)]
    prefix = [random(1, KV_HEADS, 5, size, dtype=dtype, seed=seed) for seed in (3, 4)]
    query = random(KV_HEADS, len(places), groups, size, dtype=dtype, scale=scale)
    at = Places(*(torch.tensor(numbers) for numbers in zip(*places, strict=True)))
    return Case(
        kernels_for(dtype, size, groups), query, *store, at, tuple(prefix), list(after) or [False] * len(places)
    )


def tiled_kernels(dtype, size=64):
    kernels = kernels_for(dtype, size, 3)
    if not kernels.tiled:
        pytest.skip("tiles are there in bf16 only, on processors with AMX")
    return kernels
