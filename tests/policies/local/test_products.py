"""Products with packed weights: the matrix tiles' and oneDNN's against slow references in torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from deedrl.policies.local.compiled.kernels import Kernels, Norm
from deedrl.policies.local.packed import packed_weight

pytestmark = pytest.mark.usefixtures("compiler")

DTYPE = torch.bfloat16
TOKENS = [1, 31, 32, 33, 64, 100, 513, 1100]


@pytest.fixture
def kernels() -> Kernels:
    found = Kernels(2, 2, 32, DTYPE)
    if not found.tiled:
        pytest.skip("tiles are there on processors with AMX only")
    return found


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DTYPE)


def layer(inputs: int, outputs: int, *, bias: bool = True, seed: int = 1) -> nn.Linear:
    made = nn.Linear(inputs, outputs, bias=bias).to(DTYPE)
    with torch.no_grad():
        made.weight.copy_(random(outputs, inputs, seed=seed) / inputs**0.5)
        if bias:
            made.bias.copy_(random(outputs, seed=seed + 1))
    return made


def weight_and_bias(of: nn.Linear) -> tuple[Tensor, Tensor | None]:
    return of.weight.detach(), None if of.bias is None else of.bias.detach()


def normed(x: Tensor, norm: Norm) -> Tensor:
    """Rounded before and after the weight, as models do it."""
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + norm.epsilon)
    return (scaled.to(DTYPE).float() * norm.weight.float()).to(DTYPE)


def product(x: Tensor, *layers: nn.Linear) -> Tensor:
    parts = [(weight.double(), 0.0 if bias is None else bias.double()) for weight, bias in map(weight_and_bias, layers)]
    return torch.cat([x.double() @ weight.T + bias for weight, bias in parts], dim=1)


def check(found: Tensor, expected: Tensor) -> None:
    """One rounding to bf16 of each number, and what sums in another order are apart."""
    assert found.dtype == DTYPE
    torch.testing.assert_close(found.double(), expected, rtol=1 / 200, atol=1e-3)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize(("inputs", "outputs"), [(32, 32), (64, 96), (576, 960)])
def test_product_of_any_number_of_tokens(kernels, tokens, inputs, outputs):
    x, of = random(tokens, inputs), layer(inputs, outputs)
    check(packed_weight([of], weight_and_bias, kernels).times(x), product(x, of))


@pytest.mark.parametrize("tokens", TOKENS)
def test_norm_before_and_sum_after(kernels, tokens):
    x, other, of = random(tokens, 64), random(tokens, 96, seed=5), layer(64, 96, bias=False)
    norm = Norm(random(64, seed=6), 1e-5)
    packed = packed_weight([of], weight_and_bias, kernels)
    check(packed.times(x, norm=norm), product(normed(x, norm), of))
    check(packed.times(x, other=other), product(x, of) + other.double())
    check(packed.times(x, norm=norm, other=other), product(normed(x, norm), of) + other.double())


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("bias", [False, True])
def test_gate(kernels, tokens, bias):
    x = 3 * random(tokens, 64)
    gate, inputs = (layer(64, 48, bias=bias, seed=seed) for seed in (1, 3))
    found = packed_weight([gate, inputs], weight_and_bias, kernels, gated=True).times(x)
    check(found, F.silu(product(x, gate)) * product(x, inputs))


def test_gate_far_from_zero(kernels):
    x = torch.full((2, 32), 100.0, dtype=DTYPE)
    x[1] = -100.0
    gate, inputs = layer(32, 16, bias=False), layer(32, 16, bias=False, seed=3)
    with torch.no_grad():
        gate.weight.fill_(1.0)
    found = packed_weight([gate, inputs], weight_and_bias, kernels, gated=True).times(x)
    check(found[:1], (3200.0 * product(x, inputs))[:1])
    assert not found[1].any()


def test_layers_that_read_the_same_lie_one_below_the_other(kernels):
    x, parts = random(40, 64), [layer(64, 32, bias=False), layer(64, 64, bias=True, seed=3)]
    check(packed_weight(parts, weight_and_bias, kernels).times(x), product(x, *parts))


def test_inputs_with_gaps_in_memory(kernels):
    x, other, of = random(40, 128)[:, ::2], random(32, 40, seed=2).T, layer(64, 32)
    check(packed_weight([of], weight_and_bias, kernels).times(x, other=other), product(x, of) + other.double())


def test_numbers_of_one_token_stay_with_it(kernels):
    """Rows are taken 32 at a time; what one of them holds reaches no other."""
    x, of = random(40, 64), layer(64, 96)
    norm = Norm(random(64, seed=6), 1e-5)
    x[7], x[35] = torch.nan, torch.inf
    for given in (None, norm):
        found = packed_weight([of], weight_and_bias, kernels).times(x, norm=given)
        others = [row for row in range(40) if row not in (7, 35)]
        assert found[others].isfinite().all()
        assert found[7].isnan().all()


@pytest.mark.parametrize(("inputs", "outputs"), [(48, 64), (64, 48), (20, 7)])
def test_sizes_that_tiles_cannot_hold_go_to_onednn(kernels, inputs, outputs):
    x, other, of = random(40, inputs), random(40, outputs, seed=5), layer(inputs, outputs)
    norm = Norm(random(inputs, seed=6), 1e-5)
    packed = packed_weight([of], weight_and_bias, kernels)
    torch.testing.assert_close(packed.times(x).double(), product(x, of), rtol=1 / 100, atol=0.01)
    found = packed.times(x, norm=norm, other=other)
    torch.testing.assert_close(found.double(), product(normed(x, norm), of) + other.double(), rtol=1 / 100, atol=0.02)


def test_nothing_depends_on_the_number_of_threads(kernels):
    x, of = random(100, 64), layer(64, 96)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(packed_weight([of], weight_and_bias, kernels).times(x, norm=Norm(random(64), 1e-5)))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
