"""Turns an environment's own solutions into a policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import cast

from deedrl.environments.contract import demonstration
from deedrl.environments.environment import Environment
from deedrl.environments.noise import asks_again
from deedrl.errors import EnvironmentAuthorError
from deedrl.policies.scripted import DemonstrationPolicy
from deedrl.rollouts.episode import EpisodeSpec
from deedrl.rollouts.slot import AnyEnvironment, EnvironmentSource
from deedrl.types import Action, Task


def demonstration_policy(
    specs: Iterable[EpisodeSpec], environment: Callable[[], AnyEnvironment]
) -> DemonstrationPolicy:
    """A policy that plays, in each of these episodes, the environment's `demonstrate` of the episode's task.

    Where noise asks for a call again, it makes the call again.
    """
    return DemonstrationPolicy({spec.episode_id: spec.task for spec in specs}, demonstrator(environment), asks_again)


def demonstrator(environment: Callable[[], AnyEnvironment]) -> Callable[[Task], Sequence[Action]]:
    """A function that resets a private environment to a task and asks it for the solution.

    It raises `EnvironmentAuthorError` if the environment has none, or what it gives is not one.
    """
    source = EnvironmentSource(environment)

    def demonstrate(task: Task) -> Sequence[Action]:
        instance = source.make()
        try:
            instance.reset(seed=0, options={"task": task})
            base = cast(Environment, instance.unwrapped)
            actions = demonstration(base, task)
        finally:
            instance.close()
        if not actions:
            raise EnvironmentAuthorError(
                f"{type(base).__name__}.demonstrate gave no actions for task '{task.id}'; write demonstrate(task) or "
                "take demonstrations out of the recipe"
            )
        return actions

    return demonstrate
