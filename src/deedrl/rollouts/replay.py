"""Environment replay: recorded actions in a fresh environment. (For policy replay see `RecordedPolicy`.)"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

from deedrl.environments.environment import Environment
from deedrl.errors import StoreError
from deedrl.rollouts.episode import environment_seed
from deedrl.rollouts.prompting import PromptVariant, user_message
from deedrl.rollouts.slot import AnyEnvironment, EnvironmentSource
from deedrl.types import Record, Step, Task, TerminationReason, Trajectory


class ReplayDifference(Record):
    """The first place where a replay left the recording."""

    step: int
    """Index of the step; the number of steps for a difference in the final verdict."""
    what: Literal["observation", "reward", "status", "state_hash", "verdict"]
    recorded: Any
    replayed: Any


class ReplayReport(Record):
    """Result of a replay; `difference` is None if all that was compared is bit-equal."""

    episode_id: str
    compared_steps: int
    difference: ReplayDifference | None
    recorded_versions: dict[str, str]
    replayed_versions: dict[str, str]

    @property
    def equal(self) -> bool:
        return self.difference is None

    def describe(self) -> str:
        """One sentence for people, naming tools whose version has changed."""
        if self.difference is None:
            return f"episode {self.episode_id}: {self.compared_steps} steps replayed, no difference"
        found = self.difference
        names = sorted(self.recorded_versions.keys() | self.replayed_versions.keys())
        pairs = [(name, self.recorded_versions.get(name), self.replayed_versions.get(name)) for name in names]
        changed = [f"{name} {before or 'absent'} -> {now or 'absent'}" for name, before, now in pairs if before != now]
        versions = f"changed tool versions: {', '.join(changed)}" if changed else "all tool versions are the same"
        return (
            f"episode {self.episode_id}: {found.what} differs at step {found.step}: "
            f"recorded {found.recorded!r}, replayed {found.replayed!r}; {versions}"
        )


def replay_actions(trajectory: Trajectory, task: Task, environment: Callable[[], AnyEnvironment]) -> ReplayReport:
    """Plays the recorded actions of `trajectory` on `task` in a new environment, in this thread, without limits.

    Compares, step by step, state hash (where recorded), observation, reward and status (ok, end of the episode), and
    last the verdict. Recorded completions that were no action touch no environment and are passed over. Steps
    whose result is missing (time-out, crash) cannot be compared: the replay ends before them. A task with another
    id than the trajectory's raises `StoreError`; exceptions of the environment pass through.
    """
    if task.id != trajectory.task_id:
        raise StoreError(
            f"episode '{trajectory.episode_id}' was recorded on task '{trajectory.task_id}', got task '{task.id}'; "
            "replay with the task of the recording"
        )
    wrapped = EnvironmentSource(environment).make()
    base = wrapped.unwrapped
    assert isinstance(base, Environment)
    try:
        wrapped.reset(seed=environment_seed(trajectory.provenance.seed), options={"task": task})
        versions = base.toolbox.versions()
        compared, difference = 0, None
        for step in comparable_steps(trajectory):
            difference = first_difference(step, _play(step, wrapped, base), last=step is trajectory.steps[-1])
            compared += 1
            if difference is not None:
                break
        verdict = base.current_verdict()
    finally:
        wrapped.close()
    complete = trajectory.termination is not TerminationReason.TIMEOUT and trajectory.verdict is not None
    if difference is None and complete and verdict != trajectory.verdict:
        end = len(trajectory.steps)
        difference = ReplayDifference(step=end, what="verdict", recorded=trajectory.verdict, replayed=verdict)
    return ReplayReport(
        episode_id=trajectory.episode_id,
        compared_steps=compared,
        difference=difference,
        recorded_versions=trajectory.provenance.tool_versions,
        replayed_versions=versions,
    )
