"""What an episode earned, turn by turn: pure functions of recorded trajectories."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from deedrl.types import Step, TerminationReason, Trajectory


def usable_reward(trajectory: Trajectory) -> float | None:
    """The reward of an episode that the policy sampled freely and that was scored; None of any other.

    Raises ValueError for a reward that is no finite number: one of them would make all of its group meaningless.
    """
    if trajectory.errored or is_guided(trajectory) or trajectory.reward is None:
        return None
    if not math.isfinite(trajectory.reward):
        raise ValueError(
            f"episode '{trajectory.episode_id}': expected a finite reward or None, got {trajectory.reward}"
        )
    return trajectory.reward


def is_guided(trajectory: Trajectory) -> bool:
    """Whether any turn was sampled under constraints."""
    return any(step.completion.guided for step in trajectory.steps)


def step_reward(trajectory: Trajectory, step: Step) -> float:
    """What the environment paid for this step alone.

    For the step that reaches the goal it is 0.0: there `Environment.step` pays what the outcome already holds. It is
    0.0 as well for a turn that took no step in the environment, because it was no action or was stopped.
    """
    if trajectory.termination is TerminationReason.GOAL and step.index == trajectory.steps[-1].index:
        return 0.0
    return step.reward or 0.0


def has_step_rewards(trajectory: Trajectory) -> bool:
    """Whether the environment paid for any step by itself."""
    return any(step_reward(trajectory, step) for step in trajectory.steps)


class Overlong(NamedTuple):
    """A penalty for conversations near the limit of tokens (DAPO's soft punishment, arXiv 2503.14476, eq. 13)."""

    limit: int
    buffer: int
    penalty: float

    def __call__(self, trajectory: Trajectory) -> float:
        """0 up to `buffer` tokens before the limit, then rising to `penalty` at the limit and beyond."""
        over = context_tokens(trajectory) - (self.limit - self.buffer)
        return self.penalty * min(max(over / self.buffer, 0.0), 1.0)


def context_tokens(trajectory: Trajectory) -> int:
    """Tokens of the conversation at its end, as `limits.max_tokens_per_episode` counts them."""
    tokens = 0
    for step in trajectory.steps:
        completion = step.completion
        tokens = tokens if completion.extends_previous else 0
        tokens += len(completion.prompt_ids) + len(completion.token_ids)
    return tokens


def turn_rewards(trajectory: Trajectory, *, step_weight: float = 0.0, overlong: Overlong | None = None) -> list[float]:
    """The reward of each turn of a scored episode: steps' own `step_weight` times, and the outcome on the last.

    The penalty of `overlong` lies on the last turn too. An episode that ended before its first turn has one entry all
    the same, its outcome: siblings are compared with it.
    """
    rewards = [step_weight * step_reward(trajectory, step) for step in trajectory.steps] or [0.0]
    rewards[-1] += trajectory.reward or 0.0
    if overlong is not None:
        rewards[-1] -= overlong(trajectory)
    return rewards


def discounted(rewards: Sequence[float], gamma: float) -> list[float]:
    """The return of each turn: its reward plus `gamma` times the return of the next turn."""
    returns = [0.0] * len(rewards)
    following = 0.0
    for turn in reversed(range(len(rewards))):
        following = rewards[turn] + gamma * following
        returns[turn] = following
    return returns
