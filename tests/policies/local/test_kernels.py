"""The compiled functions against slow references in torch, in float32 and bf16."""

from __future__ import annotations

import math

import pytest
import torch
from kernel_cases import DTYPES, KV_HEADS, case, check, close, kernels_for, random, tiled_kernels
from torch import Tensor

from deedrl.policies.local.compiled.kernels import HeadNorms, Places, Projected, Rotation

HEADS = [(16, 1), (48, 3), (64, 3), (64, 7), (128, 1), (128, 7)]
"""Sizes of heads, and query heads to each key/value head."""
pytestmark = [pytest.mark.usefixtures("compiler"), pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "bf16"])]


# ------------------------------------------------------------ norm and gate


def reference_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    wide = x.double()
    return wide / (wide.square().mean(-1, keepdim=True) + epsilon).sqrt() * weight.double()


def test_norm_of_two_numbers_by_hand(dtype):
    """The mean square of 1 and 7 is 25, of which the root is 5; with 24 added it is 7."""
    weight = torch.tensor([2.0, 1.0], dtype=dtype)
    found = kernels_for(dtype).rms_norm(torch.tensor([[1.0, 7.0]], dtype=dtype), weight, 0.0)
    check(found, torch.tensor([[0.4, 1.4]]))
    found = kernels_for(dtype).rms_norm(torch.tensor([[1.0, 7.0]], dtype=dtype), weight, 24.0)
    check(found, torch.tensor([[2 / 7, 1.0]]))


@pytest.mark.parametrize("tokens", [1, 7])
@pytest.mark.parametrize("size", [64, 100])
def test_norm_of_every_token_by_itself(dtype, tokens, size):
    hidden = random(tokens, size, dtype=dtype) * torch.arange(1, tokens + 1)[:, None].to(dtype)
    weight = random(size, dtype=dtype, seed=1)
    check(kernels_for(dtype).rms_norm(hidden, weight, 1e-5), reference_norm(hidden, weight, 1e-5))


def test_norm_of_what_has_gaps_in_memory(dtype):
    hidden, weight = random(5, 128, dtype=dtype)[:, ::2], torch.ones(64, dtype=dtype)
    check(kernels_for(dtype).rms_norm(hidden, weight, 1e-5), reference_norm(hidden, weight, 1e-5))


def test_gate_by_hand(dtype):
    """SiLU(0) is 0, SiLU(ln 3) is 3/4 ln 3; far from 0 it is 0 or its input."""
    gates, others = [0.0, math.log(3), 200.0, -200.0], [5.0, 2.0, 3.0, 3.0]
    found = kernels_for(dtype).gated(torch.tensor([[*gates, *others]], dtype=dtype))
    check(found, torch.tensor([[0.0, 1.5 * math.log(3), 600.0, 0.0]]))


@pytest.mark.parametrize("size", [64, 100])
def test_gate_of_every_token(dtype, size):
    products = random(5, 2 * size, dtype=dtype, scale=3.0)
    gates, others = products.double().chunk(2, -1)
    check(kernels_for(dtype).gated(products), gates * gates.sigmoid() * others)


# ------------------------------------------------------------ queries, keys and values put where they belong


def placed(dtype, size, groups, norms):
    """Five tokens into rows 2 and 0 of three; query, and caches that held 7 everywhere."""
    kernels = kernels_for(dtype, size, groups)
    products = random(5, (groups + 2) * KV_HEADS * size, dtype=dtype)
    angles = torch.arange(5.0)[:, None] / torch.arange(1.0, size // 2 + 1)
    rotation = Rotation(*(part(torch.cat([angles, angles], -1)).to(dtype) for part in (torch.cos, torch.sin)))
    keys, values = (torch.full((3, KV_HEADS, 8, size), 7.0, dtype=dtype) for _ in range(2))
    to = Places(torch.tensor([2, 2, 0, 0, 0]), torch.tensor([4, 5, 0, 1, 7]))
    query = kernels.place(Projected(products, rotation, norms), keys, values, to)
    return products.unflatten(-1, (-1, size)), rotation, to, query, keys, values


def rotated(heads: Tensor, rotation: Rotation) -> Tensor:
    """Heads [N, .., D] of tokens: each pair of numbers, half a head apart, is turned by an angle."""
    cosine, sine = (part.double()[:, None] for part in rotation)
    first, second = heads.double().chunk(2, -1)
    return heads.double() * cosine + torch.cat([-second, first], -1) * sine


@pytest.mark.parametrize("normed", [False, True], ids=["plain", "head_norms"])
@pytest.mark.parametrize(("size", "groups"), [(16, 1), (64, 3)])
def test_queries_and_keys_are_rotated_and_values_are_not(dtype, size, groups, normed):
    weights = [random(size, dtype=dtype, seed=seed) for seed in (1, 2)]
    norms = HeadNorms(*weights, 1e-5) if normed else None
    heads, rotation, to, query, keys, values = placed(dtype, size, groups, norms)
    queries, new_keys, new_values = heads.split([groups * KV_HEADS, KV_HEADS, KV_HEADS], dim=1)
    if normed:
        queries, new_keys = (reference_norm(x, w, 1e-5) for x, w in zip((queries, new_keys), weights, strict=True))
    by_head = rotated(queries, rotation).unflatten(1, (KV_HEADS, groups)).transpose(0, 1)
    tolerance = 1e-5 if dtype == torch.float32 else 0.03  # of bf16, after two roundings more
    torch.testing.assert_close(query.double(), by_head, rtol=tolerance, atol=tolerance)
    found = keys[to.rows, :, to.slots].double()
    torch.testing.assert_close(found, rotated(new_keys, rotation), rtol=tolerance, atol=tolerance)
    assert torch.equal(values[to.rows, :, to.slots], new_values)


def test_caches_are_written_nowhere_else(dtype):
    *_, to, _, keys, values = placed(dtype, 16, 3, None)
    for cache in (keys, values):
        cache[to.rows, :, to.slots] = 7.0
        assert torch.equal(cache, torch.full_like(cache, 7.0))


# ------------------------------------------------------------ gradients


def gradients_of(function, *inputs: Tensor):
    """A random direction of what `function` gives for inputs in float64, and its gradients by autograd."""
    leaves = [tensor.double().requires_grad_() for tensor in inputs]
    output = function(*leaves)
    direction = random(*output.shape, dtype=inputs[0].dtype, seed=9)
    return direction, torch.autograd.grad(output, leaves, direction.double())


@pytest.mark.parametrize("size", [64, 100])
def test_gradient_of_a_norm_is_added_to_what_is_there(dtype, size):
    hidden, weight, total = (random(5, size, dtype=dtype, seed=seed) for seed in (0, 1, 2))
    direction, [expected] = gradients_of(lambda x: reference_norm(x, weight[0], 1e-5), hidden)
    expected = total.double() + expected
    kernels_for(dtype).add_rms_norm_gradient(hidden, weight[0], 1e-5, direction, total)
    check(total, expected)


@pytest.mark.parametrize("size", [64, 100])
def test_gradient_of_the_gate_and_its_result(dtype, size):
    products = random(5, 2 * size, dtype=dtype, scale=3.0)
    direction, [expected] = gradients_of(
        lambda x: torch.nn.functional.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1], products
    )
    kernels = kernels_for(dtype)
    result, found = kernels.gated_gradient(products, direction)
    check(result, kernels.gated(products))
    check(found, expected)


def test_gradient_of_the_gate_far_from_zero_is_finite(dtype):
    products = torch.tensor([[200.0, -200.0, 2.0, 3.0]], dtype=dtype)
    _, found = kernels_for(dtype).gated_gradient(products, torch.ones(1, 2, dtype=dtype))
    check(found, torch.tensor([[2.0, 0.0, 200.0, 0.0]]))


def spread_case(dtype, size, groups, normed):
    """Seven tokens, rows of seven: products, rotation, norms and places."""
    weights = [random(size, dtype=dtype, seed=seed) for seed in (1, 2)]
    products = random(14, (groups + 2) * KV_HEADS * size, dtype=dtype)
    angles = torch.arange(14.0)[:, None] / torch.arange(1.0, size // 2 + 1)
    rotation = Rotation(*(part(torch.cat([angles, angles], -1)).to(dtype) for part in (torch.cos, torch.sin)))
    lines = torch.arange(14)
    return Projected(products, rotation, HeadNorms(*weights, 1e-5) if normed else None), Places(lines // 7, lines % 7)


def reference_spread(products: Tensor, projected: Projected, groups: int) -> Tensor:
    """Queries, keys and values [2, H + 2 K, 7, D]."""
    heads = products.double().unflatten(-1, (-1, projected.rotation.cosine.shape[1]))
    queries, keys, values = heads.split([groups * KV_HEADS, KV_HEADS, KV_HEADS], dim=1)
    if (norms := projected.norms) is not None:
        queries, keys = reference_norm(queries, norms.query, 1e-5), reference_norm(keys, norms.key, 1e-5)
    turned = [rotated(part, projected.rotation) for part in (queries, keys)]
    return torch.cat([*turned, values], 1).unflatten(0, (2, 7)).transpose(1, 2)


@pytest.mark.parametrize("normed", [False, True], ids=["plain", "head_norms"])
@pytest.mark.parametrize(("size", "groups"), [(16, 1), (64, 3)])
def test_spread_lays_heads_out_row_by_row_and_its_gradient_gathers_them(dtype, size, groups, normed):
    projected, at = spread_case(dtype, size, groups, normed)
    kernels = kernels_for(dtype, size, groups)
    direction, [expected] = gradients_of(lambda x: reference_spread(x, projected, groups), projected.products)
    tolerance = 1e-5 if dtype == torch.float32 else 0.05  # of bf16, after two roundings more
    found = torch.cat(kernels.spread(projected, at, 2), dim=1).double()
    torch.testing.assert_close(
        found, reference_spread(projected.products, projected, groups), rtol=tolerance, atol=tolerance
    )
    parts = direction.split([groups * KV_HEADS, KV_HEADS, KV_HEADS], dim=1)
    torch.testing.assert_close(
        kernels.spread_gradient(projected, at, *parts).double(), expected, rtol=tolerance, atol=tolerance
    )


# ------------------------------------------------------------ attention


MIXED = [(2, 9), (0, 0), (2, 10), (2, 11), (1, 63), (0, 1)]
"""Rows out of order, several tokens a row."""


@pytest.mark.parametrize("after", [[False] * 6, [True] * 6, [True, False] * 3], ids=["none", "all", "some"])
@pytest.mark.parametrize(("size", "groups"), HEADS)
def test_attention_of_tokens_of_many_rows_with_and_without_a_prefix(dtype, size, groups, after):
    mixed = case(dtype, size, groups, places=MIXED, after=after)
    check(mixed.attended(), mixed.expected()[0])


@pytest.mark.parametrize("seen", [1, 2, 15, 16, 17, 63, 64, 65, 100, 129, 200])
def test_attention_to_any_number_of_slots(dtype, seen):
    for size, groups in [(16, 1), (64, 3)]:
        one = case(dtype, size, groups, places=[(0, seen - 1)], slots=seen, after=[True])
        check(one.attended(), one.expected()[0])


def test_attention_to_one_slot_is_its_value(dtype):
    one = case(dtype, 64, 3, places=[(0, 0)])
    assert torch.equal(one.attended()[0], one.values[0, :, 0].repeat_interleave(3, dim=0))


def test_slots_after_a_tokens_own_are_never_read(dtype):
    mixed = case(dtype, 64, 3, places=[(0, 2), (1, 20)])
    expected = mixed.expected()[0]
    for cache in (mixed.keys, mixed.values):
        cache[0, :, 3:] = cache[1, :, 21:] = math.nan
    check(mixed.attended(), expected)


@pytest.mark.parametrize("scale", [0.0, 30.0, 1000.0])
def test_scores_may_lie_far_apart(dtype, scale):
    """At 1000 they are thousands apart, between prefix and own slots too, and all weight lies on one value."""
    mixed = case(dtype, 64, 3, places=MIXED, after=[True, False] * 3, scale=scale)
    check(mixed.attended(), mixed.expected()[0])


@pytest.mark.parametrize("logsum", [-1e30, -500.0, 500.0, 1e30])
def test_a_prefix_that_outweighs_all_or_nothing(dtype, logsum):
    one = case(dtype, 64, 3, places=[(0, 40)])
    output = random(1, 3 * KV_HEADS, 64, dtype=dtype, seed=5)
    before = one.part(output, torch.full((1, 3 * KV_HEADS), logsum))
    found = one.kernels.attend(one.query, before, one.keys, one.values, one.at, one.scaling)
    check(found.reshape(output.shape), output if logsum > 0 else one.expected()[0])


def test_the_tokens_left_for_join_are_not_touched(dtype):
    mixed = case(dtype, places=MIXED, after=[True, False] * 3)
    check(mixed.attended(tokens=4)[:4], mixed.expected()[0][:4])


@pytest.mark.parametrize("after", [[False] * 6, [True] * 6, [True, False] * 3], ids=["none", "all", "some"])
@pytest.mark.parametrize(("size", "groups"), [(16, 1), (64, 3), (128, 7)])
def test_join_of_own_part_and_prefix_is_one_softmax(dtype, size, groups, after):
    """The last four tokens are joined, from a part that holds them padded and in another order."""
    mixed = case(dtype, size, groups, places=MIXED, after=after)
    output, logsum = mixed.expected(2, before=False)
    at = torch.tensor([5, 0, 3, 2])
    padded = torch.full((6, *output.shape[1:]), 9.0, dtype=output.dtype).index_copy_(0, at, output)
    sums = torch.full((6, *logsum.shape[1:]), 9.0, dtype=logsum.dtype).index_copy_(0, at, logsum)
    joined = mixed.attended(tokens=2).flatten(1)
    before = mixed.part(*mixed.expected(own=False)) if any(after) else None
    mixed.kernels.join(mixed.part(padded, sums), at, before, joined)
    check(joined.reshape(6, -1, size), mixed.expected()[0])


# ------------------------------------------------------------ attention with tiles


def plain_attention(query, keys, values, mask, scaling):
    scores = query.double() @ keys.double().transpose(-1, -2) * scaling + (0.0 if mask is None else mask.double())
    return scores.softmax(-1) @ values.double(), scores.logsumexp(-1)[..., None]


def tiled_case(size, queries, slots, rows=2, masks=2):
    lengths = enumerate((queries, slots, slots))
    parts = [random(rows, 3, length, size, dtype=torch.bfloat16, seed=seed) for seed, length in lengths]
    seen = torch.rand(masks, 1, queries, slots, generator=torch.Generator().manual_seed(4)) < 0.6
    seen[..., slots // 2] = True
    return (*parts, torch.where(seen, 0.0, -torch.inf).bfloat16(), size**-0.5)


@pytest.mark.parametrize("size", [32, 64, 128])
@pytest.mark.parametrize(("queries", "slots"), [(1, 1), (31, 17), (32, 32), (33, 64), (70, 100), (200, 333)])
def test_tiled_attention_and_its_gradients(dtype, size, queries, slots):
    kernels = tiled_kernels(dtype, size)
    *parts, mask, scaling = tiled_case(size, queries, slots)
    leaves = [part.double().requires_grad_() for part in parts]
    output, logsum = plain_attention(*leaves, mask, scaling)
    direction = random(*output.shape, dtype=dtype, seed=9)
    expected = torch.autograd.grad(output, leaves, direction.double())
    part = kernels.attend_tiled(*parts, mask, scaling)
    assert close(part.output, output)
    torch.testing.assert_close(part.logsum.double(), logsum, rtol=1e-5, atol=1e-5)
    found = kernels.attend_tiled_gradients(*parts, mask, scaling, part, direction)
    # Gradients of one query to one key are 0, and rounding is all that is left.
    assert queries == slots == 1 or all(close(one, other) for one, other in zip(found, expected, strict=True))
    assert close(found[2], expected[2])


def test_tiled_attention_without_a_mask_and_with_one_for_all_rows(dtype):
    kernels = tiled_kernels(dtype)
    *parts, mask, scaling = tiled_case(64, 40, 50, masks=1)
    for given in (None, mask):
        assert close(kernels.attend_tiled(*parts, given, scaling).output, plain_attention(*parts, given, scaling)[0])


def test_tiled_attention_of_scores_that_lie_far_apart(dtype):
    kernels = tiled_kernels(dtype)
    query, keys, values, mask, _ = tiled_case(64, 40, 50)
    part = kernels.attend_tiled(query, keys, values, mask, 30.0)
    output, logsum = plain_attention(query, keys, values, mask, 30.0)
    assert close(part.output, output)
    torch.testing.assert_close(part.logsum.double(), logsum, rtol=1e-5, atol=1e-3)
    found = kernels.attend_tiled_gradients(query, keys, values, mask, 30.0, part, torch.ones_like(query))
    assert all(bool(gradient.isfinite().all()) for gradient in found)


def test_a_mask_of_another_shape_is_refused(dtype):
    kernels = tiled_kernels(dtype)
    query, keys, values, mask, scaling = tiled_case(64, 40, 50)
    with pytest.raises(ValueError, match=r"expected a mask \[\.\., 1, 40, 50\], got \(2, 1, 40, 49\)"):
        kernels.attend_tiled(query, keys, values, mask[..., :49], scaling)


# ------------------------------------------------------------ threads


def test_nothing_depends_on_the_number_of_threads(dtype, threads):
    results = []
    for number in (1, 2, 3):
        threads(number)
        mixed = case(dtype, 64, 3, places=[(n % 7, 10 * (n // 7) + n % 3) for n in range(40)], after=[True, False] * 20)
        hidden, weight = random(40, 64, dtype=dtype), random(64, dtype=dtype, seed=1)
        *_, query, keys, values = placed(dtype, 64, 3, HeadNorms(weight, weight, 1e-5))
        calls = mixed.kernels
        projected, at = spread_case(dtype, 64, 3, True)
        total = hidden.clone()
        calls.add_rms_norm_gradient(hidden, weight, 1e-5, hidden, total)
        gradients = [total, *calls.gated_gradient(hidden, hidden[:, :32].contiguous())]
        gradients.append(calls.spread_gradient(projected, at, *calls.spread(projected, at, 2)))
        if calls.tiled:
            *parts, mask, scaling = tiled_case(64, 70, 100)
            part = calls.attend_tiled(*parts, mask, scaling)
            gradients += [*part, *calls.attend_tiled_gradients(*parts, mask, scaling, part, parts[0])]
        results.append(
            [
                *[mixed.attended(), calls.rms_norm(hidden, weight, 1e-5), calls.gated(hidden)],
                *[query, keys, values, *gradients],
            ]
        )
    for other in results[1:]:
        assert all(torch.equal(one, same) for one, same in zip(results[0], other, strict=True))
