"""Preference losses against slow loops, by hand, and far from the reference."""

from __future__ import annotations

import math

import pytest
import torch

from deedrl.training.dpo_losses import LOSSES, PairLogprobs, chosen_nll

# chosen, rejected, reference chosen, reference rejected, chosen tokens, rejected tokens
ROWS = [(-20.0, -30.0, -22.0, -28.5, 10, 20), (-7.0, -3.0, -6.0, -5.0, 4, 2), (-9.0, -9.0, -9.0, -9.0, 3, 30)]
VARIANTS = sorted(LOSSES)


def pairs(*rows, dtype=torch.float64):
    columns = [torch.tensor(column, dtype=dtype) for column in zip(*rows, strict=True)]
    return PairLogprobs(*columns[:4], *(column.long() for column in columns[4:]))


def slow_loss(variant, row, beta, smoothing):
    """The papers' formulas with probabilities' logarithms written out."""
    chosen, rejected, reference_chosen, reference_rejected, n, m = row
    if variant != "sigmoid":
        chosen, reference_chosen = chosen / n, reference_chosen / n
        rejected, reference_rejected = rejected / m, reference_rejected / m
    margin = (chosen - reference_chosen) - (rejected - reference_rejected)

    def loss(margin):
        if variant == "ipo":
            return (margin - 1 / (2 * beta)) ** 2
        return math.log(1 + math.exp(-beta * margin))

    return (1 - smoothing) * loss(margin) + smoothing * loss(-margin)


def chosen_slopes(variant, at, beta, smoothing=0.0):
    """d loss / d log-probability of each chosen side."""
    at = at._replace(chosen=at.chosen.requires_grad_())
    return torch.autograd.grad(LOSSES[variant](at, beta, smoothing).sum(), at.chosen)[0]


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("beta", [0.1, 2.0])
@pytest.mark.parametrize("variant", VARIANTS)
def test_losses_equal_their_slow_loop(variant, beta, smoothing):
    found = LOSSES[variant](pairs(*ROWS), beta, smoothing)
    expected = [slow_loss(variant, row, beta, smoothing) for row in ROWS]
    assert found.tolist() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("variant", "expected"),
    # Margins of the first row: 2 - (-1.5) = 3.5 in sum, 0.2 - (-0.075) = 0.275 per token.
    [("sigmoid", 0.53338), ("ipo", (0.275 - 5) ** 2), ("length_normalised", 0.67949)],
)
def test_losses_by_hand(variant, expected):
    assert float(LOSSES[variant](pairs(ROWS[0]), 0.1)) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_C12_at_the_reference_rewards_are_zero_and_the_gradient_lifts_the_chosen_side(variant):
    at = pairs((-8.0, -8.5, -8.0, -8.5, 4, 5))
    chosen, rejected = at.chosen.requires_grad_(), at.rejected.requires_grad_()
    loss = LOSSES[variant](at, 0.5)
    assert LOSSES[variant].rewards(at, 0.5) == (0, 0)
    if variant != "ipo":
        assert float(loss.detach()) == pytest.approx(math.log(2))
    up, down = torch.autograd.grad(loss.sum(), (chosen, rejected))
    assert float(up) < 0 < float(down)


def test_the_slope_of_dpo_is_beta_times_the_share_that_is_still_wrong():
    assert float(chosen_slopes("sigmoid", pairs(ROWS[0]), 0.1)) == pytest.approx(-0.1 / (1 + math.exp(0.35)))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("ratio", [1e4, -1e4])
@pytest.mark.parametrize("variant", VARIANTS)
def test_C08_far_from_the_reference_value_and_gradient_are_finite(variant, ratio, dtype, smoothing):
    far = pairs((ratio, -ratio, 0.0, 0.0, 1, 1), (0.0, ratio, ratio, 0.0, 1, 1), dtype=dtype)
    loss = LOSSES[variant](far, 0.1, smoothing)
    assert torch.isfinite(loss).all()
    assert torch.isfinite(chosen_slopes(variant, far, 0.1, smoothing)).all()
    assert loss.dtype == torch.float32


def test_a_pair_that_is_wrong_by_far_keeps_a_slope_under_dpo_and_one_that_is_right_has_none():
    far = pairs((-1e4, 0.0, 0.0, 0.0, 9, 9), (1e4, 0.0, 0.0, 0.0, 9, 9))
    assert chosen_slopes("sigmoid", far, 0.1).tolist() == pytest.approx([-0.1, 0.0])


@pytest.mark.parametrize("variant", ["ipo", "length_normalised"])
def test_per_token_variants_see_no_difference_in_length(variant):
    """Twice the tokens with twice the log-ratio is the same per token; summed it is not."""
    short, long = (-4.0, -5.0, -6.0, -4.0, 4, 5), (-8.0, -10.0, -12.0, -8.0, 8, 10)
    assert LOSSES[variant](pairs(short), 0.5) == LOSSES[variant](pairs(long), 0.5)
    assert LOSSES["sigmoid"](pairs(short), 0.5) != LOSSES["sigmoid"](pairs(long), 0.5)


def test_ipo_is_least_at_its_target_margin_and_smoothing_brings_that_nearer():
    def slope(margin, smoothing):
        return float(chosen_slopes("ipo", pairs((10 * margin, 0.0, 0.0, 0.0, 10, 10)), 0.5, smoothing))

    assert slope(1.0, 0.0) == pytest.approx(0)
    assert slope(0.8, 0.1) == pytest.approx(0, abs=1e-9)
    assert slope(0.9, 0.0) < 0 < slope(0.9, 0.1)


def test_likelihood_term_is_per_token_and_of_the_chosen_side_alone():
    assert chosen_nll(pairs(*ROWS)).tolist() == pytest.approx([2.0, 1.75, 3.0])
