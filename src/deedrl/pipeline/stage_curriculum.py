"""The curriculum of one online stage of a run: what earlier stages saw, what is recorded, what later ones are left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from deedrl.errors import StoreError
from deedrl.pipeline.curriculum import Curriculum, Observer
from deedrl.pipeline.curriculum_settings import AnyCurriculum
from deedrl.pipeline.online import UNOBSERVED, TaskSource, training_tasks
from deedrl.pipeline.profile_settings import Profile
from deedrl.pipeline.session import Session
from deedrl.pipeline.stage_base import OnlineSettings
from deedrl.seeding import stream
from deedrl.tasks.choosing import LEFT_OUT
from deedrl.tasks.experience import Experience
from deedrl.training import processes
from deedrl.types import Record, Task, Trajectory


class SeenTasks(Record, frozen=True, kw_only=True):
    """What a stage leaves of the tasks it played, as a file of the run."""

    policy_version: str
    """The policy that the latest of it was seen of."""
    pool_version: str
    tasks: dict[str, Experience]
    """By task id, as of the stage's end."""


def seen_file(stage: str) -> str:
    """Name of the file in the run folder."""
    return f"seen-{stage}.json"


def earlier_experience(session: Session, stage: str) -> tuple[dict[str, Experience], str | None]:
    """What finished stages before `stage` saw of tasks, and the policy the latest of it was seen of.

    A profile replaces what was known of the tasks it played; a stage with a curriculum has taken on what came before.
    """
    seen: dict[str, Experience] = {}
    policy: str | None = None
    for other in session.recipe.stages:
        if other.title == stage:
            break
        leaves = isinstance(other, Profile) or (isinstance(other, OnlineSettings) and other.curriculum is not None)
        if leaves and session.run.finished(other.title) is not None:
            found = processes.from_first(lambda title=other.title: _read(session, title))  # type: ignore[misc]
            seen, policy = {**seen, **found.tasks}, found.policy_version
    return seen, policy


def _read(session: Session, stage: str) -> SeenTasks:
    path = session.run.folder / seen_file(stage)
    try:
        return msgspec.json.decode(path.read_bytes(), type=SeenTasks)
    except (OSError, msgspec.DecodeError) as error:
        raise StoreError(
            f"{path}: expected what the finished stage '{stage}' saw of its tasks, cannot be read: {error}; put it "
            "back or run the recipe in a new folder"
        ) from error


def task_source(session: Session, stage: OnlineSettings) -> tuple[TaskSource, Observer]:
    """Where the stage's tasks come from, and what is to follow its steps."""
    if stage.curriculum is None:
        return training_tasks(session, stage.title), UNOBSERVED
    curriculum = StageCurriculum(session, stage, stage.curriculum)
    return curriculum.tasks, curriculum


class StageCurriculum:
    """Draws a stage's tasks, and records in the run what they were drawn from."""

    def __init__(self, session: Session, stage: OnlineSettings, settings: AnyCurriculum) -> None:
        self._session, self._stage = session, stage
        seen, policy = earlier_experience(session, stage.title)
        self._curriculum = Curriculum(settings, session.pools["train"], seen, stage.tasks_per_step)
        self._stood_in: set[str] = set()
        if policy is not None and policy != session.policy_version:
            self._warn(
                f"what is known of its tasks was seen of the policy {policy}, the stage starts from "
                f"{session.policy_version}; put a profile stage before it to measure anew"
            )

    def tasks(self, step: int, count: int, weights: Mapping[str, float]) -> list[Task]:
        """`count` distinct tasks for `step` (from 0)."""
        rng = stream(self._session.recipe.seed, self._stage.title, "tasks", step)
        return self._curriculum.draw(step, count, weights, rng)

    def saw(self, step: int, episodes: Sequence[Trajectory]) -> None:
        self._curriculum.saw(step, episodes)

    def figures(self, step: int) -> dict[str, float]:
        """Records the step's draw as an event of the run, too; a group that ran out is said once."""
        report = self._curriculum.report(step)
        self._session.run.record("curriculum", stage=self._stage.title, step=step + 1, **msgspec.to_builtins(report))
        for which in sorted(report.fallback.keys() - self._stood_in):
            self._stood_in.add(which)
            wanted, _, found = which.partition(" from ")
            source = "tasks that `where` leaves out" if found == LEFT_OUT else f"'{found}' tasks"
            self._warn(f"step {step + 1}: too few '{wanted}' tasks, {source} stand in ({report.fallback[which]})")
        return report.figures()

    def state(self, step: int) -> dict[str, Any]:
        return self._curriculum.state(step)

    def restore(self, step: int, state: Mapping[str, Any]) -> None:
        self._curriculum.restore(step, state)

    def finish(self, step: int) -> None:
        """Leaves what was seen in `step` steps to later stages."""
        self._session.run.write_json(seen_file(self._stage.title), self._seen(step))

    def _seen(self, step: int) -> SeenTasks:
        tasks = self._curriculum.seen_at(step)
        return SeenTasks(
            policy_version=self._session.policy_version,
            pool_version=self._curriculum.version(step),
            # A later stage counts its own steps, from 0.
            tasks={task_id: msgspec.structs.replace(seen, step=0) for task_id, seen in tasks.items()},
        )

    def _warn(self, text: str) -> None:
        self._session.run.record("warning", stage=self._stage.title, text=text)
        self._session.context.progress.warn(f"{self._stage.title}: {text}")
