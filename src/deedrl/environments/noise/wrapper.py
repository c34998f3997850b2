"""A Gymnasium wrapper that makes an environment's tools as unreliable as real ones, repeatably."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, SupportsFloat

import gymnasium
import msgspec
from gymnasium.utils import seeding

from deedrl.environments.environment import read_action
from deedrl.environments.noise.levels import Noise
from deedrl.environments.noise.tools import noisy_tools
from deedrl.environments.noise.words import PARTIAL, STALE, UNAVAILABLE, halved, reworded, words_of
from deedrl.errors import ToolError
from deedrl.seeding import derive_seed, stream
from deedrl.tools.text import to_text
from deedrl.tools.tool import Tool
from deedrl.tools.toolbox import Toolbox
from deedrl.types import Action

Result = tuple[str, SupportsFloat, bool, bool, dict[str, Any]]

MOST_HICCUPS = 4
"""Steps that noise may take in one episode."""
_PER_STEP = ("delays", "failures", "partial", "stale")


class NoisyEnvironment(gymnasium.Wrapper[str, Any, str, Any]):
    """`environment` with the noise of `noise`, decided by the seed of `reset` alone; at level 0 it is the bare one.

    Failures, stale answers and the second call for a partial one take a step each, with ``info["by_noise"]`` True: the
    tool did not run, the environment's own steps do not count it, and after `MOST_HICCUPS` of them in an episode there
    are no more. The next call after one of them is always served, so whoever repeats a call reaches what can be reached
    without noise. ``info["delay_s"]`` is what `sleep` was given.
    """

    def __init__(
        self,
        environment: gymnasium.Env[str, Any],
        noise: Noise,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        super().__init__(environment)
        self.noise = noise
        self._sleep = sleep
        self._seed = int(seeding.np_random(None)[1])
        self._episode: _NoisyEpisode | None = None

    @property
    def toolbox(self) -> Toolbox:
        """The tools of the current task as noise shows them; before the first `reset`, the environment's own."""
        tools: Toolbox = self.env.get_wrapper_attr("toolbox")
        return tools if self._episode is None else self._episode.tools

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        self._seed = derive_seed(self._seed, "next") if seed is None else seed
        own: Toolbox = self.env.get_wrapper_attr("toolbox")
        tools = noisy_tools(own, self.noise, str(info.get("task_id", "")))
        kept: frozenset[str] = frozenset()
        if self.noise.wording:
            kept = words_of(self.env.get_wrapper_attr("task"), tools.schemas())
        self._episode = _NoisyEpisode(self.noise, self._seed, own, tools, kept)
        return observation, info

    def step(self, action: Action | Mapping[str, Any] | str) -> Result:
        episode = self._episode
        if episode is None or episode.over:
            raise gymnasium.error.ResetNeeded("step() before reset() or after the end of the episode; reset first")
        read = read_action(action, episode.tools.schemas())
        tool = episode.tools.get(read.tool_name or "") if read.valid else None
        chosen = episode.draw()
        result = _hiccup(episode, tool, read, chosen) or self._served(episode, tool, read, chosen)
        observation, reward, terminated, truncated, info = result
        episode.counted += not info["by_noise"]
        truncated = truncated or (not terminated and episode.counted >= self.env.get_wrapper_attr("max_steps"))
        episode.over = terminated or truncated
        info["delay_s"] = episode.delay_s(tool, chosen)
        if info["delay_s"]:
            self._sleep(info["delay_s"])
        return episode.reworded(observation), reward, terminated, truncated, info

    def _served(self, episode: _NoisyEpisode, tool: Tool | None, action: Action, chosen: _Drawn) -> Result:
        """The answer of the tool, of which noise may leave out a half."""
        if tool is not None and tool.name not in episode.own:
            return _distracted(tool, action)
        observation, reward, terminated, truncated, info = self.env.step(action)
        info = {**info, "by_noise": False}
        if tool is None or terminated or truncated:
            return observation, reward, terminated, truncated, info
        if not tool.read_only:
            episode.changes += 1
            episode.withheld.clear()
        elif info.get("ok"):
            call = _call_of(action)
            half = halved(observation) if chosen.hits["partial"] else None
            episode.answers[call] = (episode.changes, observation)
            if half is not None and tool.schema.plain_text is None:
                episode.hiccups += 1
                episode.withheld[call] = observation
                observation = half
        return observation, reward, terminated, truncated, info


def with_noise(environment: gymnasium.Env[str, Any], noise: Noise) -> gymnasium.Env[str, Any]:
    """`environment` with `noise`, itself where there is none; delays are told in ``info`` and left to who plays."""
    return NoisyEnvironment(environment, noise, sleep=_leave) if noise.levels() else environment


@dataclass(frozen=True)
class _Drawn:
    """What chance has in store for one step."""

    hits: Mapping[str, bool]
    shade: float
    """In [0, 1): which words, how long a delay."""


class _NoisyEpisode:
    """What belongs to one episode under noise."""

    def __init__(self, noise: Noise, seed: int, own: Toolbox, tools: Toolbox, kept: frozenset[str]) -> None:
        self.own, self.tools = own, tools
        self.over = False
        self.counted = 0
        """Steps that were not noise's."""
        self.hiccups = 0
        self.calm = False
        """The next call is served as it is."""
        self.changes = 0
        """Calls so far that may have changed the state."""
        self.answers: dict[tuple[str, bytes], tuple[int, str]] = {}
        """Of each read-only call: `changes` when it was last answered, and the answer."""
        self.withheld: dict[tuple[str, bytes], str] = {}
        """Whole answers of which a half was given, while nothing has changed since."""
        self._noise, self._seed, self._kept = noise, seed, kept
        # A stream for each kind, drawn from at every step, so that no kind's level moves another's noise.
        self._streams = {kind: stream(seed, "noise", kind) for kind in (*_PER_STEP, "shade")}

    def draw(self) -> _Drawn:
        """Chance's decisions for the next step; none that takes a step after one that did, or after enough."""
        hits = {kind: self._streams[kind].random() < self._noise.chance(kind) for kind in _PER_STEP}
        if self.calm or self.hiccups >= MOST_HICCUPS:
            hits = {kind: hit and kind == "delays" for kind, hit in hits.items()}
        self.calm = False
        return _Drawn(hits, self._streams["shade"].random())

    def outdated(self, tool: Tool, call: tuple[str, bytes]) -> bool:
        return tool.read_only and call in self.answers and self.answers[call][0] < self.changes

    def delay_s(self, tool: Tool | None, drawn: _Drawn) -> float:
        if tool is None or not drawn.hits["delays"]:
            return 0.0
        return drawn.shade * min(self._noise.delay_s, tool.timeout_s / 4)

    def reworded(self, text: str) -> str:
        """`text` in other words; a text that comes again in the episode gets the same ones."""
        chance = self._noise.chance("wording")
        if not chance or text.rstrip().endswith(UNAVAILABLE):
            return text
        rng: random.Random = stream(self._seed, "noise", "wording", text)
        if rng.random() >= chance:
            return text
        body, line, mark = text.rpartition("\n") if text.endswith((PARTIAL, STALE)) else (text, "", "")
        return reworded(body, rng, self._kept) + line + mark


def _hiccup(episode: _NoisyEpisode, tool: Tool | None, action: Action, chosen: _Drawn) -> Result | None:
    """An answer of noise instead of the tool's; None if the tool is to answer."""
    if tool is None or tool.schema.plain_text is not None:
        return None
    call = _call_of(action)
    whole = episode.withheld.pop(call, None)
    if whole is not None:
        text, ok = whole, True
    elif chosen.hits["failures"]:
        text, ok = f"{tool.name} {UNAVAILABLE[int(chosen.shade * len(UNAVAILABLE))]}", False
    elif chosen.hits["stale"] and episode.outdated(tool, call):
        text, ok = f"{episode.answers[call][1]}\n{STALE}", True
    else:
        return None
    episode.hiccups += whole is None  # what is given later was counted when it was left out
    episode.calm = True
    return _answer(text, ok=ok, by_noise=True)


def _call_of(action: Action) -> tuple[str, bytes]:
    return str(action.tool_name), msgspec.json.encode(action.parameters, order="deterministic")


def _answer(text: str, *, ok: bool, by_noise: bool) -> Result:
    return text, 0.0, False, False, {"ok": ok, "ended_by": None, "by_noise": by_noise}


def _distracted(tool: Tool, action: Action) -> Result:
    try:
        return _answer(tool.call(action.parameters), ok=True, by_noise=False)
    except ToolError as error:
        return _answer(to_text(str(error)), ok=False, by_noise=False)


def _leave(_seconds: float) -> None:
    """Whoever plays the episode waits."""
