"""Every registered environment under noise: does anything crash, and does an expert who repeats calls still succeed?

    python benchmarks/noise_suites.py --level 0.3 --episodes 10000

The expert plays `demonstrate` and makes a call again where noise asks for it. One JSON line for each environment:
`completion` is that of the expert, `crashes` are episodes with a recorded failure, `by_noise` steps that noise took.
Delays are left out: they would measure the clock.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections import Counter
from collections.abc import Sequence

import msgspec

from deedrl.environments.environment import Environment
from deedrl.environments.loading import load_environment
from deedrl.environments.noise import Noise
from deedrl.environments.suite import ENTRY_POINTS
from deedrl.errors import TaskError
from deedrl.rollouts.demonstration import demonstration_policy
from deedrl.rollouts.episode import EpisodeSpec
from deedrl.rollouts.failures import FailurePolicy
from deedrl.rollouts.runner import run_episodes_sync
from deedrl.types import Task, Trajectory

CHUNK = 500
"""Episodes whose trajectories are in memory at once."""
MOST_TASKS = 1000


def play(cls: type[Environment], tasks: Sequence[Task], first: int, count: int, noise: Noise) -> list[Trajectory]:
    """Episodes number `first` to `first + count`, over the tasks in turn, each with its own seed."""
    specs = [
        EpisodeSpec(task=tasks[index % len(tasks)], episode_id=str(index), seed=index, noise=noise)
        for index in range(first, first + count)
    ]
    return run_episodes_sync(
        specs,
        environment=cls,
        policy=demonstration_policy(specs, cls),
        rubric=None,
        failures=FailurePolicy(retries=0, max_failure_share=1.0),
        concurrency=4,
    )


def measure(ref: str, level: float, episodes: int) -> dict[str, object]:
    """What became of so many episodes of the environment `ref`."""
    cls = load_environment(ref)
    noise = msgspec.structs.replace(Noise.at(level), delays=0.0)
    tasks = tasks_of(cls, min(MOST_TASKS, episodes))
    began, counts, crashes = time.perf_counter(), Counter[str](), Counter[str]()
    for first in range(0, episodes, CHUNK):
        for trajectory in play(cls, tasks, first, min(CHUNK, episodes - first), noise):
            counts["solved"] += trajectory.solved is True
            counts["steps"] += len(trajectory.steps)
            counts["by_noise"] += len(trajectory.steps) - len(trajectory.own_steps)
            if trajectory.failure is not None:
                crashes[
                    f"{trajectory.failure.phase} {trajectory.failure.kind}: {trajectory.failure.message[:100]}"
                ] += 1
    return {
        "environment": ref,
        "level": level,
        "episodes": episodes,
        "tasks": len(tasks),
        "crashes": crashes.total(),
        "completion": counts["solved"] / episodes,
        "steps": counts["steps"],
        "by_noise": counts["by_noise"],
        "seconds": round(time.perf_counter() - began, 1),
        "first_crashes": dict(crashes.most_common(3)),
    }


def tasks_of(cls: type[Environment], most: int) -> list[Task]:
    """Up to `most` tasks that the environment demonstrates, fewer where it has no more of them."""
    while True:
        try:
            return [task for task in cls.generate_tasks("train", most, 0) if demonstrates(cls, task)]
        except TaskError:
            if most <= 1:
                raise
            most //= 2


def demonstrates(cls: type[Environment], task: Task) -> bool:
    environment = cls()
    try:
        environment.reset(seed=0, options={"task": task})
        return bool(environment.demonstrate(task))
    finally:
        environment.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--level", type=float, default=0.3)
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--only", nargs="*", default=[], help="references; all registered ones without it")
    given = parser.parse_args()
    logging.getLogger("deedrl").setLevel(logging.ERROR)
    for ref in given.only or ENTRY_POINTS:
        print(msgspec.json.encode(measure(ref, given.level, given.episodes)).decode(), flush=True)


if __name__ == "__main__":
    main()
