"""Optimiser states in shards: two real processes over gloo against one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from forked import in_processes
from safetensors.torch import load_file, save_file
from torch import nn

from deedrl.training import processes
from deedrl.training.optimiser import Optimiser, step_together

SIZES = {"matrix": (5, 3), "vector": (7,), "scalar": (1,), "unused": (4,)}
ELEMENTS = 15 + 7 + 1
"""Those with gradients."""


def made() -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(3)
    return {name: nn.Parameter(torch.randn(size, generator=generator)) for name, size in SIZES.items()}


def steps(optimiser: Optimiser, first: int, last: int) -> None:
    """Updates with four micro-batches each, of which every process takes its share."""
    for update in range(first, last):
        for micro in processes.share(range(4)):
            generator = torch.Generator().manual_seed(100 * update + micro)
            trained = [parameter for name, parameter in optimiser.parameters.items() if name != "unused"]
            weights = [torch.randn(parameter.shape, generator=generator) for parameter in trained]
            loss = sum((w * p**2).sum() for w, p in zip(weights, trained, strict=True))
            assert isinstance(loss, torch.Tensor)
            optimiser.backward(loss)
        _, taken = step_together([(optimiser, 0.01)], 1.0)
        assert taken


def of_one(updates: int) -> Optimiser:
    optimiser = Optimiser(made(), weight_decay=0.1)
    steps(optimiser, 0, updates)
    return optimiser


def _of_several(rank: int, count: int, folder: str, resume: bool) -> None:
    with processes.joined(count, shard="optimiser"):
        optimiser = Optimiser(made(), weight_decay=0.1)
        if resume:
            optimiser.load_tensors(load_file(f"{folder}/start.safetensors"))
        steps(optimiser, optimiser.updates, 3 if not resume else 6)
        (Path(folder) / f"elements-{rank}").write_text(str(optimiser.state_elements()))
        state = optimiser.tensors()
        save_file(state, f"{folder}/{rank}.safetensors")


def of_several(count: int, folder: Path, *, resume: bool = False) -> dict[str, torch.Tensor]:
    in_processes(count, _of_several, str(folder), resume)
    return load_file(folder / "0.safetensors")


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("count", [2, 3])
def test_shards_step_as_one_process_and_hold_their_part_of_the_moments(tmp_path: Path, count: int) -> None:
    one = of_one(3)
    assert one.state_elements() == 2 * ELEMENTS
    assert_same(of_several(count, tmp_path), one.tensors())
    held = [int((tmp_path / f"elements-{rank}").read_text()) for rank in range(count)]
    assert sum(held) == 2 * ELEMENTS
    # Each parameter is cut to the element, so a process has at most one element and two moments more of each.
    assert max(held) <= 2 * (ELEMENTS / count + 3)
    for rank in range(1, count):
        other = load_file(tmp_path / f"{rank}.safetensors")
        assert set(other) == {f"parameter.{name}" for name in SIZES}
        first = load_file(tmp_path / "0.safetensors")
        assert all(torch.equal(other[name], first[name]) for name in other)


def test_shards_resume_across_another_number_of_processes(tmp_path: Path) -> None:
    whole = of_one(6).tensors()
    save_file(of_one(3).tensors(), tmp_path / "start.safetensors")
    assert_same(of_several(2, tmp_path, resume=True), whole)
    again = Optimiser(made(), weight_decay=0.1)
    (tmp_path / "more").mkdir()
    again.load_tensors(of_several(2, tmp_path / "more"))
    steps(again, 3, 6)
    assert_same(again.tensors(), whole)
