"""Runs with reward models for tests: a recipe, what lies in the run's folder, and labels of people."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from deedrl.pipeline.recipe import recipe_from
from deedrl.pipeline.reward_model_data import RewardData
from deedrl.pipeline.reward_model_scoring import reward_model_of, session_of
from deedrl.pipeline.session import Session
from deedrl.reports.progress import make_progress
from deedrl.store.jsonl import TrajectoryStore
from deedrl.store.labels import PairLabel, append_label
from deedrl.types import Trajectory

STEPS = 12
TASKS = {"train": 16, "validation": 8, "test": 4, "test_unseen": 0}
MODEL: dict[str, Any] = {
    "stage": "reward_model",
    "tasks": 16,
    "samples_per_task": 8,
    "kinds": ["outcome"],
    "pairs_per_task": 3,
    "steps": STEPS,
    "pairs_per_step": 8,
    "learning_rate": 3e-3,
    "schedule": "constant",
    "held_out_share": 0.25,
    "calibrate_every": 4,
}
GRPO = {"stage": "grpo", "steps": 1, "tasks_per_step": 4, "group_size": 4, "validate_every": 0, "refill_attempts": 0}


def made(taught: dict[str, Any], *after: dict[str, Any], rubric: dict[str, float] | None = None, **changes: Any) -> Any:
    return recipe_from(taught | {"stages": [MODEL | changes, *after], "tasks": TASKS, "rubric": rubric or {}})


def model_folder(run: Path) -> Path:
    return run / "reward-models" / "reward_model"


def data_of(run: Path, version: int = 1) -> RewardData:
    return msgspec.json.decode((model_folder(run) / f"data-v{version:04d}.json").read_bytes(), type=RewardData)


@contextmanager
def opened(run: Path) -> Iterator[tuple[Session, Any]]:
    with session_of(run, make_progress("quiet")) as session:
        yield session, reward_model_of(session, None)


def stored(run: Path, name: str = "reward_model") -> dict[str, Trajectory]:
    return {t.episode_id: t for t in TrajectoryStore(run / "trajectories" / f"{name}.jsonl")}


def pairs_to_label(run: Path) -> list[tuple[str, str]]:
    """Solved and failed episodes of tasks outside the calibration set that were not compared yet."""
    data = data_of(run)
    known = {frozenset((one.better.episode_id, one.worse.episode_id)) for one in data.comparisons}
    held = {one.task_id for one in data.held_out}
    by_task: dict[str, tuple[list[str], list[str]]] = {}
    for t in stored(run).values():
        if t.task_id not in held and t.solved is not None:
            by_task.setdefault(t.task_id, ([], []))[t.solved].append(t.episode_id)
    return [
        (good, bad)
        for failed, solved in by_task.values()
        for good in solved
        for bad in failed
        if frozenset((good, bad)) not in known
    ]


def label(run: Path, choice: str, rater: str = "anna") -> int:
    pairs = pairs_to_label(run)
    for good, bad in pairs:
        append_label(run / "labels.jsonl", PairLabel(left=good, right=bad, choice=choice, rater=rater))  # type: ignore[arg-type]
    return len(pairs)
