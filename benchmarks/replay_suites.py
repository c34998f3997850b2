"""Records episodes of every environment of the suite, replays them in three ways, and counts what comes out otherwise.

    python benchmarks/replay_suites.py --episodes 10000 --jobs 2

The episodes are a mixture of solutions, solutions with detours, random calls, and wrong parameters and broken texts.
They are played by the real runner under a recipe's limits and rubric into a run folder, and replayed by what ``deedrl
replay`` calls. Then one tool is changed, with its version, and the replay has to name it. Exit code 1 if anything comes
out otherwise.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec

from deedrl.config import dump_yaml, to_plain
from deedrl.environments.environment import Environment
from deedrl.environments.loading import load_environment
from deedrl.environments.sampling import wrong_actions
from deedrl.environments.suite import ENTRY_POINTS
from deedrl.pipeline.job import environment_maker, recipe_limits, recipe_rubric, task_pool
from deedrl.pipeline.own_recipe import load_own_recipe
from deedrl.pipeline.recipe import recipe_from
from deedrl.pipeline.run_replay import Mode, replay_run
from deedrl.policies.policy import CompletionRequest
from deedrl.policies.scripted import RandomPolicy, to_completion
from deedrl.reports.progress import make_progress
from deedrl.rollouts.demonstration import demonstrator
from deedrl.rollouts.episode import EpisodeSpec
from deedrl.rollouts.replay import replay_actions
from deedrl.rollouts.replay_report import altered_when_stored
from deedrl.rollouts.runner import run_episodes_sync
from deedrl.seeding import derive_seed, stream
from deedrl.store.jsonl import TrajectoryStore
from deedrl.store.query import status_of
from deedrl.tools.tool import Tool, to_text
from deedrl.types import Action, Completion, Provenance, Record, Task, Trajectory

MODES: tuple[Mode, ...] = ("env", "policy", "frozen")
KINDS = ("expert", "detours", "random", "wrong")
"""How an episode is played; they take turns."""
TASKS = 400
"""Distinct tasks at most; each is played under several seeds."""
CHUNK = 250
"""Episodes that are played and stored at a time."""
CHANGED = 200
"""Episodes on which the changed tool is tried."""
SEED = 11


class Result(Record, frozen=True):
    """Of one environment."""

    environment: str
    episodes: int
    statuses: dict[str, int]
    megabytes: float
    record_s: float
    replay_s: dict[str, float]
    steps: dict[str, int]
    outcomes: dict[str, dict[str, int]]
    reasons: dict[str, dict[str, int]]
    examples: tuple[str, ...]
    changed: str
    """What the replay says after a tool was changed."""
    changed_found: str
    """Episodes that call it and that were found different, of those that call it."""
    ok: bool


# ---------------------------------------------------------------- who plays


class Mixture:
    """Plays each episode in the way that its id begins with; decides by the request's seed alone."""

    version = "mixture"

    def __init__(self, tasks: Mapping[str, Task], demonstrate: Callable[[Task], Sequence[Action]]) -> None:
        self._tasks = tasks
        self._demonstrate = demonstrate
        self._left: dict[str, list[Action]] = {}

    async def complete(self, request: CompletionRequest) -> Completion:
        kind = request.episode_id.partition("-")[0]
        chance = stream(request.seed, "detour").random()
        if kind == "wrong" or (kind == "detours" and chance < 0.2):
            return self._wrong(request)
        if kind == "random" or (kind == "detours" and chance < 0.4):
            return await RandomPolicy().complete(request)
        if request.episode_id not in self._left:
            self._left[request.episode_id] = list(self._demonstrate(self._tasks[request.episode_id]))
        left = self._left[request.episode_id]
        return to_completion(left.pop(0), self.version, request.tools) if left else self._wrong(request)

    def _wrong(self, request: CompletionRequest) -> Completion:
        """A call as a model gets it wrong, or a text that is none."""
        rng = stream(request.seed, "wrong")
        if rng.random() < 0.15:
            text = rng.choice(("I would call a tool now.", '{"tool_name": "', "", '{"tool_name": "nothing"}'))
            return to_completion(text, self.version)
        return to_completion(rng.choice(wrong_actions(rng.choice(request.tools), rng)), self.version, request.tools)

    async def release(self, episode_id: str) -> None:
        self._left.pop(episode_id, None)


# ---------------------------------------------------------------- recording


def make_run(folder: Path, ref: str) -> None:
    """A run folder with the recipe alone."""
    recipe = recipe_from(
        {
            "name": "replay",
            "seed": SEED,
            "environment": ref,
            "tasks": {"train": TASKS},
            "limits": {"max_steps": 20, "max_tokens_per_episode": 100_000},
            "stages": [{"stage": "cold_start", "name": "mixture"}],
        }
    )
    (folder / "trajectories").mkdir(parents=True)
    (folder / "recipe.yaml").write_text(dump_yaml(to_plain(recipe)))


@functools.cache
def tasks_of(folder: Path) -> list[Task]:
    recipe = load_own_recipe(folder)
    return list(task_pool(recipe, load_environment(recipe.environment.ref), "train", TASKS))


def record(folder: Path, numbers: Sequence[int]) -> int:
    """Plays the episodes with these numbers and stores them."""
    recipe, tasks = load_own_recipe(folder), tasks_of(folder)
    cls = load_environment(recipe.environment.ref)
    specs = [
        EpisodeSpec(
            task=tasks[number // len(KINDS) % len(tasks)],
            episode_id=f"{KINDS[number % len(KINDS)]}-{number}",
            seed=derive_seed(SEED, "episode", number),
            provenance=Provenance(stage="mixture"),
        )
        for number in numbers
    ]
    environment = environment_maker(recipe, cls)
    played = run_episodes_sync(
        specs,
        environment=environment,
        policy=Mixture({spec.episode_id: spec.task for spec in specs}, demonstrator(environment)),
        rubric=recipe_rubric(recipe, cls),
        limits=recipe_limits(recipe),
    )
    TrajectoryStore(folder / "trajectories" / "mixture.jsonl").append_many(played)
    return len(played)


def record_all(folder: Path, episodes: int, jobs: int) -> float:
    """Seconds for all of them."""
    chunks = [range(first, min(first + CHUNK, episodes)) for first in range(0, episodes, CHUNK)]
    began = time.monotonic()
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        done = sum(pool.map(functools.partial(record, folder), chunks))
    assert done == episodes, (done, episodes)
    return time.monotonic() - began


# ---------------------------------------------------------------- a changed tool


def stored(folder: Path) -> Iterator[Trajectory]:
    yield from TrajectoryStore(folder / "trajectories" / "mixture.jsonl")


def with_changed_tool(cls: type[Environment], name: str) -> type[Environment]:
    """The class, or a combination of classes, whose tool says a word more under another version."""
    parts = getattr(cls, "parts", None)
    if parts:
        changed = {part: with_changed_tool(of, name) if name in of.tools else of for part, of in parts.items()}
        return type(f"Changed{cls.__name__}", (cls,), {"parts": changed})
    places = (
        (attribute, value)
        for base in cls.__mro__
        for attribute, value in vars(base).items()
        if isinstance(value, Tool) and value.name == name
    )
    attribute, original = next(places)

    @functools.wraps(original.function)
    def function(*args: Any, **kwargs: Any) -> str:
        return f"{to_text(original.function(*args, **kwargs))} indeed"

    replaced = dataclasses.replace(original, function=function, version=f"{original.version}-changed")
    return type(f"Changed{cls.__name__}", (cls,), {attribute: replaced})


def try_changed_tool(folder: Path, ref: str) -> tuple[str, int, int]:
    """The first difference in words, and how many episodes in which the tool succeeded were told, of how many."""
    cls, tasks = load_environment(ref), {task.id: task for task in tasks_of(folder)}
    some = [trajectory for _, trajectory in zip(range(CHANGED), stored(folder), strict=False)]
    name, _ = Counter(tool for trajectory in some for tool in succeeded(trajectory)).most_common(1)[0]
    kept = [trajectory for trajectory in some if not any(map(altered_when_stored, trajectory.steps))]
    calling = [trajectory for trajectory in kept if name in succeeded(trajectory)]
    changed = with_changed_tool(cls, name)
    reports = [replay_actions(trajectory, tasks[trajectory.task_id], changed) for trajectory in calling]
    told = [r for r in reports if r.difference and r.difference.tool == name and name in r.changed_versions]
    return (told[0].describe() if told else "nothing"), len(told), len(calling)


def succeeded(trajectory: Trajectory) -> set[str]:
    """Names of tools of which a call succeeded."""
    return {step.action.tool_name or "" for step in trajectory.steps if step.tool_output and step.tool_output.ok}


# ---------------------------------------------------------------- all of it


def measured(ref: str, episodes: int, jobs: int, folder: Path) -> Result:
    make_run(folder, ref)
    record_s = record_all(folder, episodes, jobs)
    seconds, steps, outcomes, reasons, examples = {}, {}, {}, {}, []
    for mode in MODES:
        began = time.monotonic()
        found = replay_run(folder, mode, make_progress("quiet"), jobs=jobs)
        seconds[mode] = time.monotonic() - began
        steps[mode], outcomes[mode] = found.total.steps, {**found.total.outcomes}
        reasons[mode] = found.reasons
        examples += [f"{mode}: {report.describe()}" for report in found.differences[:3]]
    said, told, calling = try_changed_tool(folder, ref)
    return Result(
        environment=ref,
        episodes=episodes,
        statuses=dict(Counter(status_of(trajectory) for trajectory in stored(folder))),
        megabytes=(folder / "trajectories" / "mixture.jsonl").stat().st_size / 1e6,
        record_s=record_s,
        replay_s=seconds,
        steps=steps,
        outcomes=outcomes,
        reasons=reasons,
        examples=tuple(examples),
        changed=said,
        changed_found=f"{told} of {calling}",
        ok=not examples and told == calling > 0,
    )


def shown(result: Result) -> str:
    lines = [
        f"{result.environment}: {result.episodes} episodes ({result.statuses}), {result.megabytes:.1f} MB, "
        f"recorded in {result.record_s:.1f} s"
    ]
    for mode in MODES:
        rate, steps = result.episodes / result.replay_s[mode], result.steps[mode]
        lines.append(f"  {mode:7} {rate:7.0f} episodes/s, {steps} steps compared, {result.outcomes[mode]}")
        lines += [f"          {count} not compared to the end: {why}" for why, count in result.reasons[mode].items()]
    lines += [f"  DIFFERENT {example}" for example in result.examples]
    lines.append(f"  changed tool told in {result.changed_found} episodes that call it: {result.changed}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=10_000, help="of each environment")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--environment", action="append", help="an id of the suite, or another reference; default: all")
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args()
    results = []
    for ref in options.environment or ENTRY_POINTS:
        with tempfile.TemporaryDirectory(prefix="deedrl-replay-") as folder:
            results.append(measured(ref, options.episodes, options.jobs, Path(folder) / "run"))
        print(shown(results[-1]), flush=True)
    peaks = [resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(f"peak memory: {peaks[0]:.0f} MB in this process, {peaks[1]:.0f} MB in the largest other one")
    if options.json:
        options.json.write_text(json.dumps([msgspec.to_builtins(result) for result in results], indent=2) + "\n")
    return 0 if all(result.ok for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
