"""What stages that learn from their own episodes share: tasks of a step, the loop, validations, checkpoints, resume.

The best validated policy stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeVar

import msgspec
from msgspec.structs import asdict
from torch import Tensor, nn

from deedrl.pipeline.alarms import held_out_alarm
from deedrl.pipeline.checkpoint import CheckpointFolder
from deedrl.pipeline.learned_terms import drift
from deedrl.pipeline.overlap import while_updating
from deedrl.pipeline.session import Session
from deedrl.pipeline.stage_base import OnlineSettings
from deedrl.pipeline.validation import Validations, keep_best, validated
from deedrl.rollouts.pacing import mean_staleness, pace
from deedrl.seeding import stream
from deedrl.tasks.quotas import draw_in_turn
from deedrl.training.policy_gradient import PolicyUpdate
from deedrl.types import Task, Trajectory

TaskSource = Callable[[int, int, Mapping[str, float]], list[Task]]
"""From a step, a number and weights of families to that many distinct training tasks for the step."""

Sampled = TypeVar("Sampled")
"""What a stage samples in a step."""


class Trainee(Protocol):
    """What is trained, saved and restored; `parameters` and `snapshot` are the policy's alone."""

    @property
    def parameters(self) -> Mapping[str, nn.Parameter]: ...

    def snapshot(self) -> list[Tensor]: ...

    def tensors(self) -> dict[str, Tensor]: ...

    def load_tensors(self, state: dict[str, Tensor]) -> None: ...


def training_tasks(session: Session, stage: str) -> TaskSource:
    """Tasks of the whole training pool."""
    tasks = session.tasks("train")
    return lambda step, count, weights: shuffled_tasks(session, stage, tasks, step, count, weights)


def shuffled_tasks(
    session: Session,
    stage: str,
    tasks: Sequence[Task],
    step: int,
    count: int,
    weights: Mapping[str, float] | None = None,
) -> list[Task]:
    """`count` distinct tasks for `step`, drawn from the step's own stream; all of them if there are fewer."""
    return draw_in_turn(tasks, count, stream(session.recipe.seed, stage, "tasks", step), weights)


def family_weights(solved: Mapping[str, float], failure_weight: float) -> dict[str, float]:
    """How often each family is drawn, from the shares of its tasks that are solved: 1 and up."""
    return {family: 1.0 + failure_weight * (1.0 - share) for family, share in solved.items()}


def train_online(
    session: Session,
    stage: OnlineSettings,
    learner: Trainee,
    tasks: Callable[[int, Mapping[str, float]], list[Task]],
    sample: Callable[[int, Sequence[Task]], Sampled],
    update: Callable[[int, Sampled, list[Tensor]], dict[str, float]],
) -> dict[str, float]:
    """`stage.steps` steps from where the stage stopped; ends with the best validated weights, saved.

    A step (from 0) is to `sample` the `tasks` that it has under some weights of families, and to `update` with the
    reference policy's parameters, which gives its figures.
    """
    checkpoints = session.checkpoints(stage.title)
    reference = learner.snapshot()
    start, best = _resume(session, learner, checkpoints, stage.title, reference)
    figures: dict[str, float] = {}
    progress = session.context.progress
    if stage.validate_every and start == 0:
        best = _validated(session, stage, learner, checkpoints, reference, 0, Validations())

    def sampled(step: int) -> Sampled:
        return sample(step, tasks(step, family_weights(best.solved, stage.failure_weight)))

    ahead: list[Sampled] = []
    with progress.bar(stage.title, total=stage.steps, unit="step", done=start) as bar:
        for step, beginning in pace(range(start, stage.steps), stage.max_staleness):
            learn = partial(update, step, ahead.pop() if ahead else sampled(step), reference)
            if step + 1 in beginning:
                session.policy().hold_weights()
                figures, following = while_updating(learn, partial(sampled, step + 1))
                ahead.append(following)
            else:
                session.rest_policies()
                figures = learn()
            number = step + 1
            session.weights_changed(f"{stage.title}:{number}")
            due = number == stage.steps or (stage.validate_every and number % stage.validate_every == 0)
            if due:
                best = _validated(session, stage, learner, checkpoints, reference, number, best)
            elif number % session.recipe.checkpoints.every_steps == 0:
                checkpoints.save(number, _with_reference(learner, reference), best.state())
            session.context.tracker.log(figures, step=number, stage=stage.title)
            bar.advance(reward=figures.get("reward"), completion=figures.get("completion"), best=best.completion)
            drifted, over = drift(session, stage.title, number)
            warn(session, stage.title, *drifted)
            if over:
                progress.say(f"{stage.title}: a reward model no longer agrees with the verifier; stopping here")
                break
            if stage.patience_steps and number - best.step >= stage.patience_steps:
                progress.say(f"{stage.title}: no better validation for {number - best.step} steps; stopping here")
                break
    keep_best(session, learner, checkpoints, stage.title)
    return figures | {"best_step": float(best.step), "best_validation_completion": best.completion or 0.0}


def staleness(stage: str, step: int, episodes: Iterable[Trajectory]) -> float:
    """Updates that the weights which sampled `episodes` were behind those of `step`, as the mean over their tokens."""

    def updates_behind(policy_version: str) -> int:
        """Those of the stage; the weights it started with have another stage's name."""
        name, _, number = policy_version.rpartition(":")
        return int(number) if name == stage else 0

    return mean_staleness(episodes, step, updates_behind)


def update_settings(stage: OnlineSettings, learning_rate: float) -> PolicyUpdate:
    """The stage's settings of the same names; `learning_rate` is that of the step. A missing one raises."""
    named = {**asdict(stage), "learning_rate": learning_rate, "normalisation": stage.loss_normalisation}
    return msgspec.convert(named, PolicyUpdate)


def warn(session: Session, stage: str, *alarms: str | None) -> None:
    """Says every alarm that there is."""
    for alarm in alarms:
        if alarm is not None:
            session.context.progress.warn(f"{stage}: {alarm}")


# ---------------------------------------------------------------- checkpoints


def _validated(
    session: Session,
    stage: OnlineSettings,
    learner: Trainee,
    checkpoints: CheckpointFolder,
    reference: list[Tensor],
    step: int,
    best: Validations,
) -> Validations:
    tensors = partial(_with_reference, learner, reference)
    best = validated(session, stage.title, stage.validation_tasks, checkpoints, tensors, step, best)
    warn(session, stage.title, held_out_alarm(session.run.folder, stage.title, step))
    return best


def _with_reference(learner: Trainee, reference: list[Tensor]) -> dict[str, Tensor]:
    names = list(learner.parameters)
    return learner.tensors() | {f"reference.{name}": value for name, value in zip(names, reference, strict=True)}


def _resume(
    session: Session, learner: Trainee, checkpoints: CheckpointFolder, stage: str, reference: list[Tensor]
) -> tuple[int, Validations]:
    """Restores the newest checkpoint, the reference included; (0, no validations) if the stage starts afresh."""
    saved = checkpoints.latest()
    if saved is None:
        return 0, Validations()
    learner.load_tensors(saved.tensors)
    for index, name in enumerate(learner.parameters):
        reference[index] = saved.tensors[f"reference.{name}"]
    session.weights_changed(f"{stage}:{saved.step}")
    return saved.step, Validations.from_state(saved.state)
