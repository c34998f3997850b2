"""Runs of several processes for tests, and what has to be as in one process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest
import torch

from deedrl.pipeline.checkpoint import CheckpointFolder
from deedrl.store.jsonl import TrajectoryStore
from deedrl.tracking.jsonl import read_metrics

LIMIT_S = 900.0
"""Far more than it takes on a busy machine; a hang would last for ever."""


def torchrun(count: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    """DeedRL in `count` processes, with `calm_adamw`."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(count)]
    command += [str(Path(__file__).with_name("calm.py")), *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def compare_checkpoints(one: Path, two: Path, stage: str) -> None:
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


def compare_figures(one: Path, two: Path, *, without: Collection[str] = ()) -> None:
    """Both run folders have the same figures, each logged once, but for those `without`."""
    lines = [(folder / "metrics.jsonl").read_text().count("\n") for folder in (one, two)]
    assert lines[0] == lines[1]
    expected, found = map(read_metrics, (one, two))
    assert expected.keys() == found.keys()
    # Which tokens are in a cache depends on the episodes that were played before in the same process.
    compared = {name for name in expected if not name.endswith("/cache_hit_share")} - {*without}
    for name in sorted(compared):
        # A token at the very edge of a range is beyond it or not.
        assert found[name] == pytest.approx(expected[name], rel=1e-3, abs=5e-3 if "fraction" in name else 1e-5), name


def compare_episodes(one: Path, two: Path, *, of_rewards: float = 0.0) -> None:
    """Every store of two run folders holds each episode as often, with the same tokens, and rewards to `of_rewards`."""
    for path in sorted((one / "trajectories").glob("*.jsonl")):
        other = two / "trajectories" / path.name
        assert path.read_bytes().count(b"\n") == other.read_bytes().count(b"\n")
        expected, found = ({t.episode_id: t for t in TrajectoryStore(file)} for file in (path, other))
        assert expected.keys() == found.keys()
        for name, episode in expected.items():
            sampled = [[step.completion.token_ids for step in t.steps] for t in (episode, found[name])]
            assert sampled[0] == sampled[1], name
            assert found[name].reward == pytest.approx(episode.reward, rel=0.0, abs=of_rewards), name


def tolerance(name: str) -> dict[str, float]:
    """Moments are sums of gradients and of their squares. A step of AdamW is up to the learning rate, 1e-3, however
    small the gradient is, and where that is next to nothing rounding has a say in it."""
    of_parameters = "parameter" in name or name.startswith(("average.", "reference.base_model"))
    return {"rtol": 0.0, "atol": 2e-5} if of_parameters else {"rtol": 1e-3, "atol": 1e-6}
