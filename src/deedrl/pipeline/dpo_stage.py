"""The stage `dpo`: pairs of stored episodes, the reference's word on them once, updates, validations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice

import msgspec
from msgspec.structs import asdict
from torch import Tensor

from deedrl.pipeline.alarms import displacement_alarm
from deedrl.pipeline.checkpoint import Checkpoint
from deedrl.pipeline.dpo_settings import Dpo
from deedrl.pipeline.online import warn
from deedrl.pipeline.preference_data import PreferenceData, PreferenceReport, check_learnt, preference_data
from deedrl.pipeline.rates import step_rate
from deedrl.pipeline.session import Session
from deedrl.pipeline.validation import Validations, keep_best, validated
from deedrl.training.dpo import (
    DpoUpdate,
    Episodes,
    measure_preferences,
    recorded,
    recorded_logprobs,
    update_preferences,
    with_logprobs,
)
from deedrl.training.learner import Learner
from deedrl.training.preferences import PreferencePair
from deedrl.training.sft import batch_order

REFERENCE = "reference.logprobs"
"""Name in a checkpoint of the reference's log-probabilities."""
HELD_OUT = ("loss", "reward_accuracy", "reward_margin", "chosen_change")
"""Figures that are also taken of held-out pairs."""


def dpo_stage(session: Session, stage: Dpo) -> dict[str, float]:
    """Learns from pairs and ends with the best validated weights, saved; returns the last figures, and counts."""
    checkpoints = session.checkpoints(stage.title)
    saved = checkpoints.latest()
    data = preference_data(session, stage, begun=saved is not None)
    check_learnt(session, stage, data.episodes.keys())
    session.rest_policies()
    learner = Learner(session.loaded)
    episodes = _with_reference(session, stage, learner, data, saved)
    best = Validations.from_state(saved.state if saved else {})
    tensors = partial(_tensors, learner, recorded_logprobs(episodes))
    check = partial(validated, session, stage.title, stage.validation_tasks, checkpoints, tensors)
    if stage.validate_every and saved is None:
        best = check(0, best)
    figures: dict[str, float] = {}
    start, steps = saved.step if saved else 0, stage.steps_for(len(data.report.pairs))
    warned = False
    with session.context.progress.bar(stage.title, total=steps, unit="step", done=start) as bar:
        for number, pairs in enumerate(_order(session, stage, data, start, steps), start=start + 1):
            settings = update_settings(stage, number - 1, steps)
            figures = update_preferences(learner, pairs, episodes, settings)
            figures["learning_rate"] = settings.learning_rate
            session.weights_changed(f"{stage.title}:{number}")
            if stage.validates(number, steps):
                figures |= _held_out(learner, data, episodes, settings)
                best = check(number, best)
            elif number % session.recipe.checkpoints.every_steps == 0:
                checkpoints.save(number, tensors(), best.state())
            session.context.tracker.log(figures, step=number, stage=stage.title)
            alarm = None if warned else displacement_alarm(figures)
            warn(session, stage.title, alarm)
            warned = warned or alarm is not None
            bar.advance(loss=figures["loss"], accuracy=figures["reward_accuracy"], best=best.completion)
    keep_best(session, learner, checkpoints, stage.title)
    found = {"steps": float(steps), "best_step": float(best.step)}
    return figures | found | {"best_validation_completion": best.completion or 0.0} | _count_figures(data.report)


def _with_reference(
    session: Session, stage: Dpo, learner: Learner, data: PreferenceData, saved: Checkpoint | None
) -> Episodes:
    """The episodes with the reference's log-probabilities: of the weights as they are if the stage begins, else saved.

    What was saved is restored.
    """
    if saved is None:
        return recorded(learner, data.episodes, stage.micro_batch_tokens)
    learner.load_tensors(saved.tensors)
    session.weights_changed(f"{stage.title}:{saved.step}")
    return with_logprobs(data.episodes, saved.tensors[REFERENCE])


def _order(
    session: Session, stage: Dpo, data: PreferenceData, start: int, steps: int
) -> Iterator[list[PreferencePair]]:
    """The pairs of each step from `start` on: shuffled passes over all of them."""
    pairs = data.report.pairs
    size = min(stage.pairs_per_step, len(pairs))
    order = batch_order(len(pairs), size, steps, session.context.seed(stage.title, "order"))
    return ([pairs[place] for place in places] for places in islice(order, start, None))


def update_settings(stage: Dpo, step: int, steps: int) -> DpoUpdate:
    """The stage's settings of the same names; the learning rate is that of `step` (from 0) of `steps`."""
    return msgspec.convert(asdict(stage) | {"learning_rate": step_rate(stage, step, steps)}, DpoUpdate)


def _tensors(learner: Learner, reference: Tensor) -> Mapping[str, Tensor]:
    return learner.tensors() | {REFERENCE: reference}


def _held_out(learner: Learner, data: PreferenceData, episodes: Episodes, settings: DpoUpdate) -> dict[str, float]:
    measured = measure_preferences(learner, data.report.held_out, episodes, settings)
    return {f"held_out_{name}": measured[name] for name in HELD_OUT if name in measured}


def _count_figures(report: PreferenceReport) -> dict[str, float]:
    counts: Sequence[tuple[str, int]] = (
        ("pairs", len(report.pairs)),
        ("held_out_pairs", len(report.held_out)),
        ("pair_tasks", report.tasks),
        ("dropped_pairs", sum(report.dropped.values())),
    )
    return {name: float(count) for name, count in counts}
