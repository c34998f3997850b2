"""The compiled attention of feeds against slow references: what many rows take in at once, on matrix tiles."""

from __future__ import annotations

import math

import pytest
import torch
from kernel_cases import DTYPES, Case, case, check, close, random, tiled_kernels
from torch import Tensor

from deedrl.policies.local.attention import Part

pytestmark = [pytest.mark.usefixtures("compiler"), pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bf16"])]

FEEDS = [(2, 0, 40), (5, 13, 1), (0, 50, 11), (3, 31, 33), (1, 0, 1), (4, 96, 64)]
"""Row, first slot and number of tokens: from the beginning and later, blocks of queries that are filled and not."""


def feeds_case(dtype, size=64, groups=3, *, feeds=FEEDS, after=(), scale=1.0):
    """A case of these feeds; nothing else is in the store."""
    tiled_kernels(dtype, size)
    places = [(row, start + t) for row, start, count in feeds for t in range(count)]
    found = case(dtype, size, groups, places=places, slots=160, after=after, scale=scale)
    for row, start, count in feeds:
        found.keys[row, :, start + count :] = found.values[row, :, start + count :] = math.nan
    return found


def fed(of: Case, feeds=FEEDS, first=0, before: Part | None = None) -> Tensor:
    """Output [N, H, D] for these feeds, the tokens before the `first` of which are 9."""
    kv_heads, tokens, groups, size = of.query.shape
    output = torch.full((tokens, kv_heads * groups * size), 9.0, dtype=of.query.dtype)
    begin = [first, *(first + torch.tensor([count for *_, count in feeds]).cumsum(0)).tolist()]
    rows = [(at, count, row, start) for at, (row, start, count) in zip(begin, feeds, strict=False)]
    of.kernels.attend_feeds(of.query, before, of.keys, of.values, torch.tensor(rows), of.scaling, output)
    return output.unflatten(-1, (-1, size))


def random_prefix(of: Case) -> Part:
    """Attention to a prefix for the tokens that come `after` one."""
    kv_heads, tokens, groups, size = of.query.shape
    output = random(tokens, kv_heads * groups, size, dtype=of.query.dtype, seed=6)
    logsum = 4.0 + random(tokens, kv_heads * groups, dtype=torch.float32, seed=7)
    return of.part(output, torch.where(torch.tensor(of.after)[:, None], logsum, -torch.inf))


TOKENS = sum(count for *_, count in FEEDS)
AFTER = {"none": [False] * TOKENS, "all": [True] * TOKENS, "some": [n >= 45 for n in range(TOKENS)]}


@pytest.mark.parametrize("after", AFTER.values(), ids=AFTER)
@pytest.mark.parametrize(("size", "groups"), [(32, 1), (64, 3), (64, 7), (128, 5)])
def test_feeds_attend_to_their_rows_and_to_a_prefix(dtype, size, groups, after):
    """Slots that no token has filled hold NaN."""
    given = feeds_case(dtype, size, groups, after=after)
    found = fed(given, before=given.part(*given.expected(own=False)) if any(after) else None)
    check(found, given.expected()[0])
    assert close(found, given.expected()[0])


@pytest.mark.parametrize("count", [1, 10, 11, 31, 32, 33, 64])
@pytest.mark.parametrize("start", [0, 1, 31, 32, 96])
def test_feeds_of_any_length_from_any_slot(dtype, start, count):
    given = feeds_case(dtype, feeds=[(0, start, count)], after=[True] * count)
    found = fed(given, [(0, start, count)], before=given.part(*given.expected(own=False)))
    check(found, given.expected()[0])


@pytest.mark.parametrize("scale", [0.0, 30.0, 1000.0])
def test_scores_of_feeds_may_lie_far_apart(dtype, scale):
    given = feeds_case(dtype, after=AFTER["some"], scale=scale)
    check(fed(given, before=given.part(*given.expected(own=False))), given.expected()[0])


def test_feeds_set_their_own_tokens_only(dtype):
    given = feeds_case(dtype)
    found = fed(given, FEEDS[1:], first=40)
    assert torch.equal(found[:40], torch.full_like(found[:40], 9.0))
    assert torch.equal(found[40:], fed(given)[40:])


def test_a_feed_gets_the_same_bits_alone_and_beside_others(dtype):
    given = feeds_case(dtype, after=AFTER["some"])
    before = random_prefix(given)
    together, first = fed(given, before=before), 0
    for feed in FEEDS:
        tokens = slice(first, first + feed[2])
        assert torch.equal(fed(given, [feed], first, before)[tokens], together[tokens])
        first = tokens.stop


def test_nothing_depends_on_the_number_of_threads(dtype, threads):
    given = feeds_case(dtype, after=AFTER["some"])
    before, results = random_prefix(given), []
    for number in (1, 2, 3):
        threads(number)
        results.append(fed(given, before=before))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])
