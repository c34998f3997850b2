"""Objectives, KL estimators and sampler weights: by hand, against slow loops, and where exp overflows."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deedrl.training.losses import policy_loss
from deedrl.training.objectives import (
    DIVERGENCES,
    MAX_LOG_RATIO,
    OBJECTIVES,
    cispo,
    clipped,
    k1,
    k2,
    k3,
    sampler_weights,
    sequence_clipped,
)

CLIPS = {"clip_low": 0.2, "clip_high": 0.3}
token = st.tuples(st.floats(-20, 0), st.floats(-20, 0), st.floats(-3, 3), st.integers(0, 2))


def bounded(value):
    return max(-MAX_LOG_RATIO, min(MAX_LOG_RATIO, value))


def slow_loss_and_gradient(name, rows):
    """Each token's loss and its gradient by the token's log-probability, as the papers write them."""
    losses, gradients = [], []
    for logprob, before, advantage, sample in rows:
        gap = logprob - before
        if name == "sequence_clipped":
            gaps = [a - b for a, b, _, s in rows if s == sample]
            gap = sum(gaps) / len(gaps)
        ratio = math.exp(bounded(gap))
        held = max(0.8, min(1.3, ratio))
        if name == "cispo":
            losses.append(-held * advantage * logprob)
            gradients.append(-held * advantage)
        else:
            losses.append(-min(ratio * advantage, held * advantage))
            free = ratio * advantage <= held * advantage and (name == "sequence_clipped" or abs(gap) < MAX_LOG_RATIO)
            gradients.append(-ratio * advantage if free else 0.0)
    return losses, gradients


@pytest.mark.parametrize("name", OBJECTIVES)
@given(rows=st.lists(token, min_size=1, max_size=8))
@settings(max_examples=100, deadline=None)
def test_objectives_equal_their_slow_loops(name, rows):
    columns = [torch.tensor(column, dtype=torch.float64) for column in list(zip(*rows, strict=True))[:3]]
    logprobs = columns[0].requires_grad_()
    part = policy_loss(
        *columns,
        torch.ones(len(rows)),
        **CLIPS,
        objective=OBJECTIVES[name],
        sample_of=torch.tensor([r[3] for r in rows]),
    )
    part.loss.backward()
    losses, gradients = slow_loss_and_gradient(name, rows)
    assert float(part.loss.detach()) == pytest.approx(sum(losses), rel=1e-9, abs=1e-9)
    edges = (math.log(0.8), math.log(1.3), MAX_LOG_RATIO, -MAX_LOG_RATIO)  # where either gradient is one
    ties = [abs(a - b - edge) < 1e-9 for a, b, _, _ in rows for edge in edges]
    if not any(ties):
        assert logprobs.grad.tolist() == pytest.approx(gradients, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_on_policy_all_objectives_have_the_gradient_of_the_policy(name):
    logprobs = torch.tensor([-1.0, -2.0, -0.5], requires_grad=True)
    advantages, weights = torch.tensor([2.0, -3.0, 1.0]), torch.tensor([0.5, 0.25, 1.0])
    part = policy_loss(
        logprobs,
        logprobs.detach(),
        advantages,
        weights,
        **CLIPS,
        objective=OBJECTIVES[name],
        sample_of=torch.tensor([0, 0, 1]),
    )
    part.loss.backward()
    assert logprobs.grad.tolist() == pytest.approx((-weights * advantages).tolist())
    assert int(part.clipped) == 0


def test_a_sequence_has_one_ratio_and_clips_whole():
    """Ratios 2 and 0.5 have the mean 1, so nothing is clipped; 2 and 2 are clipped both."""
    logprobs = torch.tensor([math.log(2), math.log(0.5), math.log(2), math.log(2)], requires_grad=True)
    ones, sample_of = torch.ones(4), torch.tensor([0, 0, 1, 1])
    part = policy_loss(logprobs, torch.zeros(4), ones, ones, **CLIPS, objective=sequence_clipped, sample_of=sample_of)
    part.loss.backward()
    assert float(part.loss.detach()) == pytest.approx(-(1 + 1 + 1.3 + 1.3))
    assert logprobs.grad.tolist() == pytest.approx([-1, -1, 0, 0])
    assert int(part.clipped) == 2


def test_cispo_drops_no_token():
    """A token far outside the clip range keeps a gradient with the bound as its weight; with PPO it has none."""
    for objective, expected in ((cispo, -1.3), (clipped, 0.0)):
        logprobs = torch.tensor([math.log(5)], requires_grad=True)
        one = torch.ones(1)
        part = policy_loss(logprobs, torch.zeros(1), one, one, **CLIPS, objective=objective)
        part.loss.backward()
        assert logprobs.grad.tolist() == pytest.approx([expected])
        assert int(part.clipped) == 1


# ------------------------------------------------------------ C08, C22


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", DIVERGENCES)
@pytest.mark.parametrize(("policy", "reference"), [(-120.0, -1.0), (-1.0, -120.0), (-1e4, 0.0), (0.0, -1e4)])
def test_C08_kl_estimates_far_from_the_reference_are_finite_in_value_and_gradient(name, dtype, policy, reference):
    logprobs = torch.tensor([policy, -1.0], dtype=dtype, requires_grad=True)
    value = DIVERGENCES[name](logprobs, torch.tensor([reference, -1.0], dtype=dtype)).sum()
    value.backward()
    assert torch.isfinite(value)
    assert torch.isfinite(logprobs.grad).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("divergence", DIVERGENCES)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_C08_every_loss_far_from_all_policies_is_finite_in_value_and_gradient(objective, divergence, dtype):
    logprobs = torch.tensor([-120.0, -1.0], dtype=dtype, requires_grad=True)
    others, ones = torch.tensor([-1.0, -120.0], dtype=dtype), torch.ones(2, dtype=dtype)
    part = policy_loss(
        logprobs,
        others,
        -ones,
        ones,
        **CLIPS,
        reference=others,
        kl_coefficient=0.1,
        objective=OBJECTIVES[objective],
        divergence=DIVERGENCES[divergence],
        correction=sampler_weights(logprobs.detach(), others, cap=2.0, band=None),
    )
    part.loss.backward()
    assert torch.isfinite(part.loss)
    assert torch.isfinite(logprobs.grad).all()


def test_C22_exploding_ratio_of_a_whole_sequence_is_clamped():
    logprobs = torch.tensor([300.0, 320.0], requires_grad=True)
    part = policy_loss(logprobs, torch.zeros(2), -torch.ones(2), torch.ones(2), **CLIPS, objective=sequence_clipped)
    part.loss.backward()
    assert float(part.loss.detach()) == pytest.approx(2 * math.exp(MAX_LOG_RATIO), rel=1e-6)
    assert torch.isfinite(logprobs.grad).all()


# ------------------------------------------------------------ estimates and weights


def test_kl_estimates_by_hand():
    logprob, reference = torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -1.0])
    assert k1(logprob, reference).tolist() == pytest.approx([0.5, -1.0])
    assert k2(logprob, reference).tolist() == pytest.approx([0.125, 0.5])
    assert k3(logprob, reference).tolist() == pytest.approx([math.exp(-0.5) - 0.5, math.exp(1.0) - 2.0])


def test_k1_and_k3_average_to_the_divergence_and_k2_does_not():
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.5, 0.3])
    exact = float((p * (p / q).log()).sum())
    mean = {name: float((p * estimate(p.log(), q.log())).sum()) for name, estimate in DIVERGENCES.items()}
    assert mean["k1"] == pytest.approx(exact, abs=1e-6)
    assert mean["k3"] == pytest.approx(exact, abs=1e-6)
    assert abs(mean["k2"] - exact) > 0.01


def test_weights_of_another_sampler_by_hand():
    before = torch.tensor([math.log(r) for r in (0.2, 0.8, 1.0, 1.9, 9.0)])
    sampled = torch.zeros(5)
    assert sampler_weights(before, sampled, cap=2.0, band=None).tolist() == pytest.approx([0.2, 0.8, 1.0, 1.9, 2.0])
    banded = sampler_weights(before, sampled, cap=1.5, band=(0.5, 5.0))
    assert banded.tolist() == pytest.approx([0.0, 0.8, 1.0, 1.5, 0.0])
    assert math.isfinite(float(sampler_weights(torch.tensor([0.0]), torch.tensor([-1e4]), cap=1e9, band=None)))


def test_corrected_tokens_keep_their_kl_and_their_ratio_is_to_the_policy_before():
    """By hand: the ratio is 1.1 / 1 whatever the sampler said, the weight of the first 0.5, of the second 0."""
    logprobs = torch.tensor([math.log(1.1), math.log(1.1)])
    part = policy_loss(
        logprobs,
        torch.tensor([math.log(2.0), -7.0]),
        torch.ones(2),
        torch.ones(2),
        **CLIPS,
        reference=torch.zeros(2),
        kl_coefficient=1.0,
        divergence=k1,
        before=torch.zeros(2),
        correction=torch.tensor([0.5, 0.0]),
    )
    assert float(part.loss) == pytest.approx(-0.5 * 1.1 + 2 * math.log(1.1), rel=1e-6)
    assert float(part.logprob_gap) == pytest.approx(math.log(2 / 1.1) + math.log(1.1) + 7, rel=1e-6)
