"""What a reward model learns from: pairs and turns of stored episodes, people's labels, and the calibration set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from deedrl.errors import DeedRLError, StoreError
from deedrl.pipeline.preference_data import (
    cleaned_pairs,
    samples_under_own_prompt,
    stored_candidates,
    stored_episodes,
)
from deedrl.pipeline.reward_model_settings import RewardModelStage
from deedrl.pipeline.session import Session
from deedrl.policies.local.attention import context_limit
from deedrl.store.labels import LABELS, Line, PairLabel, TurnLabel, read_labels, standing
from deedrl.training.preference_cleaning import held_tasks
from deedrl.training.preferences import CandidateCounts
from deedrl.training.rank_agreement import Comparison, Place
from deedrl.training.reward_labels import compared_turns, comparison_of, sibling_labels
from deedrl.training.reward_model import Reading, StepLabel, readings
from deedrl.training.samples import samples_from
from deedrl.types import Record, Trajectory


class RewardData(Record, frozen=True):
    """What one version of a reward model learns from, as it is written beside it."""

    stores: dict[str, int]
    """Episodes by the store they were read from."""
    episodes: CandidateCounts
    """What became of them on the way to pairs and labels of turns."""
    dropped: dict[str, int]
    """Stored pairs by the step of cleaning that dropped them."""
    labelled: int
    """Pairs or turns that people labelled; they take the place of what the store says of the same."""
    comparisons: tuple[Comparison, ...] = ()
    """That an outcome model learns from."""
    turns: tuple[StepLabel, ...] = ()
    """That a process model learns from."""
    held_out: tuple[Comparison, ...] = ()
    """That went into the calibration set."""

    @property
    def items(self) -> int:
        """Comparisons or labelled turns to learn from."""
        return len(self.comparisons) + len(self.turns)

    @property
    def learnt_from(self) -> set[object]:
        """The pairs and turns of it, whichever way each was labelled."""
        pairs = {_sides(one) for one in (*self.comparisons, *self.held_out)}
        return {*pairs, *(one.place for one in self.turns)}


def collect(
    session: Session,
    stage: RewardModelStage,
    files: Sequence[Path],
    *,
    seed: int,
    known: Collection[object] = (),
    kept_apart: Collection[str] = (),
) -> RewardData:
    """Labels of the stage's stores and of `files`, less those `known` and those of the tasks `kept_apart`.

    A share of the tasks becomes the calibration set. People's word on a pair takes the place of the verifier's.
    """
    found, read = stored_candidates(session, stage)
    dropped: dict[str, int] = {}
    comparisons: dict[object, Comparison] = {}
    turns: dict[object, StepLabel] = {}
    if stage.reads == "outcome":
        _, cleaned = cleaned_pairs(session, stage, found)
        dropped = cleaned.dropped
        of_people = labelled_comparisons(session, stage, files)
        comparisons = {_sides(one): one for one in (*map(comparison_of, cleaned.pairs), *of_people)}
        labelled = len(of_people)
    else:
        by_people = labelled_turns(session, stage, files)
        turns = {one.place: one for one in (*sibling_labels(found), *by_people)}
        labelled = len(by_people)
    new = [one for key, one in comparisons.items() if key not in known and one.task_id not in kept_apart]
    new_turns = [one for key, one in turns.items() if key not in known and one.task_id not in kept_apart]
    held = held_tasks([*(one.task_id for one in new), *(one.task_id for one in new_turns)], stage.held_out_share, seed)
    own_turns = [one for one in new_turns if one.task_id in held]
    held_out = (*(one for one in new if one.task_id in held), *compared_turns(own_turns, seed))
    return RewardData(
        stores=dict(read.stores),
        episodes=read.counts,
        dropped=dropped,
        labelled=labelled,
        comparisons=tuple(one for one in new if one.task_id not in held),
        turns=tuple(one for one in new_turns if one.task_id not in held),
        held_out=held_out,
    )


def label_files(session: Session, stage: RewardModelStage, more: Sequence[Path] = ()) -> list[Path]:
    """The files of labels a stage learns from: those it names, the run's own if there is one, and `more`."""
    own = session.run.folder / LABELS
    known = [own] if stage.reads == "outcome" and own.exists() else []
    return [*map(Path, stage.labels), *known, *more]


def tokens_of(session: Session, stage: RewardModelStage, wanted: Collection[str]) -> dict[str, tuple[Reading, ...]]:
    """The readings of the episodes `wanted`, from the stage's stores; StoreError names what is missing."""
    sampler = samples_under_own_prompt(session)
    found = {t.episode_id: readings(sampler(t)) for t in stored_episodes(session, stage, Counter(), wanted)}
    if missing := set(wanted) - {name for name, read in found.items() if read}:
        raise StoreError(
            f"{session.run.trajectories}: expected the tokens of {len(wanted)} labelled episodes, {len(missing)} are "
            f"missing (e.g. {min(missing)}); put the stores back as they were"
        )
    return found


def named_episodes(items: Iterable[Comparison | StepLabel]) -> set[str]:
    """Ids of all episodes that comparisons or labels speak of."""
    places: set[Place] = set()
    for one in items:
        places |= {one.better, one.worse} if isinstance(one, Comparison) else {one.place}
    return {place.episode_id for place in places}


# ---------------------------------------------------------------- people's labels


def labelled_comparisons(session: Session, stage: RewardModelStage, files: Sequence[Path]) -> list[Comparison]:
    """One comparison for each pair that people labelled: what most of them said, a tie where that is even.

    Raises StoreError naming the line of a label whose episodes cannot be compared.
    """
    labels = standing([entry for path in files for entry in read_labels(path, PairLabel)])
    named = {name for pair in labels for name in pair}
    by_id = {t.episode_id: t for t in stored_episodes(session, stage, Counter(), named)}
    found = []
    for (one, other), of_raters in labels.items():
        place, _ = next(iter(of_raters.values()))
        first, second = (_labelled_episode(place, by_id, name, session) for name in (one, other))
        if first.task_id != second.task_id:
            raise StoreError(
                f"{place}: expected two episodes of one task, got '{one}' of {first.task_id} and '{other}' of "
                f"{second.task_id}; remove the line"
            )
        said = [label for _, label in of_raters.values() if label.choice != "skip"]
        if not said:
            continue
        wins = sum(label.better == one for label in said) - sum(label.better == other for label in said)
        better, worse = (one, other) if wins >= 0 else (other, one)
        found.append(Comparison(task_id=first.task_id, better=Place(better), worse=Place(worse), tie=wins == 0))
    return found


def labelled_turns(session: Session, stage: RewardModelStage, files: Sequence[Path]) -> list[StepLabel]:
    """The labels of turns in `files`; several of one turn are taken as their mean."""
    entries = [entry for path in files for entry in read_labels(path, TurnLabel)]
    wanted = {label.episode_id for _, label in entries}
    by_id = {t.episode_id: t for t in stored_episodes(session, stage, Counter(), wanted)}
    values: dict[Place, list[float]] = {}
    for place, label in entries:
        episode = _labelled_episode(place, by_id, label.episode_id, session)
        if label.step not in {step.index for step in episode.steps}:
            raise StoreError(
                f"{place}: expected a step below {len(episode.steps)} of '{label.episode_id}', got {label.step}"
            )
        values.setdefault(Place(label.episode_id, label.step), []).append(label.label)
    return [
        StepLabel(task_id=by_id[place.episode_id].task_id, place=place, label=sum(said) / len(said))
        for place, said in values.items()
    ]


def _labelled_episode(place: Line, by_id: Mapping[str, Trajectory], name: str, session: Session) -> Trajectory:
    found = by_id.get(name)
    if found is None:
        raise StoreError(
            f"{place}: expected an episode of this run's training, got '{name}', which is in none of its stores; name "
            "episodes of the run, or remove the line"
        )
    if wrong := _why_unreadable(found, session):
        raise StoreError(
            f"{place}: expected a finished episode of a training task that the model can read, got '{name}', {wrong}; "
            "remove the line"
        )
    return found


def _why_unreadable(episode: Trajectory, session: Session) -> str:
    """Why a reward model cannot learn from an episode; empty if it can."""
    limit = min(session.recipe.limits.max_tokens_per_episode, context_limit(session.loaded.model))
    if episode.split != "train":
        return f"of the split '{episode.split}'"
    if episode.errored:
        return "which infrastructure trouble ended"
    if not episode.steps:
        return "which has no turn"
    longest = max((len(sample.ids) for sample in samples_from(episode)), default=0)
    return f"of {longest} tokens, more than {limit}" if longest > limit else ""


def _sides(one: Comparison) -> tuple[Place, ...]:
    return tuple(sorted((one.better, one.worse), key=lambda place: (place.episode_id, place.step or 0)))


# ---------------------------------------------------------------- on the disk


def data_of_version(session: Session, stage: RewardModelStage, version: int) -> Path:
    """Where the data of a version is written before it learns."""
    return session.run.reward_models(stage.title) / f"data-v{version:04d}.json"


def read_data(path: Path) -> RewardData:
    """What was written; StoreError if it cannot be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=RewardData)
    except (OSError, msgspec.DecodeError) as error:
        raise StoreError(f"{path}: cannot be read: {error}; put it back, or begin the run anew") from error


def require_items(stage: RewardModelStage, data: RewardData) -> None:
    """Raises DeedRLError with the likely reason if there is nothing to learn from."""
    if data.items:
        return
    episodes = data.episodes
    raise DeedRLError(
        f"there is nothing for '{stage.title}' to learn from: {episodes.solved} solved and {episodes.failed} failed "
        f"episodes of {episodes.read} in {', '.join(data.stores) or 'no store'}, dropped pairs {data.dropped}, "
        f"{data.labelled} labels of people, {len(data.held_out)} comparisons put aside, and what was learnt from "
        f"before is left out; play more (tasks {stage.tasks}, samples_per_task {stage.samples_per_task}), label some "
        "(deedrl label RUN), or lower held_out_share"
    )
