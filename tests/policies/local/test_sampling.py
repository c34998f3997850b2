"""Draws against the exact distribution, and the edges of inverting a cumulative sum."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deedrl.policies.local.compiled.kernels import Kernels
from deedrl.policies.local.sampling import BLOCK, sample_tokens

ALMOST_ONE = 1 - 2.0**-53


@pytest.fixture(params=["torch", "compiled"])
def sampled(request):
    """Both implementations."""
    if request.param == "torch":
        return sample_tokens
    request.getfixturevalue("compiler")
    return lambda logits, *others: Kernels(1, 1, 16, logits.dtype).draw(logits, *others)


@pytest.fixture
def draw(sampled):
    """One draw per uniform from the same row of logits."""

    def drawn(logits, uniforms, temperature=1.0):
        row = torch.tensor(logits, dtype=torch.float32)[None]
        which = torch.zeros(len(uniforms), dtype=torch.long)
        return sampled(row, torch.tensor([temperature]), torch.tensor(uniforms, dtype=torch.float64), which)

    return drawn


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_frequencies_follow_the_distribution(sampled, temperature):
    """Chi-square with 199 degrees of freedom: mean 199, standard deviation 20; 300 is five of them above."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(200, generator=generator)
    draws = 100_000
    uniforms = torch.rand(draws, dtype=torch.float64, generator=generator)
    expected = (logits.double() / temperature).softmax(-1) * draws
    tokens, _ = sampled(logits[None], torch.tensor([temperature]), uniforms, torch.zeros(draws, dtype=torch.long))
    found = torch.bincount(tokens, minlength=200)
    assert float(((found - expected) ** 2 / expected).sum()) < 300


def test_draw_inverts_the_cumulative_distribution(draw):
    logits = [math.log(p) for p in (0.1, 0.2, 0.3, 0.4)]
    tokens, _ = draw(logits, [0.0, 0.09, 0.11, 0.29, 0.31, 0.59, 0.61, 0.99, ALMOST_ONE])
    assert tokens.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 3]


def test_logprob_is_that_of_the_drawn_token(draw):
    logits = [math.log(p) for p in (0.1, 0.2, 0.3, 0.4)]
    _, logprobs = draw(logits, [0.05, 0.25, 0.5, 0.9])
    assert logprobs.exp().tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4], abs=1e-6)


def test_temperature_divides_logits_before_draw_and_logprob(draw):
    # At temperature 0.5 probabilities are squared and normalised: 1/10 and 9/10.
    tokens, logprobs = draw([math.log(0.25), math.log(0.75)], [0.09, 0.11], temperature=0.5)
    assert tokens.tolist() == [0, 1]
    assert logprobs.exp().tolist() == pytest.approx([0.1, 0.9], abs=1e-6)


def test_greedy_takes_the_largest_and_reports_its_logprob_at_temperature_one(draw):
    tokens, logprobs = draw([math.log(0.25), math.log(0.75)], [0.0, 0.5, ALMOST_ONE], temperature=0.0)
    assert tokens.tolist() == [1, 1, 1]
    assert logprobs.exp().tolist() == pytest.approx([0.75] * 3, abs=1e-6)


def test_rows_keep_their_own_temperatures(sampled):
    logits = torch.tensor([[math.log(0.25), math.log(0.75)]]).repeat(3, 1)
    uniforms = torch.tensor([0.2, 0.05, 0.2, 0.05], dtype=torch.float64)
    tokens, logprobs = sampled(logits, torch.tensor([0.0, 1.0, 0.5]), uniforms, torch.tensor([2, 0, 1, 2]))
    assert tokens.tolist() == [1, 1, 0, 0]
    assert logprobs.exp().tolist() == pytest.approx([0.9, 0.75, 0.25, 0.1], abs=1e-6)


@pytest.mark.parametrize("uniform", [0.0, 0.5, ALMOST_ONE])
@pytest.mark.parametrize("vocabulary", [3, BLOCK, BLOCK + 1, 5 * BLOCK + 7])
def test_forbidden_tokens_are_never_drawn_at_either_end(draw, uniform, vocabulary):
    for allowed in {0, vocabulary // 2, vocabulary - 1}:
        logits = [-math.inf] * vocabulary
        logits[allowed] = 1.0
        tokens, logprobs = draw(logits, [uniform])
        assert tokens.tolist() == [allowed]
        assert logprobs.tolist() == [0.0]


@given(
    logits=st.lists(st.floats(-60, 60, width=32) | st.just(-math.inf), min_size=1, max_size=200),
    uniform=st.sampled_from([0.0, ALMOST_ONE]) | st.floats(0, 1, exclude_max=True),
    temperature=st.sampled_from([0.0, 0.6, 1.0, 3.0]),
)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_drawn_token_is_allowed_and_its_logprob_is_right(draw, logits, uniform, temperature):
    if all(logit == -math.inf for logit in logits):
        return
    tokens, logprobs = draw(logits, [uniform], temperature)
    token = int(tokens[0])
    assert 0 <= token < len(logits)
    assert logits[token] > -math.inf
    expected = (torch.tensor(logits, dtype=torch.float64) / (temperature or 1.0)).log_softmax(-1)[token]
    assert float(logprobs[0]) == pytest.approx(float(expected), abs=2e-5, rel=1e-5)


def test_no_mass_is_shifted_in_a_vocabulary_of_realistic_size(sampled):
    """150 000 equal logits: a float32 cumulative sum would be off by many tokens at the far end."""
    vocabulary = 150_000
    wanted = torch.tensor([0, 1, 74_999, 149_998, 149_999])
    uniforms = (wanted.double() + 0.5) / vocabulary
    tokens, _ = sampled(torch.zeros(5, vocabulary), torch.ones(5), uniforms, torch.arange(5))
    assert tokens.tolist() == wanted.tolist()


def test_bfloat16_logits_are_sampled_in_float32(sampled):
    logits = torch.tensor([[0.0, 1.0, 2.0]], dtype=torch.bfloat16)
    _, logprobs = sampled(
        logits, torch.ones(1), torch.tensor([0.999], dtype=torch.float64), torch.zeros(1, dtype=torch.long)
    )
    assert logprobs.dtype == torch.float32
    assert float(logprobs[0]) == pytest.approx(2 - math.log(1 + math.e + math.e**2), abs=1e-6)
