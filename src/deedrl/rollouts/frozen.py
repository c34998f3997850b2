"""Frozen replay: an environment that runs no tool and answers from recordings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium

from deedrl.environments.environment import Environment, read_action
from deedrl.environments.noise import Noise, noisy_tools
from deedrl.errors import EnvironmentAuthorError
from deedrl.rollouts.recordings import Playback, Recordings
from deedrl.tools.toolbox import Toolbox
from deedrl.types import Action, Task, Verdict


class FrozenEnvironment(Environment):
    """Plays episodes of `recorded` from `recordings`: no tool, `setup` or `verify` of that class is called.

    The class says what a policy is told: instructions and schemas. A call, a state or an ending that is not in the
    recordings raises `NotRecorded`, which the runner records as a failure of the episode, never as reward 0.
    """

    blocking: ClassVar[bool] = False

    def __init__(self, recordings: Recordings, recorded: type[Environment]) -> None:
        self._recordings = recordings
        self._recorded = recorded
        self._playback: Playback | None = None
        self._offered = Toolbox()
        self._steps = 0
        self._over = False
        self._take_over(recorded)

    def _take_over(self, cls: type[Environment]) -> None:
        """What is asked of this object is what `cls` says."""
        vars(self).update({name: getattr(cls, name) for name in ("instructions", "max_steps", "tools")})

    @property
    def toolbox(self) -> Toolbox:
        """The tools of the task with their recorded versions, for schemas and limits."""
        return self.tools if self._playback is None else self._offered

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        gymnasium.Env.reset(self, seed=seed)
        task = self._choose_task(dict(options or {}))
        if seed is None:
            raise EnvironmentAuthorError("expected the seed of the recorded episode, got none; pass seed= to reset()")
        self._playback = self._recordings.start(task, seed)
        self._steps, self._over = 0, False
        self.task: Task = task
        self._take_over(self._recorded.played_by(task))
        versions, noise = self._playback.versions, Noise.from_levels(self._playback.noise)
        entries = noisy_tools(self.tools.restricted(task.tools), noise, task.id).values()
        self._offered = Toolbox(
            dataclasses.replace(entry, version=versions.get(entry.name, entry.version)) for entry in entries
        )
        return task.prompt, {"task_id": task.id}

    def step(self, action: Action | Mapping[str, Any] | str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        playback = self._playing
        if self._over:
            raise gymnasium.error.ResetNeeded("step() after the end of the episode; call reset() first")
        read = read_action(action, self.toolbox.schemas())
        if read.error is not None:
            self._steps += 1
            return read.error, 0.0, False, self._steps >= self.max_steps, {"ok": False, "ended_by": None}
        output = playback.call(read)
        self._steps += not output.by_noise
        info: dict[str, Any] = {"ok": output.ok, "ended_by": read.tool_name if output.ended else None}
        info["by_noise"] = output.by_noise
        if output.ended:
            info["verdict"] = playback.verdict()
        truncated = not output.ended and self._steps >= self.max_steps
        self._over = output.ended or truncated
        return output.text, output.reward, output.ended, truncated, info

    def current_verdict(self) -> Verdict:
        return self._playing.verdict()

    def state_hash(self) -> str | None:
        return self._playing.state_hash()

    def close(self) -> None:
        self._playback = None
        super().close()

    @property
    def _playing(self) -> Playback:
        if self._playback is None:
            raise gymnasium.error.ResetNeeded("no episode yet; call reset() first")
        return self._playback
