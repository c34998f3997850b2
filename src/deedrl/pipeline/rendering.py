"""Trajectories to training samples by rendering, for data that this policy did not sample itself."""

from __future__ import annotations

from collections.abc import Sequence

from deedrl.environments.environment import Environment
from deedrl.rendering.renderer import Renderer
from deedrl.rollouts.prompting import PromptVariant, system_prompt
from deedrl.training.samples import TrainingSample
from deedrl.types import Message, Task, ToolSchema, Trajectory


def rendered_sample(renderer: Renderer, trajectory: Trajectory, system: str) -> TrainingSample:
    """One sample of a whole episode under the system prompt `system`, whatever prompt it was played with.

    For supervised learning only: guided and demonstrated episodes have no log-probabilities of this policy. A turn that
    the limit cut gets its end as context, as `Renderer.extension_ids` has it: nobody chose to stop there.
    """
    ids: list[int] = []
    mask: list[bool] = []
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
    return TrainingSample(
        episode_id=trajectory.episode_id, ids=tuple(ids), action_mask=tuple(mask), logprobs=(0.0,) * len(ids)
    )


def task_system_prompt(environment: Environment, task: Task, variant: PromptVariant) -> str:
    """The system prompt an episode of `task` is played with."""
    return system_prompt(environment.instructions, allowed_tools(environment, task), variant)


def allowed_tools(environment: Environment, task: Task) -> Sequence[ToolSchema]:
    """Schemas of the tools `task` allows."""
    return environment.tools.restricted(task.tools).schemas()
