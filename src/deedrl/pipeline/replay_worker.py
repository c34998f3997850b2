"""A process of its own in which a few episodes are replayed: a module's state and the order of sets are new there."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from deedrl.config import to_plain
from deedrl.environments.loading import load_environment
from deedrl.environments.worker import pack, unpack
from deedrl.errors import DeedRLError
from deedrl.pipeline.job import environment_maker
from deedrl.pipeline.recipe import Recipe, recipe_from
from deedrl.rollouts.replay import REPLAY_LIMIT_S, replay_actions
from deedrl.rollouts.replay_report import ReplayReport
from deedrl.types import Record, Task, Trajectory


class ReplayRequest(Record, frozen=True):
    """Episodes to be replayed, each on the task at its place."""

    recipe: dict[str, Any]
    tasks: tuple[Task, ...]
    trajectories: tuple[Trajectory, ...]


class ReplayAnswer(Record, frozen=True):
    """A report for each episode, or what is wrong with the environment."""

    reports: tuple[ReplayReport, ...] = ()
    problem: str | None = None


def replay_apart(recipe: Recipe, trajectories: Sequence[Trajectory], tasks: Mapping[str, Task]) -> list[ReplayReport]:
    """Replays in a fresh process; `tasks` by id. Raises DeedRLError if the environment cannot be loaded there."""
    chosen = tuple(tasks[trajectory.task_id] for trajectory in trajectories)
    request = ReplayRequest(recipe=to_plain(recipe), tasks=chosen, trajectories=tuple(trajectories))
    ref = recipe.environment.ref
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__],
            input=pack(request),
            capture_output=True,
            timeout=REPLAY_LIMIT_S * (len(chosen) + 1),
            # Texts are hashed otherwise there, so that an order which comes from their hashes shows.
            env={
                **os.environ,
                "PYTHONHASHSEED": "random",
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            },
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise DeedRLError(f"replaying {len(chosen)} episodes of {ref} took more than {error.timeout:g} s") from None
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip()[-500:]
        raise DeedRLError(f"the process that replayed episodes of {ref} ended with code {done.returncode}: {said}")
    answer = unpack(done.stdout, ReplayAnswer)
    if answer.problem is not None:
        raise DeedRLError(f"{ref} cannot be replayed in a process of its own: {answer.problem}")
    return list(answer.reports)


def answered(request: ReplayRequest) -> ReplayAnswer:
    """What is written back; an exception may be trouble of the moment and has to come twice."""
    recipe = recipe_from(request.recipe)
    try:
        environment = environment_maker(recipe, load_environment(recipe.environment.ref))
        reports = []
        for trajectory, task in zip(request.trajectories, request.tasks, strict=True):
            for _ in range(2):
                allowed = recipe.environment.allow_unreplayable
                report = replay_actions(trajectory, task, environment, unreplayable=allowed)
                if report.difference is None or report.difference.what != "exception":
                    break
            reports.append(report)
    except DeedRLError as error:
        return ReplayAnswer(problem=str(error))
    return ReplayAnswer(reports=tuple(reports))


def main() -> None:
    """Entry point: one request on stdin, one answer on stdout, which the environment cannot write to."""
    request = unpack(sys.stdin.buffer.read(), ReplayRequest)
    with os.fdopen(os.dup(1), "wb") as out, contextlib.redirect_stdout(sys.stderr):
        os.dup2(2, 1)
        out.write(pack(answered(request)))


if __name__ == "__main__":
    main()
