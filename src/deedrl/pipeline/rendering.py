"""Prompts and trajectories as the model's tokens: whether they fit, and samples this policy did not make itself."""

from __future__ import annotations

from collections.abc import Sequence

from deedrl.config import require
from deedrl.environments.environment import Environment
from deedrl.errors import ModelError
from deedrl.pipeline.job import task_system_prompt
from deedrl.pipeline.noise_settings import chosen_noise
from deedrl.pipeline.recipe import Recipe
from deedrl.policies.local.attention import context_limit
from deedrl.policies.local.model import LoadedModel
from deedrl.rendering.renderer import Renderer
from deedrl.rollouts.prompting import PromptVariant, user_message
from deedrl.training.samples import TrainingSample
from deedrl.types import Message, Task, Trajectory


def rendered_sample(renderer: Renderer, trajectory: Trajectory, system: str) -> TrainingSample:
    """One sample of a whole episode under the system prompt `system`, whatever prompt it was played with.

    For supervised learning only: guided and demonstrated episodes have no log-probabilities of this policy. A turn that
    the limit cut gets its end as context, as `Renderer.extension_ids` has it: nobody chose to stop there.
    """
    ids: list[int] = []
    mask: list[bool] = []
    turns: list[tuple[int, int]] = []
    sampled: list[int] = []
    for step in trajectory.steps:
        if not ids:
            opening = [Message(role="system", content=system), Message(role="user", content=step.observation)]
            context = renderer.prompt_ids(opening)
        else:
            context = renderer.extension_ids(sampled, [Message(role="tool", content=step.observation)])
        sampled = renderer.completion_ids(step.completion.text)
        if step.completion.finish_reason == "length":
            sampled = sampled[:-1]
        ids += [*context, *sampled]
        mask += [False] * len(context) + [True] * len(sampled)
        turns.append((step.index, len(sampled)))
    return TrainingSample(
        episode_id=trajectory.episode_id,
        ids=tuple(ids),
        action_mask=tuple(mask),
        logprobs=(0.0,) * len(ids),
        turns=tuple(turns),
    )


def check_room(
    loaded: LoadedModel,
    environment: type[Environment],
    tasks: Sequence[Task],
    variant: PromptVariant,
    recipe: Recipe,
) -> None:
    """Raises `ModelError` if not even the shortest of `tasks` leaves the model room for one turn.

    `ConfigError` if the recipe's own limit of an episode does not.
    """
    task = min(tasks, key=lambda task: len(task.prompt))
    system = task_system_prompt(environment, task, variant, chosen_noise(recipe.environment.noise))
    opening = [Message(role="system", content=system), Message(role="user", content=user_message(task.prompt, variant))]
    prompt, turn = len(loaded.renderer.prompt_ids(opening)), recipe.sampling.max_tokens
    limit, allowed = context_limit(loaded.model), recipe.limits.max_tokens_per_episode
    if prompt + turn > limit:
        raise ModelError(
            f"the model '{loaded.source}' holds {limit} tokens, too few for one turn: expected room for "
            f"{prompt + turn} ({prompt} of system prompt and task, {turn} of sampling.max_tokens); take a model with "
            "a longer context, lower sampling.max_tokens or shorten the prompt"
        )
    require(
        prompt < allowed,
        "limits.max_tokens_per_episode",
        f"expected more than the {prompt} tokens of system prompt and task, got {allowed}; raise it",
    )
