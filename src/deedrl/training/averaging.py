"""An exponential moving average of the weights of a policy that is being trained."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from deedrl.training.sharding import own_value, whole_value

_PREFIX, _TRAINED = "average.", "parameter."


class WeightAverage:
    """Of the weights after updates 1 to t, those after update i weigh as much as `decay` to the power of t - i.

    Weights that a noisy gradient moves to and fro are nearer to where it means to go in the mean than after any one
    update (Polyak and Juditsky 1992). What training started from is not part of it: as with Adam's moments (Kingma and
    Ba 2015) the sum of the factors is divided out. Of an adapter its factors are averaged, each by itself.
    """

    def __init__(self, decay: float) -> None:
        """`decay` in [0, 1); with 0 the average is the latest weights."""
        self.decay = decay
        self.values: dict[str, Tensor] = {}

    @torch.no_grad()
    def add(self, parameters: Mapping[str, Tensor], updates: int) -> None:
        """Takes the weights in after update number `updates`, from 1."""
        if updates < 1:
            raise ValueError(f"expected a number of updates of at least 1, got {updates}")
        share = (1 - self.decay) / (1 - self.decay**updates)
        for name, parameter in parameters.items():
            if updates == 1:
                self.values[name] = parameter.detach().clone()
            else:
                self.values[name].lerp_(parameter.detach(), share)

    def tensors(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Of whole `parameters` by name, for a safetensors file beside those of what is trained."""
        return {
            f"{_PREFIX}{name}": whole_value(value, parameters[name]).to("cpu", copy=True)
            for name, value in self.values.items()
        }

    def load_tensors(self, state: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> None:
        """Restores what `tensors` returned, bit for bit, each value where its parameter is."""
        self.values = {
            name: own_value(state[f"{_PREFIX}{name}"], parameter).to(parameter.device, copy=True)
            for name, parameter in parameters.items()
            if f"{_PREFIX}{name}" in state
        }


def averaged_weights(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a checkpoint with averages, where it has some, in place of the weights that are trained."""
    averages = {name.removeprefix(_PREFIX): value for name, value in state.items() if name.startswith(_PREFIX)}
    return {**state, **{f"{_TRAINED}{name}": value for name, value in averages.items()}}
