"""Whether a curriculum saves episodes: uniform draws against quotas and the frontier, on jobs that are solved exactly.

    python benchmarks/curricula.py [--jobs ladder shared] [--sizes 120 960] [--seeds 5] [--rates 0.5 2]
        [--target 0.8] [--most 100000] [--json FILE]

Draws, bands, what is remembered of tasks and group-relative advantages are DeedRL's own, called as its stages call
them; only the policy is a table of skills, so that its success rate on every task is computed, not estimated.

`ladder`: a task of level n is n steps in a row, and the first slip ends it; each family has skills of its own, one a
step. The first skill is there to begin with (70 %), the others hardly (27 %), so that tasks of high levels are never
solved until lower ones are. `shared`: one step, solved by a skill that all tasks share less the task's difficulty,
which spreads widely; whatever teaches helps everywhere. Both have some difficulty of each task's own, beside labels.

Printed are thousands of episodes until the policy solves `--target` of the pool, profiles included: mean and range over
seeds, at learning rates alike for all methods; on the way the share of groups without a signal, and of tasks that stood
in for a group that had run out. Minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from deedrl.pipeline.curriculum import Curriculum
from deedrl.pipeline.curriculum_settings import (
    AnyCurriculum,
    FrontierCurriculum,
    QuotaCurriculum,
    UniformCurriculum,
)
from deedrl.tasks.experience import Experience
from deedrl.tasks.pool import TaskPool
from deedrl.tasks.statistics import TaskStatistics
from deedrl.training import advantages
from deedrl.types import Task

TASKS_PER_STEP, SIBLINGS, PROFILE_ATTEMPTS = 8, 6, 4
FAMILIES, LEVELS = ("a", "b", "c"), 6


@dataclass(frozen=True)
class Method:
    """How a run draws its tasks."""

    settings: AnyCurriculum
    profiled: bool = False
    """Every task is played before training, which counts."""
    refills: int = 0
    """Rounds of fresh tasks for groups without a signal, as `refill_attempts` of the stage `grpo`."""


METHODS: Mapping[str, Method] = {
    "uniform": Method(UniformCurriculum()),
    "quota": Method(QuotaCurriculum()),
    "quota, never forgets": Method(QuotaCurriculum(half_life_steps=None)),
    "quota, profiled": Method(QuotaCurriculum(), profiled=True),
    "frontier": Method(FrontierCurriculum()),
    "frontier, never forgets": Method(FrontierCurriculum(half_life_steps=None)),
    "frontier, profiled": Method(FrontierCurriculum(), profiled=True),
    "uniform, refill": Method(UniformCurriculum(), refills=1),
    "quota, refill": Method(QuotaCurriculum(), refills=1),
    "frontier, refill": Method(FrontierCurriculum(), refills=1),
}

# ------------------------------------------------------------ the jobs


@dataclass(frozen=True)
class Job:
    """Tasks, each a row of steps that all have to succeed: (skill, what is taken from it)."""

    pool: TaskPool
    steps: Mapping[str, tuple[tuple[str, float], ...]]
    start: Mapping[str, float]
    """Skills at the beginning, as logits."""


def ladder(size: int, rng: Random) -> Job:
    """Levels of steps that build on each other, in families that do not."""
    tasks: list[Task] = []
    steps: dict[str, tuple[tuple[str, float], ...]] = {}
    for number in range(size):
        family, level = FAMILIES[number % len(FAMILIES)], 1 + number // len(FAMILIES) % LEVELS
        task = Task.create(prompt=f"{family} {level} {number}", family=family, difficulty=f"level {level}")
        own = rng.gauss(0.0, 0.5)
        steps[task.id] = tuple((f"{family}{step}", own if step == level else 0.0) for step in range(1, level + 1))
        tasks.append(task)
    start = {f"{family}{step}": 0.85 if step == 1 else -1.0 for family in FAMILIES for step in range(1, LEVELS + 1)}
    return Job(TaskPool(tasks), steps, start)


def shared(size: int, rng: Random) -> Job:
    """One skill for tasks of very different difficulty."""
    tasks: list[Task] = []
    steps: dict[str, tuple[tuple[str, float], ...]] = {}
    for number in range(size):
        label = number % 3
        task = Task.create(prompt=str(number), difficulty=("easy", "medium", "hard")[label])
        steps[task.id] = (("skill", 4.0 * (label - 1) + rng.gauss(0.0, 2.0)),)
        tasks.append(task)
    return Job(TaskPool(tasks), steps, {"skill": -3.0})


JOBS: Mapping[str, Callable[[int, Random], Job]] = {"ladder": ladder, "shared": shared}

# ------------------------------------------------------------ the learner


@dataclass
class Learner:
    """Skills, moved along the policy gradient of what was played."""

    job: Job
    rate: float
    skills: dict[str, float] = field(default_factory=dict)
    episodes: int = 0

    def __post_init__(self) -> None:
        self.skills = dict(self.job.start)

    def success(self, task_id: str) -> float:
        """Probability that a task is solved."""
        return math.prod(_sigmoid(self.skills[skill] - less) for skill, less in self.job.steps[task_id])

    def completion(self) -> float:
        """Of the whole pool."""
        return fmean(self.success(task_id) for task_id in self.job.steps)

    def play(self, task_id: str, rng: Random) -> tuple[bool, dict[str, float]]:
        """Whether the task was solved, and the gradient of what was done by skill."""
        self.episodes += 1
        gradient: dict[str, float] = {}
        for skill, less in self.job.steps[task_id]:
            chance = _sigmoid(self.skills[skill] - less)
            well = rng.random() < chance
            gradient[skill] = float(well) - chance
            if not well:
                return False, gradient
        return True, gradient

    def group(self, task_id: str, rng: Random) -> tuple[int, dict[str, float]]:
        """How many siblings solved the task, and the sum of advantage × gradient."""
        played = [self.play(task_id, rng) for _ in range(SIBLINGS)]
        total: dict[str, float] = {}
        for advantage, (_, gradient) in zip(advantages.grpo([float(won) for won, _ in played]), played, strict=True):
            for skill, value in gradient.items():
                total[skill] = total.get(skill, 0.0) + advantage * value
        return sum(won for won, _ in played), total

    def update(self, gradients: Sequence[Mapping[str, float]]) -> None:
        """One step along the mean over the groups of a whole batch, those without a signal included."""
        for gradient in gradients:
            for skill, value in gradient.items():
                self.skills[skill] += self.rate * value / (TASKS_PER_STEP * SIBLINGS)


def _sigmoid(value: float) -> float:
    return 1.0 / (1.0 + math.exp(-value))


# ------------------------------------------------------------ a run


@dataclass(frozen=True)
class Outcome:
    """How a run went."""

    episodes: int | None
    """Until the target; None if it was not reached."""
    silent_share: float
    """Of groups in which all siblings ended alike."""
    fallback_share: float
    """Of tasks that stood in for a group that had run out."""


def run(job: Job, method: Method, rate: float, seed: int, *, target: float, most: int) -> Outcome:
    """Trains until the pool's completion is `target` or `most` episodes are played."""
    learner, rng = Learner(job, rate), Random(seed)
    seen = profile(learner, rng) if method.profiled else {}
    curriculum = Curriculum(method.settings, job.pool, seen, TASKS_PER_STEP)
    step = groups = silent = stood_in = 0
    while learner.completion() < target:
        if learner.episodes >= most:
            return Outcome(None, silent / groups, stood_in / groups)
        supply = curriculum.draw(step, TASKS_PER_STEP * (1 + method.refills), {}, rng)
        outcomes, gradients = play_step(learner, supply, method.refills, rng)
        curriculum.counted(step, outcomes)
        groups += len(outcomes)
        silent += sum(seen.solved in (0, seen.attempts) for seen in outcomes.values())
        stood_in += sum(curriculum.report(step).fallback.values())
        learner.update(gradients)
        step += 1
    return Outcome(learner.episodes, silent / max(groups, 1), stood_in / max(groups, 1))


def profile(learner: Learner, rng: Random) -> dict[str, Experience]:
    """Every task of the pool, a few times."""
    return {
        task.id: Experience(
            attempts=PROFILE_ATTEMPTS,
            solved=float(sum(learner.play(task.id, rng)[0] for _ in range(PROFILE_ATTEMPTS))),
            scored=float(PROFILE_ATTEMPTS),
        )
        for task in learner.job.pool
    }


def play_step(
    learner: Learner, supply: Sequence[Task], refills: int, rng: Random
) -> tuple[dict[str, TaskStatistics], list[Mapping[str, float]]]:
    """Outcomes by task and gradients of groups with a signal; others are replaced from `supply` as in `grpo`."""
    outcomes: dict[str, TaskStatistics] = {}
    telling: list[Mapping[str, float]] = []
    for _ in range(1 + refills):
        missing = TASKS_PER_STEP - len(telling)
        now, supply = supply[:missing], supply[missing:]
        for task in now:
            solved, gradient = learner.group(task.id, rng)
            outcomes[task.id] = TaskStatistics(attempts=SIBLINGS, solved=solved)
            if 0 < solved < SIBLINGS:
                telling.append(gradient)
    return outcomes, telling


# ------------------------------------------------------------ the table


def measured(
    make: Callable[[int, Random], Job], size: int, method: Method, rate: float, options: argparse.Namespace
) -> dict[str, Any]:
    """All seeds; a run that misses the target counts as `most` in the mean."""
    outcomes = [
        run(make(size, Random(1000 + seed)), method, rate, seed, target=options.target, most=options.most)
        for seed in range(options.seeds)
    ]
    needed = [outcome.episodes for outcome in outcomes]
    return {
        "episodes": needed,
        "mean": fmean(n if n is not None else options.most for n in needed),
        "silent_share": fmean(outcome.silent_share for outcome in outcomes),
        "fallback_share": fmean(outcome.fallback_share for outcome in outcomes),
    }


def cell(found: Mapping[str, Any]) -> str:
    """Mean and range of the runs that reached the target, in thousands of episodes, and how many did not."""
    reached = [n / 1000 for n in found["episodes"] if n is not None]
    missed = len(found["episodes"]) - len(reached)
    if not reached:
        return "never"
    text = f"{found['mean'] / 1000:.1f} ({min(reached):.1f} to {max(reached):.1f})"
    return f"{text}, {missed} missed" if missed else text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", nargs="+", choices=sorted(JOBS), default=list(JOBS))
    parser.add_argument("--sizes", nargs="+", type=int, default=[120, 960])
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rates", nargs="+", type=float, default=[0.5, 2.0])
    parser.add_argument("--target", type=float, default=0.8)
    parser.add_argument("--most", type=int, default=100_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = []
    for name, size, rate in product(options.jobs, options.sizes, options.rates):
        print(f"\n{name}, {size} tasks, rate {rate:g}: thousands of episodes until {options.target:.0%}\n")
        print("| method | episodes | groups without a signal | stood in |\n|---|---|---|---|")
        for method in options.methods:
            found = measured(JOBS[name], size, METHODS[method], rate, options)
            results.append({"job": name, "size": size, "rate": rate, "method": method, **found})
            shares = f"{found['silent_share']:.0%} | {found['fallback_share']:.0%}"
            print(f"| {method} | {cell(found)} | {shares} |", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
