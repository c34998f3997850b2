"""Reward models as terms of the rubric, for the episodes that a policy learns from.

A term of the rubric scores one stored episode and reads nothing else; a reward model reads tokens, and many episodes at
once. So the rubric itself stays as it is: episodes are played and stored under it, and when those of a step are there,
the models score them together, the rubric with the learned terms scores them anew, and the stores get the result as
later lines of the same episodes (docs/decisions/0028).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from statistics import fmean

import msgspec

from deedrl.errors import ConfigError, DeedRLError
from deedrl.pipeline.alarms import drift_alarm
from deedrl.pipeline.reward_model_folder import (
    PlacedRewardModel,
    SavedRewardModel,
    newest_version,
    open_version,
    place,
    version_folder,
)
from deedrl.pipeline.reward_model_settings import RewardModelStage
from deedrl.pipeline.session import Session
from deedrl.pipeline.stage_figures import StageFigures
from deedrl.policies.local.attention import context_limit
from deedrl.rewards.rubric import Rubric, WeightedTerm, rescore
from deedrl.rewards.term import FunctionTerm
from deedrl.training import processes
from deedrl.training.rank_agreement import Place, sigmoid
from deedrl.training.reward_model import Reading, RewardModel, readings, turn_places
from deedrl.training.samples import samples_from
from deedrl.types import Trajectory

USED = "used.json"
"""In a reward model's folder: which version each stage is rewarded by."""


def with_learned_terms(session: Session, stage: str, store: str, played: Sequence[Trajectory]) -> list[Trajectory]:
    """`played` as the rubric with its learned terms scores them; as they came where the recipe names none.

    What is rewarded anew is appended to `store`. Infrastructure trouble is never scored; an episode without tokens, or
    with more than the model reads, is left unscored by the term, and so has no reward.
    """
    names = session.recipe.learned_terms
    if not names:
        return list(played)
    _require_other_names(session, names)
    fresh = [t for t in played if not t.errored and not (t.breakdown and set(names) <= t.breakdown.terms.keys())]
    if fresh:
        session.rest_policies()
        values = {name: _values(session, stage, name, fresh) for name in names}
        rubric = _with_terms(session, values)
        scored = {t.episode_id: rescore(t, rubric) for t in fresh}
        session.keep(store, scored.values())
        played = [scored.get(t.episode_id, t) for t in played]
    return list(played)


def _require_other_names(session: Session, names: Sequence[str]) -> None:
    taken = [weighted.term.name for weighted in session.rubric.terms if weighted.term.name in names]
    if taken:
        raise ConfigError(
            f"rubric.{taken[0]}: the environment's rubric has a term of this name and the recipe a reward_model stage; "
            "give the stage another name"
        )


def _with_terms(session: Session, values: Mapping[str, Mapping[str, float | None]]) -> Rubric:
    """The session's rubric and a term for each of `values`, by its name and then by episode."""
    learned = [WeightedTerm(_looked_up(name, of), session.recipe.rubric[name]) for name, of in values.items()]
    return Rubric((*session.rubric.terms, *learned), session.rubric.vetoes)


def _looked_up(name: str, values: Mapping[str, float | None]) -> FunctionTerm:
    return FunctionTerm(name, lambda trajectory: values[trajectory.episode_id])


def _values(session: Session, stage: str, name: str, episodes: Sequence[Trajectory]) -> dict[str, float | None]:
    placed, saved = _placed(session, stage, name)
    limit = context_limit(session.loaded.model)
    tokens = {t.episode_id: readings(samples_from(t)) for t in episodes}
    readable = {episode: read for episode, read in tokens.items() if read and _longest(read) <= limit}
    found = term_values(placed.model, saved, readable)
    return {episode: found.get(episode) for episode in tokens}


def _longest(read: Sequence[Reading]) -> int:
    return max(len(one.ids) for one in read)


def term_values(
    model: RewardModel, saved: SavedRewardModel, episodes: Mapping[str, Sequence[Reading]]
) -> dict[str, float]:
    """What a saved model's term is worth for each of `episodes`, in [0, 1].

    An outcome model's is σ((score - mean) / scale), with mean and standard deviation over its calibration episodes: 1/2
    is what these have on average. A process model's is the smallest σ(score) of a turn, as in Math-Shepherd (Wang et
    al. 2023, arXiv 2312.08935): an episode is as good as its worst turn.
    """
    if saved.info.reads == "outcome":
        scores = model.scores(episodes, [Place(name) for name in episodes])
        mean, scale = saved.info.mean, saved.info.scale
        return {end.episode_id: sigmoid((score - mean) / scale) for end, score in scores.items()}
    turns = model.scores(episodes, [turn for name, read in episodes.items() for turn in turn_places(name, read)])
    worst: dict[str, float] = {}
    for turn, score in turns.items():
        worst[turn.episode_id] = min(sigmoid(score), worst.get(turn.episode_id, 1.0))
    return worst


def _placed(session: Session, stage: str, name: str) -> tuple[PlacedRewardModel, SavedRewardModel]:
    """The version of the model called `name` that rewards `stage`, on the session's model; put there once."""
    settings = next(s for s in session.recipe.stages if isinstance(s, RewardModelStage) and s.title == name)
    saved = _version_for(session, stage, name)
    if saved.folder not in session.reward_models:
        title = f"{name} {saved.info.version}"
        session.reward_models[saved.folder] = place(session.loaded, title, settings.micro_batch_tokens, saved)
        session.context.progress.say(f"{stage}: rewarded by {saved.folder} too")
    return session.reward_models[saved.folder], saved


def _version_for(session: Session, stage: str, name: str) -> SavedRewardModel:
    """The version that `stage` began with, so that a refresh in between changes no reward; the newest if it begins."""
    version = processes.from_first(lambda: _version_number(session, stage, name))
    return open_version(version_folder(session.run.reward_models(name), version))


def _version_number(session: Session, stage: str, name: str) -> int:
    """As noted when the stage began; noted now if it begins."""
    folder = session.run.reward_models(name)
    path = folder / USED
    used = msgspec.json.decode(path.read_bytes(), type=dict[str, int]) if path.exists() else {}
    if stage in used:
        return used[stage]
    saved = newest_version(folder) if session.run.finished(name) else None
    if saved is None:
        raise DeedRLError(
            f"{stage}: the rubric gives the reward model '{name}' a weight and it is not trained yet; run its stage "
            f"before: deedrl reward-model train --run {session.run.folder} --stage {name}"
        )
    session.run.write_json(str(path.relative_to(session.run.folder)), used | {stage: saved.info.version})
    return saved.info.version


# ---------------------------------------------------------------- is it still right?


def learned_figures(names: Sequence[str], episodes: Sequence[Trajectory]) -> dict[str, float]:
    """Of each learned term: its mean, and how it ranks solved over failed siblings; equal values count half."""
    figures: dict[str, float] = {}
    for name in names:
        values = [(t, value) for t in episodes if (value := _value(t, name)) is not None]
        by_task: dict[tuple[str, str], tuple[list[float], list[float]]] = {}
        for trajectory, value in values:
            if trajectory.solved is not None:
                siblings = by_task.setdefault((trajectory.task_id, trajectory.role), ([], []))
                siblings[trajectory.solved].append(value)
        pairs = [(good, bad) for failed, solved in by_task.values() for good, bad in product(solved, failed)]
        agreeing = sum((good > bad) + (good == bad) / 2 for good, bad in pairs)
        figures |= {f"{name}_mean": fmean(value for _, value in values)} if values else {}
        figures |= {f"{name}_compared": float(len(pairs)), f"{name}_agreeing": float(agreeing)}
        figures |= {f"{name}_agreement": agreeing / len(pairs)} if pairs else {}
    return figures


def _value(trajectory: Trajectory, name: str) -> float | None:
    score = trajectory.breakdown.terms.get(name) if trajectory.breakdown else None
    return None if score is None else score.value


def drift(session: Session, seen: StageFigures) -> tuple[list[str], bool]:
    """What is to be said of learned terms after a step of the stage that `seen` is of, and whether one of them is to
    end it."""
    said: list[str] = []
    over = False
    for settings in session.recipe.stages:
        if not isinstance(settings, RewardModelStage) or settings.title not in session.recipe.learned_terms:
            continue
        compared, agreeing = (seen[f"{settings.title}_{what}"] for what in ("compared", "agreeing"))
        logged = list(zip(compared, agreeing, strict=True))
        alarms = [
            drift_alarm(logged[: len(logged) - back], settings.drift_pairs, settings.max_fall)
            for back in range(max(settings.patience, 1))
        ]
        if alarms[0] is not None:
            said.append(f"{settings.title}: {alarms[0]}")
        over = over or (settings.patience > 0 and all(alarms))
    return said, over
