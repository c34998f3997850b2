"""The stage `grpo`: sample groups of siblings, compare them, update, validate; the best validated policy stays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean
from typing import Any

import msgspec
from msgspec.structs import asdict
from torch import Tensor

from deedrl.evaluation.metrics import compute_metrics
from deedrl.pipeline.alarms import held_out_alarm, logprob_gap_alarm, signal_alarm
from deedrl.pipeline.checkpoint import CheckpointFolder
from deedrl.pipeline.overlap import while_updating
from deedrl.pipeline.session import Session
from deedrl.pipeline.stage_settings import Grpo
from deedrl.pipeline.validation import held_out_score, validate
from deedrl.rollouts.failures import drop_broken_groups
from deedrl.rollouts.pacing import mean_staleness, pace
from deedrl.seeding import stream
from deedrl.tasks.quotas import draw_in_turn
from deedrl.training import advantages
from deedrl.training.learner import Learner, scheduled_rate
from deedrl.training.losses import Silent
from deedrl.training.policy_gradient import PolicyUpdate, update_policy
from deedrl.training.selection import SelectionCounts, group_has_signal, group_trajectories, select
from deedrl.types import Task, Trajectory, TrajectoryGroup

ESTIMATORS = {"grpo": advantages.grpo, "dr_grpo": advantages.dr_grpo, "rloo": advantages.rloo}

TaskSource = Callable[[int, int, Mapping[str, float]], list[Task]]
"""From a step, a number and weights of families to that many distinct training tasks for the step."""

Sampled = tuple[list[TrajectoryGroup], dict[str, float]]
"""The groups of a step, and figures of its episodes."""


def grpo_stage(session: Session, stage: Grpo) -> dict[str, float]:
    """Trains on the whole training pool; returns the last figures."""
    tasks = session.tasks("train")
    return train_policy(
        session, stage, lambda step, count, weights: shuffled_tasks(session, stage.title, tasks, step, count, weights)
    )


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


def train_policy(session: Session, stage: Grpo, tasks: TaskSource) -> dict[str, float]:
    """`stage.steps` updates from where the stage stopped; ends with the best validated weights, saved."""
    learner = Learner(session.loaded, temperature=session.sampling(stage.temperature).temperature)
    checkpoints = session.checkpoints(stage.title)
    reference = learner.snapshot()
    start, best = _resume(session, learner, checkpoints, stage.title, reference)
    figures: dict[str, float] = {}
    progress = session.context.progress
    if stage.validate_every and start == 0:
        best = _validated(session, stage, learner, checkpoints, reference, 0, Validations())

    def sample(step: int) -> Sampled:
        wanted = stage.tasks_per_step * (1 + stage.refill_attempts)
        supply = tasks(step, wanted, family_weights(best.solved, stage.failure_weight))
        return sample_groups(session, stage, supply, step)

    sampled: Sampled | None = None
    with progress.bar(stage.title, total=stage.steps, unit="step", done=start) as bar:
        for step, beginning in pace(range(start, stage.steps), stage.max_staleness):
            update = partial(_update, session, stage, learner, sampled or sample(step), reference, step)
            ahead = partial(sample, step + 1) if step + 1 in beginning else None
            figures, sampled = _update_and_sample(session, update, ahead)
            number = step + 1
            session.weights_changed(f"{stage.title}:{number}")
            due = number == stage.steps or (stage.validate_every and number % stage.validate_every == 0)
            if due:
                best = _validated(session, stage, learner, checkpoints, reference, number, best)
            elif number % session.recipe.checkpoints.every_steps == 0:
                checkpoints.save(number, _with_reference(learner, reference), best.state())
            session.context.tracker.log(figures, step=number, stage=stage.title)
            bar.advance(reward=figures.get("reward"), completion=figures.get("completion"), best=best.completion)
            if stage.patience_steps and number - best.step >= stage.patience_steps:
                progress.say(f"{stage.title}: no better validation for {number - best.step} steps; stopping here")
                break
    _keep_best(session, learner, checkpoints, stage.title)
    return figures | {"best_step": float(best.step), "best_validation_completion": best.completion or 0.0}


# ---------------------------------------------------------------- one step


def _update_and_sample(
    session: Session, update: Callable[[], dict[str, float]], ahead: Callable[[], Sampled] | None
) -> tuple[dict[str, float], Sampled | None]:
    """What `update` and `ahead` return; the latter samples meanwhile, with the weights from before."""
    if ahead is None:
        session.rest_policies()
        return update(), None
    session.policy().hold_weights()
    return while_updating(update, ahead)


def _update(
    session: Session, stage: Grpo, learner: Learner, sampled: Sampled, reference: list[Tensor], step: int
) -> dict[str, float]:
    """Selects and updates; returns the step's figures."""
    groups, figures = sampled
    selection = select(
        groups,
        ESTIMATORS[stage.advantage],
        threshold=stage.zero_variance_threshold,
        max_tokens=session.recipe.limits.max_tokens_per_episode,
        keep_zero_variance=stage.kl_on_zero_variance,
    )
    rate = scheduled_rate(
        step,
        stage.steps,
        peak=stage.learning_rate,
        final=stage.final_learning_rate,
        schedule=stage.schedule,
        warmup=stage.warmup_steps,
    )
    settings = update_settings(stage, rate)
    counts = selection.counts
    updated = update_policy(
        learner,
        selection.samples,
        settings,
        reference if stage.kl_coefficient else None,
        silent_part(stage, counts),
        at_reference=step == 0,
    )
    trained = {sample.episode_id for sample in selection.samples}
    episodes = [t for group in groups for t in group.trajectories if t.episode_id in trained]
    staleness = mean_staleness(episodes, step, partial(_updates_behind, stage.title))
    no_signal = signal_alarm(figures, counts, session.recipe.sampling.max_tokens)
    # Against older weights the gap is what the policy has learnt since.
    _warn(session, stage, no_signal, None if staleness else logprob_gap_alarm(updated))
    return (
        figures
        | updated
        | {
            "learning_rate": rate,
            "staleness": staleness,
            "groups": float(counts.groups),
            "zero_variance_groups": float(counts.zero_variance),
            "unscored_episodes": float(counts.unscored),
            "split_trajectories": float(counts.samples.split_trajectories),
            "too_long_samples": float(counts.samples.too_long),
        }
    )


def _updates_behind(stage: str, policy_version: str) -> int:
    """Updates of the stage in the weights of that name; those it started with have another stage's name."""
    name, _, number = policy_version.rpartition(":")
    return int(number) if name == stage else 0


def family_weights(solved: Mapping[str, float], failure_weight: float) -> dict[str, float]:
    """How often each family is drawn, from the shares of its tasks that are solved: 1 and up."""
    return {family: 1.0 + failure_weight * (1.0 - share) for family, share in solved.items()}


def update_settings(stage: Grpo, learning_rate: float) -> PolicyUpdate:
    """The stage's settings of the same names; `learning_rate` is that of the step. A missing one raises."""
    named = {**asdict(stage), "learning_rate": learning_rate, "normalisation": stage.loss_normalisation}
    return msgspec.convert(named, PolicyUpdate)


def silent_part(stage: Grpo, counts: SelectionCounts) -> Silent:
    """Episodes without a signal that are part of the step's `tasks_per_step` groups, and were not replaced."""
    in_place = max(stage.tasks_per_step - (counts.groups - counts.zero_variance - counts.too_small), 0)
    share = min(in_place / counts.zero_variance, 1.0) if counts.zero_variance else 0.0
    return Silent(counts.silent_episodes, counts.silent_tokens) * share


def sample_groups(
    session: Session, stage: Grpo, supply: Sequence[Task], step: int
) -> tuple[list[TrajectoryGroup], dict[str, float]]:
    """The step's groups, those without a signal replaced by fresh tasks of `supply` up to `refill_attempts` times."""
    wanted = stage.tasks_per_step
    kept: list[TrajectoryGroup] = []
    silent: list[TrajectoryGroup] = []
    episodes: list[Trajectory] = []
    dropped = 0
    for _ in range(1 + stage.refill_attempts):
        missing, supply = supply[: wanted - len(kept)], supply[wanted - len(kept) :]
        if not missing:
            break
        played = _play_groups(session, stage, missing, step)
        episodes += played
        whole, broken = drop_broken_groups(played)
        dropped += broken.groups
        for group in group_trajectories(whole):
            has_signal = group_has_signal(group, stage.zero_variance_threshold)
            (kept if has_signal else silent).append(group)
    metrics = compute_metrics(episodes)
    figures = {
        "reward": metrics.mean_reward.value or 0.0,
        "completion": metrics.completion_rate.value or 0.0,
        "mean_steps": metrics.mean_steps.value or 0.0,
        "format_compliance": metrics.format_compliance.value or 0.0,
        "tool_call_accuracy": metrics.tool_call_accuracy.value or 0.0,
        "episodes": float(len(episodes)),
        "errored_episodes": float(metrics.errored),
        "dropped_groups": float(dropped),
        "cut_share": _cut_share(episodes),
        "entropy": sampled_entropy(episodes),
    }
    return kept + silent, figures


def _play_groups(session: Session, stage: Grpo, tasks: Sequence[Task], step: int) -> list[Trajectory]:
    sampling = session.sampling(stage.temperature)
    specs = [
        session.spec(task, f"{stage.title}-{step}-{task.id}-{sibling}", stage=stage.title, sampling=sampling)
        for task in tasks
        for sibling in range(stage.group_size)
    ]
    title = f"{stage.title}: episodes of step {step + 1}"
    with session.context.progress.bar(title, total=len(specs), unit="episode") as bar:
        return session.play(specs, store=stage.title, policy=session.policy(), bar=bar)


def _cut_share(episodes: Sequence[Trajectory]) -> float:
    """Share of completions that hit the token limit."""
    reasons = [step.completion.finish_reason for episode in episodes for step in episode.steps]
    return sum(reason == "length" for reason in reasons) / len(reasons) if reasons else 0.0


def sampled_entropy(episodes: Sequence[Trajectory]) -> float:
    """Entropy of the policy in nats a token at the temperature of sampling, estimated by what was sampled.

    Where it falls at once, siblings become alike and nothing is left to learn from.
    """
    logprobs = [x for episode in episodes for step in episode.steps for x in step.completion.logprobs]
    return -fmean(logprobs) if logprobs else 0.0


def _warn(session: Session, stage: Grpo, *alarms: str | None) -> None:
    for alarm in alarms:
        if alarm is not None:
            session.context.progress.warn(f"{stage.title}: {alarm}")


# ---------------------------------------------------------------- checkpoints


@dataclass(frozen=True)
class Validations:
    """The best validation so far, and by family what the latest one solved."""

    step: int = 0
    score: float | None = None
    completion: float | None = None
    solved: Mapping[str, float] = field(default_factory=dict)

    def state(self) -> dict[str, Any]:
        return {
            "best_step": self.step,
            "best_score": self.score,
            "best_completion": self.completion,
            "solved_by_family": dict(self.solved),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Validations:
        return cls(
            step=int(state.get("best_step", 0)),
            score=state.get("best_score"),
            completion=state.get("best_completion"),
            solved=state.get("solved_by_family", {}),
        )


def _validated(
    session: Session,
    stage: Grpo,
    learner: Learner,
    checkpoints: CheckpointFolder,
    reference: list[Tensor],
    step: int,
    best: Validations,
) -> Validations:
    metrics = validate(session, stage.title, step, stage.validation_tasks)
    score = held_out_score(metrics)
    shares = {family: group.completion_rate.value for family, group in metrics.by_family.items()}
    solved = {family: share for family, share in shares.items() if share is not None}
    if score is not None and (best.score is None or score > best.score):
        best = Validations(step, score, metrics.completion_rate.value)
    best = replace(best, solved=solved)
    checkpoints.save(step, _with_reference(learner, reference), best.state(), score)
    _warn(session, stage, held_out_alarm(session.run.folder, stage.title, step))
    return best


def _with_reference(learner: Learner, reference: list[Tensor]) -> dict[str, Tensor]:
    names = list(learner.parameters)
    return learner.tensors() | {f"reference.{name}": value for name, value in zip(names, reference, strict=True)}


def _resume(
    session: Session, learner: Learner, checkpoints: CheckpointFolder, stage: str, reference: list[Tensor]
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


def _keep_best(session: Session, learner: Learner, checkpoints: CheckpointFolder, stage: str) -> None:
    """The best validated weights become the policy of the run (case F20)."""
    best = checkpoints.best()
    if best is not None:
        learner.load_tensors(best.tensors)
        session.weights_changed(f"{stage}:{best.step}")
    session.save_policy()
