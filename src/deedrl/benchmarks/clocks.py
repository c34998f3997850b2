"""Clocks on the parts of a run, where the runner calls them.

By itself, in a loop, every part is two to four times as fast as there: a processor that does one thing over and over
has all of it in its caches, and a run of thousands of episodes never does.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from unittest.mock import patch

from deedrl.benchmarks.tally import Tally
from deedrl.parsing.parser import parse_action
from deedrl.policies.policy import CompletionRequest, Policy
from deedrl.rewards.rubric import Rubric
from deedrl.rollouts import episode
from deedrl.types import Completion, RewardBreakdown, Trajectory

T = TypeVar("T")

PARTS_ALWAYS = ("environment", "parser", "policy")
PARTS = (*PARTS_ALWAYS, "rubric", "store", "garbage collection")


class PartClocks:
    """Wall time of each part in seconds, all of them on one thread.

    A clock of processor time would cost a microsecond a reading; this one costs a tenth, and what else runs on the
    machine lengthens all parts alike. Garbage collection is a part of its own, for it comes to whichever part happens
    to ask for memory.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._collecting_since_s = 0.0

    def run(self, part: str, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Calls `function` on the clock of `part`."""
        collected_s, began_s = self.seconds["garbage collection"], time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            collected_s = self.seconds["garbage collection"] - collected_s
            self.seconds[part] += time.perf_counter() - began_s - collected_s

    @contextmanager
    def on(self) -> Iterator[None]:
        """While it lasts, the parser and garbage collection are on their clocks too; they cannot be handed to a run."""

        def timed_parser(*args: Any) -> Any:
            return self.run("parser", parse_action, *args)

        gc.callbacks.append(self._note_collection)
        try:
            with patch.object(episode, "parse_action", timed_parser):
                yield
        finally:
            gc.callbacks.remove(self._note_collection)

    def _note_collection(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._collecting_since_s = time.perf_counter()
        else:
            self.seconds["garbage collection"] += time.perf_counter() - self._collecting_since_s

    def environment(self) -> type[Tally]:
        """A class of tallies on the clock, with all that a runner calls of them."""
        clocks = self

        class TimedTally(Tally):
            def __new__(cls, *args: Any, **kwargs: Any) -> Any:
                return clocks.run("environment", super().__new__, cls, *args, **kwargs)

            def reset(self, **options: Any) -> Any:
                return clocks.run("environment", super().reset, **options)

            def state_hash(self) -> str:
                return clocks.run("environment", super().state_hash)

            def step(self, action: Any) -> Any:
                return clocks.run("environment", super().step, action)

            def close(self) -> None:
                clocks.run("environment", super().close)

        return TimedTally

    def policy(self, policy: Policy) -> Policy:
        """`policy` on the clock; it must never wait."""
        return _TimedPolicy(policy, self)

    def rubric(self, rubric: Rubric) -> Rubric:
        """`rubric` on the clock."""
        clocks = self

        class TimedRubric(Rubric):
            def score(self, trajectory: Trajectory) -> RewardBreakdown:
                return clocks.run("rubric", super().score, trajectory)

        return TimedRubric(rubric.terms, rubric.vetoes)


class _TimedPolicy:
    def __init__(self, policy: Policy, clocks: PartClocks) -> None:
        self._policy = policy
        self._clocks = clocks
        self.version = policy.version

    async def complete(self, request: CompletionRequest) -> Completion:
        return self._clocks.run("policy", _finish, self._policy, request)

    async def release(self, episode_id: str) -> None:
        await self._policy.release(episode_id)


def _finish(policy: Policy, request: CompletionRequest) -> Completion:
    """Runs the coroutine of a policy that never waits to its end."""
    coroutine = policy.complete(request)
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return ended.value  # type: ignore[no-any-return]
    raise RuntimeError("expected a policy that answers at once, got one that waits; its time cannot be told apart")
