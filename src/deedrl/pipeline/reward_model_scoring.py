"""Scores of stored episodes by a saved reward model, and how far they agree with labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import msgspec

from deedrl.config import to_plain
from deedrl.errors import DeedRLError
from deedrl.pipeline.context import Progress, StageContext
from deedrl.pipeline.learned_terms import term_values
from deedrl.pipeline.own_recipe import load_own_recipe
from deedrl.pipeline.preference_data import samples_under_own_prompt, stored_episodes
from deedrl.pipeline.recipe import select_stages
from deedrl.pipeline.reward_model_data import labelled_comparisons, labelled_turns, named_episodes, tokens_of
from deedrl.pipeline.reward_model_folder import SavedRewardModel, placed_for
from deedrl.pipeline.reward_model_settings import RewardModelStage
from deedrl.pipeline.run import Run
from deedrl.pipeline.session import Session
from deedrl.policies.local.attention import context_limit
from deedrl.tracking.tracker import open_tracker
from deedrl.training import processes
from deedrl.training.rank_agreement import Comparison, Place, RankAgreement, rank_agreement
from deedrl.training.reward_labels import compared_turns
from deedrl.training.reward_model import Reading, RewardModel, readings, turn_places
from deedrl.types import Record, Trajectory

SCORED_TOGETHER = 256
"""Episodes whose tokens are held at one time."""


class ScoredEpisode(Record, frozen=True):
    """What a reward model says of one episode."""

    episode_id: str
    task_id: str
    solved: bool | None
    """By the verifier; None where it never judged."""
    score: float
    """Raw, at the last turn."""
    value: float
    """Of the term in a rubric, in [0, 1]."""
    turns: tuple[float, ...] = ()
    """Raw score of each turn, of a process model."""


@contextmanager
def session_of(folder: Path, progress: Progress) -> Iterator[Session]:
    """A session in the run of `folder`, by its own recipe."""
    recipe = load_own_recipe(folder)
    with Run.open(folder, recipe) as run:
        sinks = ["jsonl"] if run.writes else []
        with open_tracker(sinks, folder, config=to_plain(recipe)) as tracker:
            yield Session(StageContext(recipe=recipe, run=run, tracker=tracker, progress=progress))


def reward_model_of(session: Session, name: str | None) -> RewardModelStage:
    """The recipe's `reward_model` stage called `name`; None: the only one. ConfigError if there is no such."""
    [title, *others] = select_stages(session.recipe, (RewardModelStage.kind,), name)
    if others:
        raise DeedRLError(f"the recipe has several reward models, {', '.join([title, *others])}; name one with --stage")
    return next(s for s in session.recipe.stages if isinstance(s, RewardModelStage) and s.title == title)


def scored_episodes(
    session: Session, stage: RewardModelStage, saved: SavedRewardModel, stores: Sequence[str]
) -> Iterator[ScoredEpisode]:
    """Every finished episode of `stores` (none: those the stage learns from) that the model can read, once."""
    chosen = msgspec.structs.replace(stage, stores=tuple(stores) or stage.stores)
    sampler, limit = samples_under_own_prompt(session), context_limit(session.loaded.model)
    seen: set[str] = set()

    def readable() -> Iterator[tuple[Trajectory, tuple[Reading, ...]]]:
        for trajectory in stored_episodes(session, chosen, Counter()):
            if trajectory.errored or trajectory.episode_id in seen:
                continue
            seen.add(trajectory.episode_id)
            read = readings(sampler(trajectory))
            if read and max(len(one.ids) for one in read) <= limit:
                yield trajectory, read

    with placed_for(session.loaded, f"{stage.title} scoring", stage.micro_batch_tokens, saved) as placed:
        waiting = readable()
        while together := list(islice(waiting, SCORED_TOGETHER)):
            yield from _scored(placed.model, saved, together)


def _scored(
    model: RewardModel, saved: SavedRewardModel, together: Sequence[tuple[Trajectory, tuple[Reading, ...]]]
) -> Iterator[ScoredEpisode]:
    episodes = {trajectory.episode_id: read for trajectory, read in together}
    values = term_values(model, saved, episodes)
    ends = model.scores(episodes, [Place(name) for name in episodes])
    process = saved.info.reads == "process"
    turns = {name: turn_places(name, read) if process else [] for name, read in episodes.items()}
    by_turn = model.scores(episodes, [turn for of_episode in turns.values() for turn in of_episode])
    for trajectory, _ in together:
        name = trajectory.episode_id
        yield ScoredEpisode(
            episode_id=name,
            task_id=trajectory.task_id,
            solved=trajectory.solved,
            score=ends[Place(name)],
            value=values[name],
            turns=tuple(by_turn[turn] for turn in turns[name]),
        )


def agreement_with(
    session: Session, stage: RewardModelStage, saved: SavedRewardModel, files: Sequence[Path]
) -> RankAgreement:
    """Of the model with the labels in `files`."""
    comparisons = processes.from_first(lambda: _labelled(session, stage, saved, files))
    episodes = tokens_of(session, stage, named_episodes(comparisons))
    places = list(dict.fromkeys(place for one in comparisons for place in (one.better, one.worse)))
    with placed_for(session.loaded, f"{stage.title} scoring", stage.micro_batch_tokens, saved) as placed:
        return rank_agreement(comparisons, placed.model.scores(episodes, places))


def _labelled(
    session: Session, stage: RewardModelStage, saved: SavedRewardModel, files: Sequence[Path]
) -> list[Comparison]:
    """What people said, of pairs or of turns, as the model reads."""
    if saved.info.reads == "outcome":
        return labelled_comparisons(session, stage, files)
    return compared_turns(labelled_turns(session, stage, files), session.context.seed(stage.title, "labels"))
