"""Recorded tool outputs, found again by order or by call: what a `FrozenEnvironment` answers from."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import msgspec

from deedrl.errors import StoreError
from deedrl.rollouts.episode import environment_seed
from deedrl.rollouts.replay_report import incomparable
from deedrl.store.codec import as_stored
from deedrl.types import Action, Record, Step, Task, TerminationReason, Trajectory, Verdict

_ENDED = (TerminationReason.GOAL, TerminationReason.TOOL_ENDED)
MAX_SHOWN_CHARS = 200
"""Of a call, in a message."""


class NotRecorded(StoreError):
    """A frozen environment was asked for something that its recordings do not hold."""


class Output(Record, frozen=True):
    """What came of one recorded call."""

    text: str
    ok: bool
    reward: float
    ended: bool
    """The environment ended the episode with this call."""
    by_noise: bool = False
    """Injected noise answered in the tool's place."""


class Playback(Protocol):
    """One episode's way through recordings; every method raises `NotRecorded` for what they do not hold."""

    versions: Mapping[str, str]
    noise: Mapping[str, float]
    """Levels of the noise that is in the recorded outputs."""

    def call(self, action: Action) -> Output: ...

    def state_hash(self) -> str | None: ...

    def verdict(self) -> Verdict: ...


class Recordings(Protocol):
    """Recorded episodes of one environment."""

    def start(self, task: Task, seed: int) -> Playback:
        """The episode of `task` that is reset with `seed`."""
        ...


def call_key(action: Action) -> bytes:
    """The same for calls of one tool with equal parameters, whatever their order, before and after storing."""
    parameters = _stored_form(msgspec.to_builtins(action.parameters, str_keys=True))
    return msgspec.json.encode([as_stored(action.tool_name or ""), parameters], order="deterministic")


def _stored_form(value: Any) -> Any:
    if isinstance(value, str):
        return as_stored(value)
    if isinstance(value, dict):
        return {as_stored(name): _stored_form(item) for name, item in value.items()}
    return [_stored_form(item) for item in value] if isinstance(value, list | tuple) else value


def _shown(key: bytes) -> str:
    name, parameters = msgspec.json.decode(key)
    text = f"{name}({', '.join(f'{key}={value!r}' for key, value in parameters.items())})"
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}…"


def _calls(trajectory: Trajectory) -> Iterator[tuple[Step, bytes, Output | str]]:
    """The steps that were calls, with their keys and what came of them, or why that was not recorded."""
    for step in trajectory.steps:
        if not step.action.valid:
            continue
        missing = incomparable(step, {})
        if missing is not None or step.tool_output is None:
            yield step, call_key(step.action), missing or "no result"
            return
        ended = step is trajectory.steps[-1] and trajectory.termination in _ENDED
        output = step.tool_output
        reward = step.reward or 0.0
        served = Output(text=output.text, ok=output.ok, reward=reward, ended=ended, by_noise=output.by_noise)
        yield step, call_key(step.action), served


# ---------------------------------------------------------------- in order


class InOrder:
    """The n-th call of an episode gets the n-th recorded output, if it is the recorded call.

    Episodes are told apart by task and seed, so `trajectories` are those of one stage: two of the same task and seed
    raise `StoreError`.
    """

    def __init__(self, trajectories: Iterable[Trajectory]) -> None:
        self._episodes: dict[tuple[str, int], Trajectory] = {}
        for trajectory in trajectories:
            key = trajectory.task_id, environment_seed(trajectory.provenance.seed)
            other = self._episodes.setdefault(key, trajectory)
            if other is not trajectory:
                raise StoreError(
                    f"episodes '{other.episode_id}' and '{trajectory.episode_id}' have the same task and seed, so a "
                    "frozen environment cannot tell them apart; give it the episodes of one stage"
                )

    def start(self, task: Task, seed: int) -> Playback:
        trajectory = self._episodes.get((task.id, seed))
        if trajectory is None:
            raise NotRecorded(
                f"expected a recorded episode of task '{task.id}' with this seed, found none among "
                f"{len(self._episodes)}; play the tasks of the recording with the seeds of its episodes"
            )
        return _OrderedPlayback(trajectory)


class _OrderedPlayback:
    def __init__(self, trajectory: Trajectory) -> None:
        self.versions: Mapping[str, str] = trajectory.provenance.tool_versions
        self.noise: Mapping[str, float] = trajectory.provenance.noise
        self._trajectory = trajectory
        self._calls = list(_calls(trajectory))
        self._played = 0

    def call(self, action: Action) -> Output:
        episode, number, made = self._trajectory.episode_id, self._played, call_key(action)
        if number >= len(self._calls):
            raise NotRecorded(
                f"episode '{episode}' has {len(self._calls)} recorded calls, but another one was made: {_shown(made)}; "
                "play the recorded completions, or look calls up (ByCall) for a policy that does other things"
            )
        _, recorded, output = self._calls[number]
        if made != recorded:
            raise NotRecorded(
                f"episode '{episode}', call {number + 1}: expected the recorded {_shown(recorded)}, got "
                f"{_shown(made)}; play the recorded completions, or look calls up (ByCall) for a policy that does "
                "other things"
            )
        if isinstance(output, str):
            raise NotRecorded(f"episode '{episode}', call {number + 1}, {_shown(made)}: {output}")
        self._played += 1
        return output

    def state_hash(self) -> str | None:
        """As recorded before the next call; a completion that was no action left the same one."""
        if self._played < len(self._calls):
            return self._calls[self._played][0].state_hash
        last = self._trajectory.steps[-1] if self._trajectory.steps else None
        return None if last is None or last.action.valid else last.state_hash

    def verdict(self) -> Verdict:
        verdict = self._trajectory.verdict
        if verdict is None or self._played < len(self._calls):
            why = "has no verdict" if verdict is None else f"ended after {len(self._calls)} calls, not {self._played}"
            raise NotRecorded(f"the recording of episode '{self._trajectory.episode_id}' {why}")
        return verdict


# ---------------------------------------------------------------- by call

_START = b""


class ByCall:
    """A call gets the output that it got in any recording of the task after the same calls; for a changed policy.

    Calls of tools that are `read_only` change nothing and do not count as calls before. What recordings disagree about
    (an environment whose results depend on the seed, or do not replay) is refused like what was never recorded.
    """

    def __init__(
        self, trajectories: Iterable[Trajectory], read_only: Callable[[str], bool] = lambda tool: False
    ) -> None:
        self._read_only = read_only
        self._outputs: dict[tuple[str, bytes, bytes], Output | str] = {}
        self._hashes: dict[tuple[str, bytes], str | None] = {}
        self._verdicts: dict[tuple[str, bytes], Verdict | str] = {}
        self._versions: dict[str, Mapping[str, str]] = {}
        for trajectory in trajectories:
            self._add(trajectory)

    def _add(self, trajectory: Trajectory) -> None:
        task, state = trajectory.task_id, _START
        self._versions.setdefault(task, trajectory.provenance.tool_versions)
        complete = trajectory.verdict is not None
        for step, key, output in _calls(trajectory):
            self._hashes.setdefault((task, state), step.state_hash)
            if isinstance(output, str):
                complete = False
                break
            if output.by_noise:  # not what the tool gives after these calls
                continue
            _keep(self._outputs, (task, state, _digest(key)), output)
            state = self._after(state, step.action, key)
        if complete and trajectory.verdict is not None:
            _keep(self._verdicts, (task, state), trajectory.verdict)

    def _after(self, state: bytes, action: Action, key: bytes) -> bytes:
        return state if self._read_only(action.tool_name or "") else _digest(state + key)

    def start(self, task: Task, seed: int) -> Playback:
        if task.id not in self._versions:
            raise NotRecorded(
                f"expected a recorded episode of task '{task.id}', found none ({len(self._versions)} tasks)"
            )
        return _LookedUpPlayback(self, task.id)


class _LookedUpPlayback:
    def __init__(self, recordings: ByCall, task: str) -> None:
        self.versions = recordings._versions[task]
        self.noise: Mapping[str, float] = {}
        self._recordings = recordings
        self._task = task
        self._state = _START

    def call(self, action: Action) -> Output:
        key = call_key(action)
        output = self._recordings._outputs.get((self._task, self._state, _digest(key)), "it was never recorded")
        if isinstance(output, str):
            raise NotRecorded(
                f"task '{self._task}': no output for {_shown(key)} after the calls made so far: {output}; record "
                "episodes in which it is made, or play the environment itself"
            )
        self._state = self._recordings._after(self._state, action, key)
        return output

    def state_hash(self) -> str | None:
        return self._recordings._hashes.get((self._task, self._state))

    def verdict(self) -> Verdict:
        verdict = self._recordings._verdicts.get((self._task, self._state), "no recorded episode ended like this")
        if isinstance(verdict, str):
            raise NotRecorded(f"task '{self._task}': no verdict after the calls made: {verdict}")
        return verdict


def _keep(known: dict[Any, Any], key: Any, value: Any) -> None:
    """Adds `value`, or notes that recordings disagree about what is there."""
    if known.setdefault(key, value) != value:
        known[key] = "recordings disagree about it"


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()
