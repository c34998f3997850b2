"""Whether sampling a step while the step before is still training saves time: GRPO on the support desk, both ways.

    python benchmarks/overlap.py --work FOLDER --prepare
    python benchmarks/overlap.py --work FOLDER --staleness 1 [--tool-seconds 0.5] [--threads 1] [--json FILE]

`--prepare` teaches the embedded model by demonstrations, once. Every other call is one fresh process that trains it
further and prints one JSON line: seconds of the whole stage and, as sums over its steps, of sampling and of updates,
which overlap with `--staleness 1`. `--threads` are torch's, of each of the two.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar

import torch

from deedrl.environments.suite.support.environment import SupportDesk
from deedrl.memory import peak_gb
from deedrl.pipeline import grpo_stage
from deedrl.pipeline.recipe import recipe_from
from deedrl.pipeline.run import ADAPTER, Run
from deedrl.pipeline.stages import run_recipe
from deedrl.reports.progress import make_progress
from deedrl.store.jsonl import TrajectoryStore

STEPS, TASKS, SIBLINGS = 3, 6, 4
TOOL_SECONDS = "DEEDRL_TOOL_SECONDS"


class SlowDesk(SupportDesk):
    """The support desk behind a slow service."""

    blocking: ClassVar[bool] = True

    def step(self, action: Any) -> Any:
        time.sleep(float(os.environ[TOOL_SECONDS]))
        return super().step(action)


def recipe_data(start: Path | None, staleness: int, slow: bool) -> dict[str, Any]:
    """The quickstart's settings, smaller."""
    return {
        "name": "overlap",
        "seed": 7,
        "model": {"path": "embedded", "start_adapter": None if start is None else str(start)},
        "environment": {
            "ref": f"{Path(__file__).resolve()}:SlowDesk" if slow else "deedrl/SupportDesk-v0",
            "difficulties": ["easy"],
        },
        "tasks": {"train": 300, "validation": 2, "test": 2, "test_unseen": 0},
        "sampling": {"temperature": 0.8, "max_tokens": 72},
        "limits": {"max_steps": 4},
        "concurrency": 96,
        "stages": [
            {"stage": "cold_start", "tasks": 0, "demonstrations": 120},
            {
                "stage": "sft",
                "steps": 30,
                "batch_size": 4,
                "learning_rate": 1.5e-3,
                "final_learning_rate": 2e-4,
                "warmup_steps": 3,
                "micro_batch_tokens": 800,
            },
            {
                "stage": "grpo",
                "steps": STEPS,
                "tasks_per_step": TASKS,
                "group_size": SIBLINGS,
                "advantage": "dr_grpo",
                "learning_rate": 1e-4,
                "final_learning_rate": 1e-4,
                "loss_normalisation": "sequence",
                "kl_on_zero_variance": True,
                "refill_attempts": 0,
                "validate_every": 0,
                "validation_tasks": 1,
                "micro_batch_tokens": 800,
                "max_staleness": staleness,
            },
        ],
    }


class Clock:
    """Seconds spent inside functions, as sums by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def timed(*arguments: Any, **options: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began

        return timed


def prepare(work: Path) -> None:
    recipe = recipe_from(recipe_data(None, 0, slow=False))
    with Run.open(work / "start", recipe) as run:
        run_recipe(recipe, run, make_progress("plain"), only=["cold_start", "sft"])


def measure(work: Path, staleness: int, tool_seconds: float, threads: int) -> dict[str, Any]:
    """One GRPO stage in this process."""
    os.environ[TOOL_SECONDS] = str(tool_seconds)
    torch.set_num_threads(threads)
    clock = Clock()
    for name in ("train_policy", "sample_groups", "update_policy"):
        setattr(grpo_stage, name, clock.around(name, getattr(grpo_stage, name)))
    recipe = recipe_from(recipe_data(work / "start" / ADAPTER, staleness, slow=tool_seconds > 0))
    folder = work / f"run-{time.time_ns()}"
    with Run.open(folder, recipe) as run:
        run_recipe(recipe, run, make_progress("plain"), only=["grpo"])
    episodes = list(TrajectoryStore(folder / "trajectories" / "grpo.jsonl"))
    completions = [step.completion for episode in episodes for step in episode.steps]
    logged = [json.loads(line)["metrics"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {
        "staleness": staleness,
        "tool_seconds": tool_seconds,
        "threads": threads,
        "seconds": {name: round(value, 1) for name, value in clock.seconds.items()},
        "episodes": len(episodes),
        "turns": len(completions),
        "sampled_tokens": sum(len(completion.token_ids) for completion in completions),
        "trained_tokens": sum(line.get("grpo/action_tokens", 0) for line in logged),
        "logged_staleness": [line["grpo/staleness"] for line in logged if "grpo/staleness" in line],
        "peak_gb": peak_gb(),
        "load": os.getloadavg()[0],
        "date": time.strftime("%Y-%m-%d %H:%M"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--prepare", action="store_true")
    parser.add_argument("--staleness", type=int, choices=(0, 1), default=0)
    parser.add_argument("--tool-seconds", type=float, default=0.0)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path, help="append the line to this file too")
    arguments = parser.parse_args()
    if arguments.prepare:
        prepare(arguments.work)
        return
    measured = measure(arguments.work, arguments.staleness, arguments.tool_seconds, arguments.threads)
    print(json.dumps(measured))
    if arguments.json is not None:
        with arguments.json.open("a") as file:
            file.write(json.dumps(measured) + "\n")


if __name__ == "__main__":
    main()
