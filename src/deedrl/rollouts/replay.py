"""Environment replay: recorded actions in a fresh environment. (For policy replay see `RecordedPolicy`.)"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from deedrl.environments.environment import Environment
from deedrl.environments.noise import Noise, with_noise
from deedrl.errors import StoreError
from deedrl.rollouts.episode import environment_seed
from deedrl.rollouts.slot import AnyEnvironment, EnvironmentSource
from deedrl.types import Record, Step, Task, TerminationReason, Trajectory

_ENDED_BY_ENVIRONMENT = (TerminationReason.GOAL, TerminationReason.TOOL_ENDED)


class ReplayDifference(Record, frozen=True):
    """The first place where a replay left the recording."""

    step: int
    """Index of the step; the number of steps for a difference in the final verdict."""
    what: str
    """``state_hash``, ``observation``, ``reward``, ``status`` or ``verdict``."""
    recorded: Any
    replayed: Any


class ReplayReport(Record, frozen=True):
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
    wrapped = with_noise(EnvironmentSource(environment).make(), Noise.from_levels(trajectory.provenance.noise))
    base = wrapped.unwrapped
    assert isinstance(base, Environment)
    try:
        wrapped.reset(seed=environment_seed(trajectory.provenance.seed), options={"task": task})
        versions = wrapped.get_wrapper_attr("toolbox").versions()
        compared, difference = 0, None
        for step in comparable_steps(trajectory):
            ended = step is trajectory.steps[-1] and trajectory.termination in _ENDED_BY_ENVIRONMENT
            difference = first_difference(step.index, _recorded(step, ended), _replayed(step, wrapped, base))
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


def comparable_steps(trajectory: Trajectory) -> Iterator[Step]:
    """Steps whose action ran and came back, up to the first whose result is missing."""
    for step in trajectory.steps:
        if step.tool_output is None and step.action.valid:
            return
        if step.tool_output is not None:
            if step.reward_missing is not None:
                return
            yield step


def first_difference(step: int, recorded: Mapping[str, Any], replayed: Mapping[str, Any]) -> ReplayDifference | None:
    """The first key, in order, whose values are not equal."""
    for what, value in recorded.items():
        if value != replayed[what]:
            return ReplayDifference(step=step, what=what, recorded=value, replayed=replayed[what])
    return None


def _recorded(step: Step, ended: bool) -> dict[str, Any]:
    assert step.tool_output is not None
    return {
        "state_hash": step.state_hash,
        "observation": step.tool_output.text,
        "reward": step.reward,
        "status": _status(step.tool_output.ok, ended),
    }


def _replayed(step: Step, wrapped: AnyEnvironment, base: Environment) -> dict[str, Any]:
    state_hash = None if step.state_hash is None else base.state_hash()
    observation, reward, terminated, _, info = wrapped.step(step.action)
    return {
        "state_hash": state_hash,
        "observation": observation,
        "reward": float(reward),
        "status": _status(bool(info.get("ok", True)), terminated),
    }


def _status(ok: bool, ended: bool) -> str:
    return ("ok" if ok else "error") + (", episode ended" if ended else "")
