"""Losses against slow Python loops, by hand, and at the edges where exp overflows."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deedrl.training.losses import Silent, policy_loss, sample_weights, sft_loss, value_loss
from deedrl.training.objectives import MAX_LOG_RATIO, k3

finite = st.floats(-30, 0)
token = st.tuples(finite, finite, st.floats(-3, 3), st.floats(0, 1), finite)


def slow_policy_loss(rows, low, high, beta):
    """The documented formula, token by token."""
    total = 0.0
    for logprob, sampled, advantage, weight, reference in rows:
        ratio = math.exp(max(-MAX_LOG_RATIO, min(MAX_LOG_RATIO, logprob - sampled)))
        surrogate = min(ratio * advantage, max(1 - low, min(1 + high, ratio)) * advantage)
        d = max(-MAX_LOG_RATIO, min(MAX_LOG_RATIO, reference - logprob))
        total += weight * (-surrogate + beta * (math.exp(d) - d - 1))
    return total


def loss_of(logprobs, sampled, advantages=(1.0,), weights=(1.0,), **options):
    options = {"clip_low": 0.2, "clip_high": 0.28} | options
    columns = [torch.as_tensor(values) for values in (logprobs, sampled, advantages, weights)]
    return policy_loss(*columns, **options)


@given(rows=st.lists(token, min_size=1, max_size=8), beta=st.sampled_from([0.0, 0.1, 1.0]))
@settings(max_examples=200, deadline=None)
def test_policy_loss_equals_its_slow_loop(rows, beta):
    logprobs, sampled, advantages, weights, reference = (
        torch.tensor(column, dtype=torch.float64) for column in zip(*rows, strict=True)
    )
    part = policy_loss(
        logprobs, sampled, advantages, weights, clip_low=0.2, clip_high=0.28, reference=reference, kl_coefficient=beta
    )
    assert float(part.loss) == pytest.approx(slow_policy_loss(rows, 0.2, 0.28, beta), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "clipped"),
    [
        (1.1, 1.0, -1.1, 0),
        (1.5, 1.0, -1.28, 1),
        (0.5, 1.0, -0.5, 0),
        (0.5, -1.0, 0.8, 1),
        (1.5, -1.0, 1.5, 0),
        (1.0, 0.0, 0.0, 0),
    ],
)
def test_clipping_by_hand(ratio, advantage, expected, clipped):
    part = loss_of([math.log(ratio)], [0.0], [advantage])
    assert float(part.loss) == pytest.approx(expected, abs=1e-6)
    assert int(part.clipped) == clipped


def test_gradient_on_policy_is_minus_advantage_times_weight():
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    loss_of(logprobs, [-1.0, -2.0], [2.0, -3.0], [0.5, 0.25]).loss.backward()
    assert logprobs.grad.tolist() == pytest.approx([-1.0, 0.75])


def test_clipped_token_has_no_gradient():
    logprobs = torch.tensor([math.log(1.5)], requires_grad=True)
    loss_of(logprobs, [0.0]).loss.backward()
    assert logprobs.grad.tolist() == [0.0]


# ------------------------------------------------------------ C08, C22


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("policy", "reference"), [(-120.0, -1.0), (-1.0, -120.0), (-1e4, 0.0), (0.0, -1e4)])
def test_C08_kl_estimate_far_from_the_reference_has_finite_value_and_gradient(dtype, policy, reference):
    logprobs = torch.tensor([policy, -1.0], dtype=dtype, requires_grad=True)
    value = k3(logprobs, torch.tensor([reference, -1.0], dtype=dtype)).sum()
    value.backward()
    assert torch.isfinite(value)
    assert torch.isfinite(logprobs.grad).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_C08_policy_loss_far_from_both_policies_is_finite_in_value_and_gradient(dtype):
    logprobs = torch.tensor([-120.0, -1.0], dtype=dtype, requires_grad=True)
    others = torch.tensor([-1.0, -120.0], dtype=dtype)
    ones = torch.ones(2, dtype=dtype)
    part = policy_loss(logprobs, others, -ones, ones, clip_low=0.2, clip_high=0.2, reference=others, kl_coefficient=0.1)
    part.loss.backward()
    assert torch.isfinite(part.loss)
    assert torch.isfinite(logprobs.grad).all()


def test_C22_exploding_ratio_is_clamped_counted_and_finite():
    logprobs = torch.tensor([20.0, 0.0], requires_grad=True)
    part = loss_of(logprobs, [0.0, 0.0], [-1.0, -1.0], [1.0, 1.0])
    part.loss.backward()
    assert int(part.clamped) == 1
    assert part.loss.item() == pytest.approx(math.exp(10) + 1, rel=1e-6)
    assert torch.isfinite(logprobs.grad).all()


def test_C22_long_row_of_small_deviations_is_not_multiplied_up():
    """Ratios are per token: 100 tokens off by 0.012 stay ratios of 1.012, none is clipped."""
    part = loss_of([0.012] * 100, [0.0] * 100, [1.0] * 100, [0.01] * 100)
    assert float(part.loss) == pytest.approx(-math.exp(0.012), rel=1e-5)
    assert (int(part.clipped), int(part.clamped)) == (0, 0)


@given(st.floats(-50, 0), st.floats(-50, 0))
def test_k3_is_never_negative_and_zero_where_policies_agree(a, b):
    assert float(k3(torch.tensor([a], dtype=torch.float64), torch.tensor([b], dtype=torch.float64))) >= 0
    assert float(k3(torch.tensor([a]), torch.tensor([a]))) == 0


def test_k3_averages_to_the_divergence():
    """Sum over a distribution of p · k3 = KL(p || q), as estimate and expectation agree."""
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.5, 0.3])
    expected = (p * (p / q).log()).sum()
    assert float((p * k3(p.log(), q.log())).sum()) == pytest.approx(float(expected), abs=1e-6)


def test_B17_logprob_gap_is_the_sum_of_absolute_differences():
    part = loss_of([-1.0, -2.0], [-1.5, -1.0], [0.0, 0.0], [1.0, 1.0])
    assert float(part.logprob_gap) == pytest.approx(1.5)


def test_approximate_kl_measures_how_far_the_policy_moved_from_the_sampler_and_has_no_gradient():
    """Mean of k3 over the sampler's distribution is KL(sampler || policy)."""
    sampler, policy = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.5, 0.3])
    found = [float(loss_of([q], [p]).approx_kl) for p, q in zip(sampler.log(), policy.log(), strict=True)]
    expected = (sampler * (sampler / policy).log()).sum()
    assert float((sampler * torch.tensor(found)).sum()) == pytest.approx(float(expected), abs=1e-6)
    far = loss_of(torch.tensor([-120.0], requires_grad=True), [-1.0]).approx_kl
    assert torch.isfinite(far)
    assert not far.requires_grad


# ------------------------------------------------------------ the critic's loss


def slow_value_loss(rows, clip):
    """The documented formula, token by token."""
    total = 0.0
    for value, recorded, returned, weight in rows:
        error = (value - returned) ** 2
        if clip is not None:
            near = recorded + max(-clip, min(clip, value - recorded))
            error = max(error, (near - returned) ** 2)
        total += weight * error / 2
    return total


@given(
    rows=st.lists(st.tuples(st.floats(-3, 3), st.floats(-3, 3), st.floats(-3, 3), st.floats(0, 1)), max_size=8),
    clip=st.none() | st.floats(0.01, 2),
)
def test_value_loss_equals_its_slow_loop(rows, clip):
    columns = [torch.tensor([row[i] for row in rows], dtype=torch.float64) for i in range(4)]
    assert float(value_loss(*columns, clip=clip).loss) == pytest.approx(slow_value_loss(rows, clip), abs=1e-9)


def value_gradient(value, recorded, returned, clip):
    values = torch.tensor([value], requires_grad=True)
    part = value_loss(values, torch.tensor([recorded]), torch.tensor([returned]), torch.ones(1), clip=clip)
    part.loss.backward()
    return values.grad.item(), int(part.clipped)


def test_a_value_beyond_the_clip_range_moves_no_further_towards_its_return_but_may_come_back():
    assert value_gradient(0.5, 0.0, 1.0, None) == (-0.5, 0)
    assert value_gradient(0.1, 0.0, 1.0, 0.2) == (pytest.approx(-0.9), 0)
    assert value_gradient(0.5, 0.0, 1.0, 0.2) == (0.0, 1)
    assert value_gradient(0.5, 0.0, -1.0, 0.2) == (1.5, 0)


# ------------------------------------------------------------ C11: normalisations


@pytest.fixture
def two_rows(kit):
    """Two and six action tokens."""
    return [kit.sample("a", [5], [6, 7]), kit.sample("b", [5], [6] * 6)]


@pytest.mark.parametrize(
    ("normalisation", "expected"),
    [
        # Eight tokens share the weight; then half a weight a row; then 1 / (2 rows · 10).
        ("token", [1 / 8, 1 / 8]),
        ("sequence", [1 / 4, 1 / 12]),
        ("constant", [1 / 20, 1 / 20]),
    ],
)
def test_C11_weights_of_the_three_normalisations_by_hand(two_rows, normalisation, expected):
    assert sample_weights(two_rows, normalisation, 10) == pytest.approx(expected)


@pytest.mark.parametrize(("normalisation", "expected"), [("token", 2.5), ("sequence", 2.0), ("constant", 1.0)])
def test_C11_loss_of_the_three_normalisations_by_hand(two_rows, normalisation, expected):
    """Each token of row a has log-probability -1, of row b -3: (2 + 18) / 8, (1 + 3) / 2, 20 / 20."""
    weights = sample_weights(two_rows, normalisation, 10)
    per_token = torch.tensor([weights[0]] * 2 + [weights[1]] * 6)
    assert float(sft_loss(torch.tensor([-1.0] * 2 + [-3.0] * 6), per_token)) == pytest.approx(expected)


@pytest.mark.parametrize("normalisation", ["token", "sequence"])
def test_B11_denominator_counts_only_rows_that_are_trained(kit, normalisation):
    """Row b was cut and is left out: the loss is that of row a alone, denominator 10."""
    finished, cut = kit.sample("a", [5], [6] * 10), kit.sample("b", [5, *[6] * 10])
    weights = sample_weights([finished, cut], normalisation)
    assert weights[0] == pytest.approx(sample_weights([finished], normalisation)[0])
    assert weights[0] == pytest.approx(1 / 10)


@pytest.mark.parametrize("normalisation", ["token", "sequence", "constant"])
def test_C05_nothing_to_train_gives_zero_weights(kit, normalisation):
    assert sample_weights([kit.sample("a", [5, 6, 7])], normalisation) == [0.0]
    assert sample_weights([], normalisation) == []


def test_C20_weight_of_an_episode_does_not_depend_on_how_often_it_was_split(kit):
    whole = kit.sample("whole", [5], [6] * 6)
    pieces = [kit.sample("split", [5], [6, 7]), kit.sample("split", [5, 6], [7] * 4)]
    weights = sample_weights([whole, *pieces], "sequence")
    tokens = [6, 2, 4]
    shares = [weight * count for weight, count in zip(weights, tokens, strict=True)]
    assert shares[0] == pytest.approx(0.5)
    assert shares[1] + shares[2] == pytest.approx(0.5)


def test_own_weight_scales_a_sample_and_is_part_of_the_denominator(kit):
    rows = [kit.sample("a", [5], [6] * 4, weight=3.0), kit.sample("b", [5], [6] * 4)]
    assert sample_weights(rows, "token") == pytest.approx([3 / 16, 1 / 16])
    assert sample_weights(rows, "sequence") == pytest.approx([3 / 16, 1 / 16])


@pytest.mark.parametrize("normalisation", ["token", "sequence", "constant"])
def test_C01_silent_episodes_count_as_if_they_were_computed(kit, normalisation):
    rows = [kit.sample(f"e{i}", [5], [6] * (i + 1)) for i in range(4)]
    silent = Silent(episodes=2, action_tokens=3 + 4)
    expected = sample_weights(rows, normalisation)[:2]
    assert sample_weights(rows[:2], normalisation, silent=silent) == pytest.approx(expected)
    assert sample_weights(rows[:2], normalisation) != pytest.approx(expected)


def test_tails_of_the_ratio_are_counted():
    """Ratios 1, 0.4, 2.5, 1.9 and one beyond what exp is taken of."""
    ratios = [1.0, 0.4, 2.5, 1.9]
    logprobs = [*map(math.log, ratios), 0.0]
    part = loss_of(logprobs, [0.0] * 4 + [-50.0], [1.0] * 5, [1.0] * 5)
    assert int(part.ratio_outside) == 3
    assert float(part.ratio_max) == pytest.approx(math.exp(MAX_LOG_RATIO))
    assert float(loss_of(logprobs[:4], [0.0] * 4, [1.0] * 4, [1.0] * 4).ratio_max) == pytest.approx(2.5)


def test_the_ratio_is_to_the_policy_before_the_update_where_that_is_given():
    part = loss_of([0.0], [-3.0], before=torch.zeros(1))
    assert int(part.ratio_outside) == 0
    assert float(part.ratio_max) == 1.0
