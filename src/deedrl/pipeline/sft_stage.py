"""The stage `sft`: supervised fine-tuning on the positives of the cold start."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice

from deedrl.environments.noise import Noise
from deedrl.errors import DeedRLError
from deedrl.pipeline.job import task_system_prompt
from deedrl.pipeline.rates import step_rate
from deedrl.pipeline.rendering import rendered_sample
from deedrl.pipeline.replay_check import check_replays
from deedrl.pipeline.session import Session
from deedrl.pipeline.stage_settings import POSITIVES, ColdStart, Sft
from deedrl.pipeline.validation import validate
from deedrl.policies.local.attention import context_limit
from deedrl.training.learner import Learner
from deedrl.training.samples import TrainingSample
from deedrl.training.sft import batch_order, sft_update


def sft_stage(session: Session, stage: Sft) -> dict[str, float]:
    """Trains on the stored positives and saves the adapter; returns the last figures, and the steps taken."""
    samples = sft_samples(session, stage.title)
    steps = stage.steps or max(1, math.ceil((stage.epochs or 1.0) * len(samples) / stage.batch_size))
    order = batch_order(len(samples), stage.batch_size, steps, session.context.seed("sft", stage.title))
    session.rest_policies()
    learner = Learner(session.loaded)
    checkpoints = session.checkpoints(stage.title)
    start, reached = 0, False
    if (saved := checkpoints.latest()) is not None:
        learner.load_tensors(saved.tensors)
        start, reached = saved.step, bool(saved.state.get("target_reached"))
        session.weights_changed(f"{stage.title}:{start}")
    done = start
    figures: dict[str, float] = {}
    with session.context.progress.bar(stage.title, total=steps, unit="step", done=start) as bar:
        for step, batch in enumerate(islice(order, start, None), start=start):
            if reached:
                break
            done = step + 1
            figures = _one_step(session, stage, learner, [samples[index] for index in batch], step, steps)
            score = None
            if stage.validates(done):
                metrics = validate(session, stage.title, done, stage.validation_tasks)
                session.rest_policies()
                score, reached = metrics.completion_rate.value, stage.good_enough(metrics)
                figures["validation_completion"] = score or 0.0
            session.context.tracker.log(figures, step=done, stage=stage.title)
            if done % session.recipe.checkpoints.every_steps == 0 or done == steps or reached:
                checkpoints.save(done, learner.tensors(), {"target_reached": reached}, score)
            bar.advance(loss=figures["loss"])
    session.save_policy()
    return figures | {"samples": float(len(samples)), "steps": float(done)}


def _one_step(
    session: Session, stage: Sft, learner: Learner, batch: Sequence[TrainingSample], step: int, steps: int
) -> dict[str, float]:
    """Update number `step` (from 0) of `steps`, and its figures."""
    rate = step_rate(stage, step, steps)
    stats = sft_update(
        learner,
        batch,
        learning_rate=rate,
        max_grad_norm=stage.max_grad_norm,
        micro_batch_tokens=stage.micro_batch_tokens,
    )
    session.weights_changed(f"{stage.title}:{step + 1}")
    return {"loss": stats.loss, "grad_norm": stats.grad_norm, "learning_rate": rate}


def sft_samples(session: Session, stage: str) -> list[TrainingSample]:
    """The positives as samples under the recipe's own prompt, in the store's order; some are replayed first."""
    positives = list(session.store(POSITIVES))
    if not positives:
        raise DeedRLError(f"there are no positives to learn from: {_why_none(session)}")
    check_replays(session, stage, positives)
    environment = session.environment_class()
    by_id = {task.id: task for task in session.tasks("train")}
    # Beyond its context a model computes something, and nothing that it was made for.
    limit = min(session.recipe.limits.max_tokens_per_episode, context_limit(session.loaded.model))
    samples = [
        rendered_sample(
            session.loaded.renderer,
            positive,
            task_system_prompt(
                environment, by_id[positive.task_id], session.prompt, Noise.from_levels(positive.provenance.noise)
            ),
        )
        for positive in positives
    ]
    kept = [sample for sample in samples if len(sample.ids) <= limit]
    if len(kept) < len(samples):
        told = (
            f"{len(samples) - len(kept)} of {len(samples)} positives are longer than {limit} tokens and are left out; "
            "raise limits.max_tokens_per_episode, up to the model's context, to keep them"
        )
        if not kept:
            raise DeedRLError(f"there is nothing to learn from: {told}")
        session.context.progress.warn(told)
    _warn_of_long_turns(session, kept)
    return kept


def _warn_of_long_turns(session: Session, samples: Sequence[TrainingSample]) -> None:
    """What is taught must fit the limit that the policy samples under: a turn beyond it would always be cut."""
    limit = session.recipe.sampling.max_tokens
    longest = [sample.longest_turn for sample in samples]
    if (over := sum(turn > limit for turn in longest)) > 0:
        session.context.progress.warn(
            f"{over} of {len(samples)} positives have a turn of more than sampling.max_tokens ({limit}) tokens; the "
            f"policy would be cut there: raise it to {max(longest)} or more"
        )


def _why_none(session: Session) -> str:
    starts = [stage.title for stage in session.recipe.stages if isinstance(stage, ColdStart)]
    if not starts:
        return "the recipe has no cold_start stage; add one before this stage"
    if not any(session.run.finished(title) for title in starts):
        return (
            f"no cold start has finished in {session.run.folder} yet; run it first: "
            f"deedrl collect --run {session.run.folder}"
        )
    return (
        "the cold start kept nothing; raise its samples_per_task, guided_share or demonstrations, or lower "
        "stability_share"
    )
