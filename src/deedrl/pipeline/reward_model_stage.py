"""The stage `reward_model`: labels, updates, and a calibration set that says whether it still agrees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from statistics import fmean, pstdev

from deedrl.errors import DeedRLError
from deedrl.pipeline.alarms import agreement_alarm, keeps_falling
from deedrl.pipeline.online import warn
from deedrl.pipeline.preference_data import check_learnt, play
from deedrl.pipeline.rates import step_rate
from deedrl.pipeline.reward_model_data import (
    RewardData,
    collect,
    data_of_version,
    label_files,
    named_episodes,
    read_data,
    require_items,
    tokens_of,
)
from deedrl.pipeline.reward_model_folder import (
    FORMAT,
    CalibratedPart,
    RewardModelInfo,
    SavedRewardModel,
    base_fingerprint,
    newest_version,
    open_version,
    placed_for,
    save_version,
    version_folder,
)
from deedrl.pipeline.reward_model_settings import RewardModelStage
from deedrl.pipeline.session import Session
from deedrl.training import processes
from deedrl.training.rank_agreement import Place, RankAgreement, rank_agreement
from deedrl.training.reward_labels import CalibrationSet, calibration_set
from deedrl.training.reward_model import Episodes, Lesson, RewardModel, pairs_lesson, steps_lesson
from deedrl.training.sft import batch_order

SMALLEST_SCALE = 1e-3
"""Scores that spread by less are all alike; their differences are not blown up."""


def reward_model_stage(session: Session, stage: RewardModelStage) -> dict[str, float]:
    """Learns the first version and saves it; the policy stays as it is. Returns the last figures, and counts."""
    if not processes.from_first(data_of_version(session, stage, 1).exists):
        play(session, stage)
    _, figures = learn_version(session, stage, label_files(session, stage), None)
    return figures


def refresh(
    session: Session, stage: RewardModelStage, more: Sequence[Path]
) -> tuple[SavedRewardModel, SavedRewardModel]:
    """The newest version, and the next one, which goes on from it with labels and episodes that came since.

    Left out are the pairs and turns that an earlier version learnt from, and the tasks of its calibration sets; these
    sets are kept, and a share of what is new joins them. Raises DeedRLError where there is no version to go on from, or
    nothing new.
    """
    before = newest_of(session, stage)
    after, _ = learn_version(session, stage, label_files(session, stage, more), before)
    return before, after


def newest_of(session: Session, stage: RewardModelStage) -> SavedRewardModel:
    """The newest version of the stage's model; DeedRLError if there is none."""
    found = newest_version(session.run.reward_models(stage.title))
    if found is None:
        raise DeedRLError(
            f"{session.run.folder}: expected a trained reward model '{stage.title}', found none; train it first: "
            f"deedrl reward-model train --run {session.run.folder}"
        )
    return found


def learn_version(
    session: Session, stage: RewardModelStage, files: Sequence[Path], before: SavedRewardModel | None
) -> tuple[SavedRewardModel, dict[str, float]]:
    """The version after `before`, saved, and figures."""
    version = 1 if before is None else before.info.version + 1
    old = () if before is None else before.calibration
    # One process reads: people may label while it does.
    data = processes.from_first(lambda: _data(session, stage, files, version, old))
    named = named_episodes((*data.comparisons, *data.turns, *data.held_out))
    check_learnt(session, stage, named)
    episodes = tokens_of(session, stage, named)
    calibration = (*old, calibration_set(data.held_out, episodes))
    session.rest_policies()
    title = stage.title if before is None else f"{stage.title}-v{version}"
    with placed_for(session.loaded, f"{title} learning", stage.micro_batch_tokens, before) as placed:
        figures, step = _learn(session, stage, title, placed.model, data, episodes, calibration)
        info = _info(session, stage, placed.model, calibration, version, step)
        folder = session.run.reward_models(stage.title)
        if session.run.writes:
            save_version(folder, placed, info, calibration)
        processes.wait()
    return open_version(version_folder(folder, version)), figures | {
        "kept_step": float(step),
        "items": float(data.items),
        "labelled": float(data.labelled),
        "calibration_comparisons": float(sum(len(part.comparisons) for part in calibration)),
    }


def _data(
    session: Session, stage: RewardModelStage, files: Sequence[Path], version: int, old: Sequence[CalibrationSet]
) -> RewardData:
    """What the version learns from: as written if it has begun, else collected and written."""
    path = data_of_version(session, stage, version)
    if path.exists():
        return read_data(path)
    earlier = [read_data(data_of_version(session, stage, one)) for one in range(1, version)]
    data = collect(
        session,
        stage,
        files,
        seed=session.context.seed(stage.title, "labels", version),
        known={item for one in earlier for item in one.learnt_from},
        kept_apart={task for part in old for task in part.tasks},
    )
    require_items(stage, data)
    session.run.write_json(str(path.relative_to(session.run.folder)), data)
    session.context.progress.say(
        f"{stage.title}: {data.items} labels to learn from ({data.labelled} labels are people's), {len(data.held_out)} "
        f"comparisons put aside for calibration, of {data.episodes.usable} episodes"
    )
    return data


# ---------------------------------------------------------------- learning


def _learn(
    session: Session,
    stage: RewardModelStage,
    title: str,
    model: RewardModel,
    data: RewardData,
    episodes: Episodes,
    calibration: Sequence[CalibrationSet],
) -> tuple[dict[str, float], int]:
    """Updates `model` and leaves it with the weights that agreed best; returns the last figures, and their step.

    Where there is nothing to calibrate by, the last weights stay.
    """
    checkpoints, steps = session.checkpoints(title), stage.steps_for(data.items)
    saved = checkpoints.latest()
    start = 0
    accuracies: list[float] = []
    if saved is not None:
        model.load_tensors(saved.tensors)
        start, accuracies = saved.step, list(saved.state["accuracies"])
    figures: dict[str, float] = {}

    def calibrated(number: int) -> dict[str, float]:
        found = agreements(model, calibration)
        whole = found[-1]
        if whole.accuracy is not None:
            accuracies.append(whole.accuracy)
        checkpoints.save(number, model.tensors(), {"accuracies": accuracies}, whole.rating)
        return _calibration_figures(found)

    if saved is None:
        session.context.tracker.log(calibrated(0), step=0, stage=title)
    with session.context.progress.bar(title, total=steps, unit="step", done=start) as bar:
        for number, lesson in enumerate(_lessons(session, stage, data, start, steps), start=start + 1):
            if keeps_falling(accuracies, stage.max_fall, stage.patience):
                session.context.progress.say(f"{title}: agreement fell {stage.patience} times in a row; stopping here")
                break
            rate = step_rate(stage, number - 1, steps)
            figures = model.update(episodes, lesson, rate=rate, max_grad_norm=stage.max_grad_norm)
            figures["learning_rate"] = rate
            if stage.calibrates(number, steps):
                figures |= calibrated(number)
                warn(session, title, agreement_alarm(accuracies, stage.max_fall))
            elif number % session.recipe.checkpoints.every_steps == 0:
                checkpoints.save(number, model.tensors(), {"accuracies": accuracies})
            session.context.tracker.log(figures, step=number, stage=title)
            bar.advance(loss=figures["loss"], accuracy=accuracies[-1] if accuracies else None)
    best = checkpoints.best() or checkpoints.latest()
    if best is None:
        raise DeedRLError(f"{checkpoints.folder}: the checkpoints of this stage are gone; run the same command again")
    model.load_tensors(best.tensors)
    return figures, best.step


def _lessons(session: Session, stage: RewardModelStage, data: RewardData, start: int, steps: int) -> Iterator[Lesson]:
    """Of each step from `start` on: shuffled passes over everything."""
    size = min(stage.pairs_per_step, data.items)
    order = batch_order(data.items, size, steps, session.context.seed(stage.title, "order"))
    for places in islice(order, start, None):
        if stage.reads == "outcome":
            chosen = [data.comparisons[place] for place in places]
            yield pairs_lesson(chosen, smoothing=stage.label_smoothing, centre=stage.centre)
        else:
            yield steps_lesson([data.turns[place] for place in places])


def agreements(model: RewardModel, calibration: Sequence[CalibrationSet]) -> list[RankAgreement]:
    """Of the model with each calibration set, and last with all of them together."""
    scores: dict[Place, float] = {}
    for part in calibration:
        if part.comparisons:
            scores |= model.scores(part.episodes, part.places)
    whole = [one for part in calibration for one in part.comparisons]
    return [*(part.agreement(scores) for part in calibration), rank_agreement(whole, scores)]


def _calibration_figures(found: Sequence[RankAgreement]) -> dict[str, float]:
    """The whole under plain names; each set under its number as well where there are several."""
    *parts, whole = found
    named: Mapping[str, RankAgreement] = {f"_{n}": part for n, part in enumerate(parts, start=1)} if parts[1:] else {}
    return {
        f"calibration_{figure}{suffix}": value
        for suffix, part in {"": whole, **named}.items()
        for figure, value in (("accuracy", part.accuracy), ("tau", part.tau))
        if value is not None
    }


def _info(
    session: Session,
    stage: RewardModelStage,
    model: RewardModel,
    calibration: Sequence[CalibrationSet],
    version: int,
    step: int,
) -> RewardModelInfo:
    *found, _ = agreements(model, calibration)
    mean, scale = spread_of(model, calibration)
    return RewardModelInfo(
        format=FORMAT,
        reads=stage.reads,
        version=version,
        base=base_fingerprint(session.loaded),
        source=session.loaded.source,
        mean=mean,
        scale=scale,
        step=step,
        calibration=tuple(
            CalibratedPart(version=number, hash=part.hash, agreement=agreement)
            for number, (part, agreement) in enumerate(zip(calibration, found, strict=True), start=1)
        ),
    )


def spread_of(model: RewardModel, calibration: Sequence[CalibrationSet]) -> tuple[float, float]:
    """Mean and standard deviation of the scores of the calibration episodes' last turns; 0 and 1 without any."""
    scores: dict[Place, float] = {}
    for part in calibration:
        if part.episodes:
            scores |= model.scores(part.episodes, [Place(name) for name in part.episodes])
    if not scores:
        return 0.0, 1.0
    spread = pstdev(scores.values())
    return fmean(scores.values()), spread if spread >= SMALLEST_SCALE else 1.0
