"""The job of a recipe, without its model: tasks, environments, the prompt and the limits of an episode."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from msgspec.structs import asdict

from deedrl.environments.contract import checked_tasks, own_rubric
from deedrl.environments.environment import Environment
from deedrl.environments.isolation import ProcessEnvironment
from deedrl.environments.noise import Noise, noisy_tools
from deedrl.errors import EnvironmentAuthorError, TaskError
from deedrl.pipeline.recipe import Recipe
from deedrl.rewards.rubric import Rubric, default_rubric
from deedrl.rollouts.limits import Limits
from deedrl.rollouts.prompting import PromptVariant, system_prompt
from deedrl.seeding import derive_seed
from deedrl.tasks.pool import TaskPool
from deedrl.types import Split, Task


def environment_maker(recipe: Recipe, cls: type[Environment]) -> Callable[[], Environment]:
    """What makes an environment for an episode: the class, or its stand-in that lives in a process."""
    if recipe.environment.isolation == "process":
        limit = recipe.limits.call_timeout_s
        return lambda: ProcessEnvironment(recipe.environment.ref, call_timeout_s=limit)
    return cls


def task_pool(recipe: Recipe, cls: type[Environment], split: Split, count: int) -> TaskPool:
    """The tasks of a split, read from the recipe's file of them, or the first `count` that the environment generates.

    Raises `TaskError` where there are none, and for tasks with tools that the environment has not.
    """
    if split in recipe.tasks.files:
        return _read(recipe, cls, split)
    settings = recipe.environment
    wanted = {"difficulties": settings.difficulties, "families": settings.families}
    named = {name: values for name, values in wanted.items() if values}
    tasks = checked_tasks(cls, split, count, derive_seed(recipe.seed, "tasks"), **named)
    if not tasks:
        asked = f"difficulties {settings.difficulties or 'all'}, families {settings.families or 'all'}"
        raise TaskError(f"{settings.ref} generates no tasks for split '{split}' with {asked}")
    return TaskPool(tasks)


def _read(recipe: Recipe, cls: type[Environment], split: Split) -> TaskPool:
    path = Path(recipe.tasks.files[split])
    pool = TaskPool.load(path, split)
    if not pool:
        raise TaskError(f"{path}: expected tasks of the split '{split}', one JSON object a line, found none")
    for allowed in {task.tools for task in pool}:
        try:
            cls.tools.restricted(allowed)
        except EnvironmentAuthorError as error:
            raise TaskError(f"{path}: {error}; name tools of {recipe.environment.ref}") from error
    return pool


def split_sizes(recipe: Recipe) -> dict[Split, int]:
    """How many tasks of each split are generated, of those that the recipe has."""
    tasks = recipe.tasks
    counts: dict[Split, int] = {
        "train": tasks.train,
        "validation": tasks.validation,
        "test": tasks.test,
        "test_unseen": tasks.test_unseen,
    }
    return {split: count for split, count in counts.items() if count or split in tasks.files}


def recipe_rubric(recipe: Recipe, cls: type[Environment]) -> Rubric:
    """What episodes are played under: the environment's rubric with the recipe's weights, without reward models."""
    rubric = own_rubric(cls) or default_rubric()
    weights = {name: weight for name, weight in recipe.rubric.items() if name not in recipe.learned_terms}
    return rubric.reweighted(weights) if weights else rubric


def recipe_prompt(recipe: Recipe) -> PromptVariant:
    """How every episode is presented: the recipe's own prompt."""
    detailed = recipe.prompt.detail == "detailed"
    return PromptVariant(name="detailed" if detailed else "plain", detailed=detailed, instructions=recipe.prompt.system)


def recipe_limits(recipe: Recipe) -> Limits:
    """Where every episode ends if the job does not."""
    named = asdict(recipe.limits)
    # The recipe bounds the whole conversation; the runner's limit of that name counts sampled tokens alone.
    conversation = named.pop("max_tokens_per_episode")
    return Limits(**named, max_context_tokens=conversation)


def task_system_prompt(
    environment: Environment | type[Environment], task: Task, variant: PromptVariant, noise: Noise
) -> str:
    """The system prompt an episode of `task` is played with under `noise`."""
    other = environment.played_by(task)
    # An instance may have instructions of its own.
    played = environment if other in (environment, type(environment)) else other
    tools = noisy_tools(played.tools.restricted(task.tools), noise, task.id)
    return system_prompt(played.instructions, tools.schemas(), variant)
