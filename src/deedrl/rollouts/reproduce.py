"""Recorded completions through the episode loop again: policy replay in the environment, frozen replay without it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from deedrl.environments.environment import Environment
from deedrl.environments.noise import Noise
from deedrl.policies.recorded import RecordedPolicy
from deedrl.rewards.rubric import Rubric
from deedrl.rollouts import episode
from deedrl.rollouts.episode import EpisodeSpec
from deedrl.rollouts.failures import FailurePolicy
from deedrl.rollouts.frozen import FrozenEnvironment
from deedrl.rollouts.limits import Limits
from deedrl.rollouts.recordings import InOrder
from deedrl.rollouts.replay_report import (
    ALTERED,
    ReplayDifference,
    ReplayReport,
    altered_when_stored,
    first_difference,
    incomparable,
)
from deedrl.rollouts.runner import run_episodes_sync
from deedrl.rollouts.slot import AnyEnvironment
from deedrl.types import Step, Task, TerminationReason, Trajectory

_NO_RETRIES = FailurePolicy(retries=0, max_failure_share=1.0)
_BY_TIME = "the episode was ended by the clock"


def replay_completions(
    trajectories: Sequence[Trajectory],
    tasks: Mapping[str, Task],
    environment: Callable[[], AnyEnvironment],
    *,
    limits: Limits,
    rubric: Rubric | None,
    unreplayable: Mapping[str, str] | None = None,
) -> list[ReplayReport]:
    """Policy replay: plays what was recorded, without a model, and compares all of it.

    `tasks`: by id, one for each trajectory. `limits` and `rubric` are to be those of the recording; a rubric of None
    leaves rewards out. `unreplayable`: why results of these tools need not come again.
    """
    specs = [
        _spec(trajectory, tasks[trajectory.task_id], Noise.from_levels(trajectory.provenance.noise))
        for trajectory in trajectories
    ]
    return _replayed(specs, trajectories, environment, limits, rubric, unreplayable or {})


def _replayed(
    specs: Sequence[EpisodeSpec],
    trajectories: Sequence[Trajectory],
    environment: Callable[[], AnyEnvironment],
    limits: Limits,
    rubric: Rubric | None,
    unreplayable: Mapping[str, str],
) -> list[ReplayReport]:
    """Plays `specs` from the completions of `trajectories`, and compares."""
    with _unlogged():
        replayed = run_episodes_sync(
            specs,
            environment=environment,
            policy=RecordedPolicy(trajectories),
            rubric=rubric,
            limits=limits,
            failures=_NO_RETRIES,
        )
    pairs = zip(trajectories, replayed, strict=True)
    return [compared(recorded, now, unreplayable, rewards=rubric is not None) for recorded, now in pairs]


def replay_frozen(
    trajectories: Sequence[Trajectory],
    tasks: Mapping[str, Task],
    recorded: type[Environment],
    *,
    limits: Limits,
    rubric: Rubric | None,
) -> list[ReplayReport]:
    """Frozen replay: like `replay_completions`, but tools' outputs and verdicts are served from the recordings too."""
    recordings = InOrder(trajectories)

    def frozen() -> FrozenEnvironment:
        return FrozenEnvironment(recordings, recorded)

    # The recorded outputs hold the noise they were given with.
    specs = [_spec(trajectory, tasks[trajectory.task_id], Noise()) for trajectory in trajectories]
    return _replayed(specs, trajectories, frozen, limits, rubric, {})


@contextmanager
def _unlogged() -> Iterator[None]:
    """Failures of replayed episodes are what the reports are about; the loop's own warnings would say them twice."""
    before = episode.log.level
    episode.log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        episode.log.setLevel(before)


def _spec(trajectory: Trajectory, task: Task, noise: Noise) -> EpisodeSpec:
    """What was shown in the first turn is not made again: a recorded policy does not read it."""
    origin = trajectory.provenance
    return EpisodeSpec(
        task=task,
        episode_id=trajectory.episode_id,
        seed=origin.seed,
        role=trajectory.role,
        noise=noise,
        provenance=origin,
    )


# ---------------------------------------------------------------- comparing


def compared(
    recorded: Trajectory, replayed: Trajectory, unreplayable: Mapping[str, str], *, rewards: bool = True
) -> ReplayReport:
    """Two recordings of one episode, step by step and as a whole; durations, token counts aside, are not compared."""
    difference: ReplayDifference | None = None
    stopped: str | None = None
    count = 0
    for before, now in zip(recorded.steps, replayed.steps, strict=False):
        stopped = incomparable(before, unreplayable)
        if stopped is not None:
            break
        count += 1
        difference = first_difference(before.index, before.action.tool_name, _seen(before), _seen(now))
        if difference is not None:
            break
    if difference is None and stopped is None:
        difference, stopped = _ends(recorded, replayed, rewards)
    played = recorded.steps[: count + 1]
    if difference is not None and any(map(altered_when_stored, played)):
        difference, stopped = None, ALTERED
    return ReplayReport(
        episode_id=recorded.episode_id,
        compared_steps=count,
        difference=difference,
        recorded_versions=recorded.provenance.tool_versions,
        replayed_versions=replayed.provenance.tool_versions,
        stopped=stopped,
    )


def _seen(step: Step) -> dict[str, Any]:
    output = step.tool_output
    return {
        # Earlier versions did not record the state of a completion that was no action.
        **({} if step.state_hash is None else {"state_hash": step.state_hash}),
        # The first observation is the task, which has the recorded id.
        **({"shown text": step.observation} if step.index else {}),
        "action": step.action,
        "observation": None if output is None else output.text,
        "status": None if output is None else output.ok,
        "reward": step.reward,
    }


def _ends(recorded: Trajectory, replayed: Trajectory, rewards: bool) -> tuple[ReplayDifference | None, str | None]:
    """The first difference of whole episodes, or why they cannot be compared."""
    if recorded.failure is not None:
        return None, f"the recording failed ({recorded.failure.phase}, {recorded.failure.kind})"
    if recorded.termination is TerminationReason.TIMEOUT:
        return None, _BY_TIME
    at = len(recorded.steps)
    tool = recorded.steps[-1].action.tool_name if recorded.steps else None
    if replayed.failure is not None:
        failure = f"{replayed.failure.kind}: {replayed.failure.message}"
        step = min(len(replayed.steps), at)
        return ReplayDifference(step=step, what="exception", recorded=None, replayed=failure, tool=tool), None
    return first_difference(at, tool, _ending(recorded, rewards), _ending(replayed, rewards)), None


def _ending(trajectory: Trajectory, rewards: bool) -> dict[str, Any]:
    return {
        "steps": len(trajectory.steps),
        "termination": trajectory.termination.value,
        "verdict": trajectory.verdict,
        **({"total reward": trajectory.reward} if rewards else {}),
    }
