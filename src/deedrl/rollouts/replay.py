"""Environment replay: recorded actions in a fresh environment. (For policy and frozen replay see `reproduce`.)"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from deedrl.environments.contract import contained
from deedrl.environments.environment import Environment
from deedrl.environments.noise import Noise, with_noise
from deedrl.errors import StoreError
from deedrl.redaction import loggable
from deedrl.rollouts.episode import environment_seed
from deedrl.rollouts.replay_report import (
    ALTERED,
    ReplayDifference,
    ReplayReport,
    altered_when_stored,
    first_difference,
    incomparable,
)
from deedrl.rollouts.slot import AnyEnvironment, EnvironmentSource
from deedrl.tools.tool import Tool
from deedrl.types import Step, Task, TerminationReason, Trajectory

__all__ = ["ReplayDifference", "ReplayReport", "replay_actions"]

REPLAY_LIMIT_S = 600.0
"""For one episode, where a call can be interrupted: in the main thread of a process."""
_ENDED_BY_ENVIRONMENT = (TerminationReason.GOAL, TerminationReason.TOOL_ENDED)


def replay_actions(
    trajectory: Trajectory,
    task: Task,
    environment: Callable[[], AnyEnvironment],
    *,
    unreplayable: Collection[str] = (),
) -> ReplayReport:
    """Plays the recorded actions of `trajectory` on `task` in a new environment, in this thread.

    Compares, step by step, state hash (where recorded), observation, reward and status (ok, end of the episode), and
    last the verdict. Recorded completions that were no action touch no environment and are passed over. The comparison
    stops, and says why, before a call whose result is missing or was decided by a time limit, and before one of a tool
    that is named `unreplayable` or declared so. An exception of the environment is a difference. A task with another
    id than the trajectory's raises `StoreError`.
    """
    if task.id != trajectory.task_id:
        raise StoreError(
            f"episode '{trajectory.episode_id}' was recorded on task '{trajectory.task_id}', got task '{task.id}'; "
            "replay with the task of the recording"
        )
    wrapped = with_noise(EnvironmentSource(environment).make(), Noise.from_levels(trajectory.provenance.noise))
    replay = _Replay(trajectory, wrapped, unreplayable)
    try:
        with contained(REPLAY_LIMIT_S, f"replaying episode '{trajectory.episode_id}'"):
            replay.play(task)
    except Exception as error:  # noqa: BLE001  the boundary where an environment that raises has left the recording
        replay.raised(error)
    finally:
        wrapped.close()
    return replay.report()


class _Replay:
    """State of one replay."""

    def __init__(self, trajectory: Trajectory, wrapped: AnyEnvironment, unreplayable: Collection[str]) -> None:
        base = wrapped.unwrapped
        assert isinstance(base, Environment)
        self._recorded = trajectory
        self._wrapped = wrapped
        self._base = base
        self._named = allowed_unreplayable(unreplayable)
        self._versions: dict[str, str] = {}
        self._compared = 0
        self._at = 0
        self._tool: str | None = None
        self._difference: ReplayDifference | None = None
        self._stopped: str | None = None

    def play(self, task: Task) -> None:
        seed = environment_seed(self._recorded.provenance.seed)
        self._wrapped.reset(seed=seed, options={"task": task})
        toolbox = self._wrapped.get_wrapper_attr("toolbox")
        self._versions = toolbox.versions()
        reasons = declared_unreplayable(toolbox.values()) | self._named
        for step in self._recorded.steps:
            self._at = step.index
            self._stopped = incomparable(step, reasons)
            if self._stopped is not None:
                return
            if step.tool_output is not None:
                self._compare(step)
            if self._difference is not None:
                return
        self._compare_verdicts()

    def _compare(self, step: Step) -> None:
        before, self._tool = self._tool, step.action.tool_name
        ended = step is self._recorded.steps[-1] and self._recorded.termination in _ENDED_BY_ENVIRONMENT
        if step.state_hash is not None:
            states = {"state_hash": step.state_hash}, {"state_hash": self._base.state_hash()}
            self._difference = first_difference(step.index, before, *states)
            if self._difference is not None:
                return
        recorded, replayed = _recorded(step, ended), _replayed(step, self._wrapped)
        self._difference = first_difference(step.index, self._tool, recorded, replayed)
        self._compared += 1

    def _compare_verdicts(self) -> None:
        """An episode that time or trouble outside the environment ended may have left no verdict to compare."""
        self._at = len(self._recorded.steps)
        if self._recorded.termination is TerminationReason.TIMEOUT or self._recorded.verdict is None:
            return
        verdicts = {"verdict": self._recorded.verdict}, {"verdict": self._base.current_verdict()}
        self._difference = first_difference(self._at, self._tool, *verdicts)

    def raised(self, error: Exception) -> None:
        text = loggable(f"{type(error).__name__}: {error}")
        self._difference = ReplayDifference(
            step=self._at, what="exception", recorded=None, replayed=text, tool=self._tool
        )

    def report(self) -> ReplayReport:
        played = self._recorded.steps[: self._at + 1]
        lost = self._difference is not None and any(map(altered_when_stored, played))
        return ReplayReport(
            episode_id=self._recorded.episode_id,
            compared_steps=self._compared,
            difference=None if lost else self._difference,
            recorded_versions=self._recorded.provenance.tool_versions,
            replayed_versions=self._versions,
            stopped=ALTERED if lost else self._stopped,
        )


def declared_unreplayable(tools: Iterable[Tool]) -> dict[str, str]:
    """Why results of some of these tools need not come again, by name: their author declared it."""
    return {
        tool.name: f"calls '{tool.name}', which is declared not replayable" for tool in tools if not tool.replayable
    }


def allowed_unreplayable(tools: Iterable[str]) -> dict[str, str]:
    """Why results of these tools need not come again, by name: whoever replays said so."""
    return {tool: f"calls '{tool}', which is allowed not to replay" for tool in tools}


def _recorded(step: Step, ended: bool) -> Mapping[str, Any]:
    assert step.tool_output is not None
    return {
        "observation": step.tool_output.text,
        "reward": step.reward,
        "status": _status(step.tool_output.ok, ended),
    }


def _replayed(step: Step, wrapped: AnyEnvironment) -> Mapping[str, Any]:
    observation, reward, terminated, _, info = wrapped.step(step.action)
    return {
        "observation": observation,
        "reward": float(reward),
        "status": _status(bool(info.get("ok", True)), terminated),
    }


def _status(ok: bool, ended: bool) -> str:
    return ("ok" if ok else "error") + (", episode ended" if ended else "")
