"""Moving averages of weights against sums written out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from deedrl.training.averaging import WeightAverage, averaged_weights


def weights(count: int, seed: int = 0) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        {"a": torch.randn(3, generator=generator), "b": torch.randn(2, 2, generator=generator)} for _ in range(count)
    ]


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.9, 0.999])
def test_it_is_the_weighted_mean_of_all_updates_so_far(decay: float) -> None:
    average, seen = WeightAverage(decay), weights(12)
    for updates, parameters in enumerate(seen, start=1):
        average.add(parameters, updates)
        factors = [decay ** (updates - index) for index in range(1, updates + 1)]
        for name, value in average.values.items():
            mean = sum(f * p[name].double() for f, p in zip(factors, seen[:updates], strict=True)) / sum(factors)
            torch.testing.assert_close(value.double(), mean, rtol=1e-5, atol=1e-6)


def test_what_it_took_in_may_change_afterwards() -> None:
    average, [parameters] = WeightAverage(0.5), weights(1)
    expected = parameters["a"].clone()
    average.add(parameters, 1)
    parameters["a"].zero_()
    assert torch.equal(average.values["a"], expected)


def test_it_goes_on_from_its_tensors_bit_for_bit() -> None:
    whole, parts, seen = WeightAverage(0.7), WeightAverage(0.7), weights(6)
    for updates, parameters in enumerate(seen, start=1):
        whole.add(parameters, updates)
        parts.add(parameters, updates)
        if updates == 3:
            state = parts.tensors(parameters)
            assert set(state) == {"average.a", "average.b"}
            parts = WeightAverage(0.7)
            parts.load_tensors(state, parameters)
    assert all(torch.equal(parts.values[name], value) for name, value in whole.values.items())


def test_an_average_that_has_seen_nothing_is_no_part_of_a_checkpoint() -> None:
    assert WeightAverage(0.5).tensors({}) == {}
    with pytest.raises(ValueError, match="at least 1, got 0"):
        WeightAverage(0.5).add(weights(1)[0], 0)


def test_averages_stand_in_for_the_weights_of_a_checkpoint() -> None:
    one, other, moment = torch.zeros(1), torch.ones(1), torch.full((1,), 2.0)
    state = {"parameter.a": one, "exp_avg.a": moment, "average.a": other}
    acting = averaged_weights(state)
    assert acting["parameter.a"] is other
    assert acting["exp_avg.a"] is moment
    assert averaged_weights({"parameter.a": one})["parameter.a"] is one
