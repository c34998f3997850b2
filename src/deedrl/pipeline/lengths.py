"""How long a recipe's episodes are: counted in a few demonstrations of its environment, or assumed.

Pieces of text are counted, not the model's tokens: the model need not be there, and nothing heavy is loaded.
"""

from __future__ import annotations

import re
from statistics import fmean

from msgspec.structs import replace

from deedrl.environments.environment import Environment
from deedrl.environments.loading import load_environment
from deedrl.errors import DeedRLError
from deedrl.pipeline.job import environment_maker, recipe_limits, recipe_prompt, task_pool, task_system_prompt
from deedrl.pipeline.noise_settings import chosen_noise
from deedrl.pipeline.recipe import Recipe
from deedrl.planning.load import TYPICAL, EpisodeLengths
from deedrl.rollouts.demonstration import demonstration_policy
from deedrl.rollouts.episode import EpisodeSpec
from deedrl.rollouts.failures import FailurePolicy
from deedrl.rollouts.prompting import user_message
from deedrl.rollouts.runner import run_episodes_sync
from deedrl.seeding import derive_seed
from deedrl.types import Task, Trajectory

DEMONSTRATIONS = 28
"""Demonstrations that are played: four of each family of the support desk."""
PIECE_TOKENS = 1.1
"""Tokens of a piece of text; see `text_tokens`."""
MESSAGE_TOKENS = 10
"""Tokens of a chat template around what the policy is told and before its answer (10 in SmolLM2's ChatML)."""
_PIECE = re.compile(r"[A-Za-z]+|[^\W\d]|\d|[^\w\s]+")


def text_tokens(text: str) -> float:
    """About how many tokens `text` has: its words, digits, runs of signs, and letters of other scripts one by one.

    That is how byte-pair tokenizers cut text up before they merge; rare words become more than one token.
    """
    return PIECE_TOKENS * len(_PIECE.findall(text))


def episode_lengths(recipe: Recipe) -> tuple[EpisodeLengths, tuple[str, ...]]:
    """Lengths of the recipe's episodes as its environment demonstrates them, and what had to be assumed instead."""
    try:
        cls = load_environment(recipe.environment.ref)
        tasks = list(task_pool(recipe, cls, "train", DEMONSTRATIONS)[:DEMONSTRATIONS])
    except DeedRLError as error:
        return TYPICAL, (f"lengths of episodes are assumed, for there are no tasks to look at: {error}",)
    lengths = _told(tasks, cls, recipe)
    played = _demonstrated(recipe, cls, tasks)
    whole = [trajectory for trajectory in played if trajectory.failure is None and trajectory.steps]
    if not whole:
        reasons = [trajectory.failure.message for trajectory in played if trajectory.failure is not None]
        return lengths, (f"turns are assumed, for there is no demonstration to look at: {' '.join(reasons[:1])}",)
    return _counted(lengths, whole), ()


def _told(tasks: list[Task], cls: type[Environment], recipe: Recipe) -> EpisodeLengths:
    """`TYPICAL` with what is told before the first turn."""
    variant, noise = recipe_prompt(recipe), chosen_noise(recipe.environment.noise)
    asked = fmean(text_tokens(user_message(task.prompt, variant)) for task in tasks)
    prefix = text_tokens(task_system_prompt(cls, tasks[0], variant, noise))
    return replace(TYPICAL, prefix=prefix, task=asked + MESSAGE_TOKENS)


def _demonstrated(recipe: Recipe, cls: type[Environment], tasks: list[Task]) -> list[Trajectory]:
    """An episode of each task; those that the environment does not demonstrate have failed."""
    specs = [
        EpisodeSpec(
            task=task,
            episode_id=task.id,
            seed=derive_seed(recipe.seed, task.id),
            prompt=recipe_prompt(recipe),
            noise=chosen_noise(recipe.environment.noise),
        )
        for task in tasks
    ]
    return run_episodes_sync(
        specs,
        environment=environment_maker(recipe, cls),
        policy=demonstration_policy(specs, cls),
        rubric=None,
        limits=recipe_limits(recipe),
        failures=FailurePolicy(retries=0, max_failure_share=1.0),
    )


def _counted(lengths: EpisodeLengths, played: list[Trajectory]) -> EpisodeLengths:
    """`lengths` with the turns and observations of these episodes."""
    steps = [step for trajectory in played for step in trajectory.steps]
    told = [text_tokens(step.observation) + MESSAGE_TOKENS for step in steps if step.index]
    return replace(
        lengths,
        turns=len(steps) / len(played),
        turn=fmean(text_tokens(step.completion.text) for step in steps) + 1,  # the token that ends it
        observation=fmean(told) if told else 0.0,
    )
