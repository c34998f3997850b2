"""What stages that learn from their own episodes share: tasks of a step, the loop, validations, checkpoints, resume.

The best validated policy stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar

import msgspec
import torch
from msgspec.structs import asdict
from torch import Tensor, nn

from deedrl.pipeline.alarms import held_out_alarm
from deedrl.pipeline.checkpoint import CheckpointFolder
from deedrl.pipeline.curriculum import Observer, Unobserved
from deedrl.pipeline.learned_terms import drift
from deedrl.pipeline.overlap import while_updating
from deedrl.pipeline.session import Session
from deedrl.pipeline.stability import stability_alarms
from deedrl.pipeline.stage_base import OnlineSettings
from deedrl.pipeline.stage_figures import StageFigures
from deedrl.pipeline.validation import Validations, keep_best, validated
from deedrl.rollouts.pacing import mean_staleness, pace
from deedrl.seeding import stream
from deedrl.tasks.quotas import draw_in_turn
from deedrl.training import processes
from deedrl.training.averaging import WeightAverage
from deedrl.training.kl_control import controlled_coefficient
from deedrl.training.policy_gradient import PolicyUpdate
from deedrl.training.sharding import own_value, whole_value
from deedrl.types import Task, Trajectory

TaskSource = Callable[[int, int, Mapping[str, float]], list[Task]]
"""From a step, a number and weights of families to that many distinct training tasks for the step."""

Sampled = TypeVar("Sampled")
"""What a stage samples in a step."""


class Trainee(Protocol):
    """What is trained, saved and restored; `parameters`, `snapshot` and `restore` are the policy's alone."""

    @property
    def parameters(self) -> Mapping[str, nn.Parameter]: ...

    def snapshot(self) -> list[Tensor]: ...

    def restore(self, snapshot: Sequence[Tensor]) -> None: ...

    def tensors(self) -> dict[str, Tensor]: ...

    def load_tensors(self, state: dict[str, Tensor]) -> None: ...


@dataclass(frozen=True)
class Reference:
    """The policy that a stage starts from."""

    parameters: list[Tensor]
    """In the order of the policy's."""
    kl_coefficient: float
    """Weight of the KL divergence to it in the next step."""

    def tensors(self, policy: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Whole tensors by name, for a safetensors file; `policy` is what is trained."""
        values = zip(policy.items(), self.parameters, strict=True)
        named = {f"reference.{name}": whole_value(value, parameter) for (name, parameter), value in values}
        return named | {_KL_COEFFICIENT: torch.tensor(self.kl_coefficient, dtype=torch.float64)}

    @classmethod
    def of_tensors(cls, policy: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> Reference:
        """What `tensors` returned, exactly."""
        parameters = [own_value(tensors[f"reference.{name}"], parameter) for name, parameter in policy.items()]
        return cls(parameters, float(tensors[_KL_COEFFICIENT]))


_KL_COEFFICIENT = "kl_coefficient"
UNOBSERVED: Observer = Unobserved()


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
    update: Callable[[int, Sampled, Reference], dict[str, float]],
    observer: Observer = UNOBSERVED,
) -> dict[str, float]:
    """`stage.steps` steps from where the stage stopped; ends with the best validated weights, saved.

    A step (from 0) is to `sample` the `tasks` that it has under some weights of families, and to `update` with the
    reference policy, which gives its figures. `sample` tells the `observer` what it saw.
    """
    checkpoints = session.checkpoints(stage.title)
    average = WeightAverage(stage.ema_decay)
    start, best, reference = _resume(session, stage, learner, checkpoints, average, observer)
    # One process reads: it writes the next step's figures, perhaps before another one has read those so far.
    seen = processes.from_first(lambda: StageFigures.logged(session.run.folder, stage.title, start))
    figures: dict[str, float] = {}
    number = start
    progress = session.context.progress
    if stage.validate_every and start == 0:
        best = _validated(session, stage, learner, checkpoints, reference, average, 0, Validations(), seen, observer)

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
            figures |= observer.figures(step)
            reference = next_reference(stage, reference, figures)
            session.weights_changed(f"{stage.title}:{number}")
            if stage.ema_decay:
                average.add(learner.parameters, number)
            due = number == stage.steps or (stage.validate_every and number % stage.validate_every == 0)
            if due:
                best = _validated(
                    session, stage, learner, checkpoints, reference, average, number, best, seen, observer
                )
            elif number % session.recipe.checkpoints.every_steps == 0:
                checkpoints.save(number, _state(learner, reference, average), best.state() | observer.state(number))
            session.context.tracker.log(figures, step=number, stage=stage.title)
            seen.add(figures)
            warn(session, stage.title, *stability_alarms(seen, figures, stage.tasks_per_step))
            bar.advance(reward=figures.get("reward"), completion=figures.get("completion"), best=best.completion)
            drifted, over = drift(session, seen)
            warn(session, stage.title, *drifted)
            if over:
                progress.say(f"{stage.title}: a reward model no longer agrees with the verifier; stopping here")
                break
            if stage.patience_steps and number - best.step >= stage.patience_steps:
                progress.say(f"{stage.title}: no better validation for {number - best.step} steps; stopping here")
                break
    keep_best(session, learner, checkpoints, stage.title)
    observer.finish(number)
    return figures | {"best_step": float(best.step), "best_validation_completion": best.completion or 0.0}


def next_reference(stage: OnlineSettings, reference: Reference, figures: Mapping[str, float]) -> Reference:
    """`reference` with the weight of KL for the step after one with these figures."""
    if stage.kl_target is None or "kl" not in figures:
        return reference
    coefficient = controlled_coefficient(
        reference.kl_coefficient, figures["kl"], target=stage.kl_target, gain=stage.kl_gain
    )
    return replace(reference, kl_coefficient=coefficient)


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
    """Says every alarm that there is, and records it as an event of the run."""
    for alarm in alarms:
        if alarm is not None:
            session.run.record("warning", stage=stage, text=alarm)
            session.context.progress.warn(f"{stage}: {alarm}")


# ---------------------------------------------------------------- checkpoints


def _validated(
    session: Session,
    stage: OnlineSettings,
    learner: Trainee,
    checkpoints: CheckpointFolder,
    reference: Reference,
    average: WeightAverage,
    step: int,
    best: Validations,
    seen: StageFigures,
    observer: Observer,
) -> Validations:
    tensors = partial(_state, learner, reference, average)
    acting = _acting(session, stage, learner, average, step)
    beside = observer.state(step)
    best = validated(session, stage.title, stage.validation_tasks, checkpoints, tensors, step, best, acting, beside)
    seen.add({"validation_completion": best.latest})
    warn(session, stage.title, held_out_alarm(seen))
    return best


@contextmanager
def _acting(
    session: Session, stage: OnlineSettings, learner: Trainee, average: WeightAverage, step: int
) -> Iterator[None]:
    """The average of the weights in place of the latest, where there is one."""
    if not average.values:
        yield
        return
    latest = learner.snapshot()
    learner.restore([average.values[name] for name in learner.parameters])
    session.weights_changed(f"{stage.title}-average:{step}")
    yield
    learner.restore(latest)
    session.weights_changed(f"{stage.title}:{step}")


def _state(learner: Trainee, reference: Reference, average: WeightAverage) -> dict[str, Tensor]:
    """What a checkpoint holds."""
    return learner.tensors() | reference.tensors(learner.parameters) | average.tensors(learner.parameters)


def _resume(
    session: Session,
    stage: OnlineSettings,
    learner: Trainee,
    checkpoints: CheckpointFolder,
    average: WeightAverage,
    observer: Observer,
) -> tuple[int, Validations, Reference]:
    """Restores the newest checkpoint, `average` included; step 0 and no validations if the stage starts afresh."""
    saved = checkpoints.latest()
    if saved is None:
        return 0, Validations(), Reference(learner.snapshot(), stage.kl_coefficient)
    learner.load_tensors(saved.tensors)
    average.load_tensors(saved.tensors, learner.parameters)
    observer.restore(saved.step, saved.state)
    session.weights_changed(f"{stage.title}:{saved.step}")
    return saved.step, Validations.from_state(saved.state), Reference.of_tensors(learner.parameters, saved.tensors)
