"""Runs on several processes that a launcher starts, and how they are compared with those of one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch

from deedrl.pipeline.checkpoint import CheckpointFolder

LIMIT_S = 900.0
"""Far more than it takes on a busy machine; a hang would last for ever."""


def compare(one: Path, two: Path, stage: str) -> None:
    """The newest checkpoints of a stage in two run folders."""
    expected, found = (CheckpointFolder(folder / "checkpoints" / stage).latest() for folder in (one, two))
    assert expected is not None
    assert found is not None
    assert expected.step == found.step
    assert expected.state == found.state
    assert expected.tensors.keys() == found.tensors.keys()
    assert any(name.startswith("exp_avg") for name in expected.tensors)
    for name, value in expected.tensors.items():
        torch.testing.assert_close(found.tensors[name], value, **tolerance(name), msg=lambda m, n=name: f"{n}: {m}")


def torchrun(count: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(count)]
    command += ["-m", "deedrl", *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def tolerance(name: str) -> dict[str, float]:
    """Moments are sums of gradients and of their squares. A step of AdamW is up to the learning rate, 1e-3, however
    small the gradient is, and where that is next to nothing rounding has a say in it."""
    of_parameters = "parameter" in name or name.startswith(("average.", "reference.base_model"))
    return {"rtol": 0.0, "atol": 2e-5} if of_parameters else {"rtol": 1e-3, "atol": 1e-6}
