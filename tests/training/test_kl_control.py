"""The weight of KL follows the divergence, in steps that can be checked by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deedrl.training.kl_control import controlled_coefficient


@pytest.mark.parametrize(
    ("kl", "expected"),
    [
        (0.05, 0.02),  # on target
        (0.055, 0.0202),  # a tenth above: a hundredth more
        (0.045, 0.0198),
        (0.06, 0.0204),  # a fifth above: the most that counts
        (5.0, 0.0204),
        (0.0, 0.0196),
        (-1.0, 0.0196),  # a k1 estimate may be negative
        (math.inf, 0.0204),
        (math.nan, 0.02),
    ],
)
def test_a_step_by_hand(kl: float, expected: float) -> None:
    assert controlled_coefficient(0.02, kl, target=0.05, gain=0.1) == pytest.approx(expected)


@given(
    coefficient=st.floats(1e-6, 1e3),
    kl=st.floats(allow_nan=False),
    target=st.floats(1e-6, 10),
    gain=st.floats(1e-3, 4.9),
)
def test_the_weight_stays_positive_and_moves_towards_the_target(
    coefficient: float, kl: float, target: float, gain: float
) -> None:
    found = controlled_coefficient(coefficient, kl, target=target, gain=gain)
    assert found > 0
    assert (found - coefficient) * (kl - target) >= 0


def test_a_divergence_that_falls_with_the_weight_ends_at_the_target() -> None:
    coefficient = 0.01
    for _ in range(300):
        coefficient = controlled_coefficient(coefficient, 0.004 / coefficient, target=0.1, gain=0.1)
    assert 0.004 / coefficient == pytest.approx(0.1, rel=1e-3)
