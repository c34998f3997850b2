"""Jobs of any length on the support desk, done by their demonstration while a real policy samples the tokens.

What a turn costs does not depend on whether the model is any good at the job, but how an episode goes on does. So every
turn samples as many tokens as it may, and what the environment then gets is the demonstration's next action: the same
work for every model and every engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from deedrl.benchmarks.measure import check_count
from deedrl.environments.suite.support.demonstrations import demonstrate
from deedrl.environments.suite.support.environment import SupportDesk
from deedrl.policies.policy import CompletionRequest, Policy, action_text
from deedrl.rollouts.episode import EpisodeSpec
from deedrl.types import Action, Completion, SamplingParams, Task

LOOKUP_AND_DECISION = 2


class LongDesk(SupportDesk):
    """The support desk for those who look things up again and again."""

    max_steps: ClassVar[int] = 1000


def moves(task: Task, turns: int) -> list[Action]:
    """What closes `task` in exactly `turns` turns: looking up, over and over, and the decision last."""
    *lookups, decision = demonstrate(task)
    return [*(lookups[turn % len(lookups)] for turn in range(turns - 1)), decision]


def long_specs(episodes: int, *, new_tokens: int, temperature: float, seed: int) -> list[EpisodeSpec]:
    """One episode each of `episodes` different tasks that two moves close; `seed` draws the tasks and the tokens."""
    sampling = SamplingParams(temperature=temperature, max_tokens=new_tokens)
    drawn = LongDesk.generate_tasks("train", 4 * episodes, seed=seed)
    tasks = [task for task in drawn if len(demonstrate(task)) == LOOKUP_AND_DECISION][:episodes]
    check_count("tasks of two moves", episodes, len(tasks))
    return [
        EpisodeSpec(task=task, episode_id=f"desk-{index}", seed=seed + index, sampling=sampling)
        for index, task in enumerate(tasks)
    ]


class ActingPolicy:
    """`policy` samples; what it sampled is kept as tokens and acted on as the next of the episode's moves."""

    def __init__(self, policy: Policy, specs: Sequence[EpisodeSpec], turns: int) -> None:
        self._policy = policy
        self._moves = {spec.episode_id: moves(spec.task, turns) for spec in specs}
        self.version = policy.version

    async def complete(self, request: CompletionRequest) -> Completion:
        completion = await self._policy.complete(request)
        action = self._moves[request.episode_id][request.turn]
        return msgspec.structs.replace(completion, text=action_text(action), finish_reason="stop")

    async def release(self, episode_id: str) -> None:
        await self._policy.release(episode_id)
