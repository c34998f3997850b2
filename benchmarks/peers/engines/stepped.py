"""DeedRL's episode loop for a trainer that has a loop of its own: turns are handed in one by one, from outside."""

from __future__ import annotations

import asyncio
import queue
from typing import Any

from deedrl.policies.policy import CompletionRequest
from deedrl.rollouts.episode import EpisodeSpec, play_episode
from deedrl.types import Completion, Trajectory


class SteppedEpisode:
    """One episode of `play_episode`, which runs in `loop` (of another thread) and waits there for each turn."""

    version = "trl"

    def __init__(self, loop: asyncio.AbstractEventLoop, spec: EpisodeSpec, **playing: Any) -> None:
        """`playing` is what else `play_episode` wants: slot, rubric and limits."""
        self.trajectory: Trajectory | None = None
        self._loop = loop
        self._told: queue.SimpleQueue[str | Trajectory | BaseException] = queue.SimpleQueue()
        self._turn: asyncio.Future[Completion] | None = None
        whole = asyncio.run_coroutine_threadsafe(play_episode(spec, attempt=1, policy=self, **playing), loop)
        whole.add_done_callback(lambda done: self._told.put(done.exception() or done.result()))
        self.task = self._next()

    def turn(self, text: str, cut: bool) -> str | None:
        """What the environment says to a turn; None when the episode is over."""
        if self._turn is None or self.trajectory is not None:
            raise RuntimeError("the episode is over; expected no further turn")
        completion = Completion(text=text, finish_reason="length" if cut else "stop")
        self._loop.call_soon_threadsafe(self._turn.set_result, completion)
        return self._next()

    def _next(self) -> str | None:
        told = self._told.get()
        if isinstance(told, BaseException):
            raise told
        if isinstance(told, Trajectory):
            self.trajectory = told
            return None
        return told

    async def complete(self, request: CompletionRequest) -> Completion:
        self._turn = asyncio.get_running_loop().create_future()
        self._told.put(request.messages[-1].content)
        return await self._turn

    async def release(self, episode_id: str) -> None: ...
