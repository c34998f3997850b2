"""The pairs that stages learn from: stored episodes read, pairs built and cleaned, and a report of all of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import msgspec

from deedrl.environments.noise import Noise
from deedrl.errors import DeedRLError, StoreError
from deedrl.pipeline.dpo_settings import Dpo
from deedrl.pipeline.hand_check import hand_check_text
from deedrl.pipeline.job import task_system_prompt
from deedrl.pipeline.online import shuffled_tasks
from deedrl.pipeline.pair_settings import PairSettings
from deedrl.pipeline.rendering import rendered_sample
from deedrl.pipeline.replay_check import check_replays
from deedrl.pipeline.run import replace_text
from deedrl.pipeline.session import Session
from deedrl.policies.local.attention import context_limit
from deedrl.seeding import stream
from deedrl.training.preference_cleaning import Cleaned, LengthReport, clean, length_report, split_by_task
from deedrl.training.preferences import Candidate, CandidateCounts, PreferencePair, candidates, pairs_from
from deedrl.training.samples import TrainingSample, samples_from
from deedrl.types import Record, Trajectory

REPORT, HAND_CHECK = "preferences.json", "hand-check.md"
"""Files in the run's folder ``preferences/<stage>``."""


REPLAY_CANDIDATES = 64
"""Episodes from which those to be replayed are chosen."""


class PreferenceReport(Record, frozen=True):
    """What became of a run's episodes on the way to pairs, and the pairs."""

    stores: dict[str, int]
    """Episodes by the store they were read from."""
    episodes: CandidateCounts
    built: dict[str, int]
    """Pairs by kind, before cleaning."""
    dropped: dict[str, int]
    """Pairs by the step of cleaning that dropped them, in the order of the steps."""
    kept: dict[str, int]
    """Pairs by kind, after cleaning."""
    built_lengths: LengthReport
    kept_lengths: LengthReport
    pairs: tuple[PreferencePair, ...]
    """That are learnt from."""
    held_out: tuple[PreferencePair, ...]
    """That are measured only, all pairs of their tasks."""

    @property
    def tasks(self) -> int:
        return len({pair.task_id for pair in self.pairs})


@dataclass(frozen=True)
class PreferenceData:
    """Pairs, and the samples of every episode they name, by its id."""

    report: PreferenceReport
    episodes: dict[str, tuple[TrainingSample, ...]]


def preference_data(session: Session, stage: Dpo, *, begun: bool) -> PreferenceData:
    """The stage's pairs: those its report holds if it has `begun` to learn from them, so that what was stored since
    changes nothing; else built from what is stored, after `stage.tasks` were played.

    Raises DeedRLError if there are none; the report is written before.
    """
    path = session.run.preferences(stage.title) / REPORT
    found: Sequence[Candidate] | None = None
    if begun and path.exists():
        report = _read(path)
    else:
        play(session, stage)
        found, report = build(session, stage)
        session.run.write_json(str(path.relative_to(session.run.folder)), report)
    if not report.pairs:
        raise DeedRLError(f"there are no pairs to learn from: {_why_none(stage, report)} (counts in {path})")
    wanted = {name for pair in (*report.pairs, *report.held_out) for name in (pair.chosen, pair.rejected)}
    if found is None:
        found, _ = stored_candidates(session, stage, wanted)
    else:
        if session.run.writes:
            _write_hand_check(session, stage, report, path.with_name(HAND_CHECK))
        _say(session, stage, report)
    episodes = {episode.episode_id: episode.samples for episode in found if episode.episode_id in wanted}
    if missing := wanted - episodes.keys():
        raise StoreError(
            f"{session.run.trajectories}: expected the {len(wanted)} episodes of the pairs in {path}, "
            f"{len(missing)} are missing (e.g. {min(missing)}); put the stores back as they were"
        )
    return PreferenceData(report=report, episodes=episodes)


def play(session: Session, stage: PairSettings) -> list[Trajectory]:
    """`samples_per_task` episodes of `stage.tasks` training tasks with the current policy, into the stage's store."""
    if not stage.tasks:
        return []
    tasks = shuffled_tasks(session, stage.title, session.tasks("train"), -1, stage.tasks)
    sampling = session.sampling(stage.temperature)
    specs = [
        session.spec(task, f"{stage.title}-sample-{task.id}-{number}", stage=stage.title, sampling=sampling)
        for task in tasks
        for number in range(stage.samples_per_task)
    ]
    with session.context.progress.bar(f"{stage.title}: sampling", total=len(specs), unit="episode") as bar:
        return session.play(specs, store=stage.title, policy=session.policy(), bar=bar)


def build(session: Session, stage: PairSettings) -> tuple[list[Candidate], PreferenceReport]:
    """Episodes that pairs may be made of, and the report with the cleaned pairs."""
    found, read = stored_candidates(session, stage)
    built, cleaned = cleaned_pairs(session, stage, found)
    pairs, held_out = split_by_task(cleaned.pairs, stage.held_out_share, session.context.seed(stage.title, "pairs"))
    return found, PreferenceReport(
        stores=dict(read.stores),
        episodes=read.counts,
        built=_by_kind(stage, built),
        dropped=cleaned.dropped,
        kept=_by_kind(stage, cleaned.pairs),
        built_lengths=length_report(built),
        kept_lengths=length_report(cleaned.pairs),
        pairs=tuple(pairs),
        held_out=tuple(held_out),
    )


def cleaned_pairs(
    session: Session, stage: PairSettings, found: Sequence[Candidate]
) -> tuple[list[PreferencePair], Cleaned]:
    """The pairs of the stage's kinds, before and after cleaning."""
    built = pairs_from(found, stage.kinds, stage.wasteful_ratio)
    cleaned = clean(
        built,
        {episode.episode_id: episode for episode in found},
        min_margin=stage.min_margin,
        pairs_per_task=stage.pairs_per_task,
        length_band=stage.length_band,
        seed=session.context.seed(stage.title, "pairs"),
    )
    return built, cleaned


# ---------------------------------------------------------------- stored episodes


@dataclass(frozen=True)
class Read:
    """What was read: episodes by store, and what became of them."""

    stores: Counter[str]
    counts: CandidateCounts


def stored_candidates(
    session: Session, stage: PairSettings, wanted: Collection[str] | None = None
) -> tuple[list[Candidate], Read]:
    """Of the stage's stores, or of the episodes `wanted` in them alone."""
    stores: Counter[str] = Counter()
    found, counts = candidates(
        stored_episodes(session, stage, stores, wanted),
        samples_under_own_prompt(session),
        sources=stage.sources,
        # Beyond its context a model computes something, and nothing that it was made for.
        max_tokens=min(session.recipe.limits.max_tokens_per_episode, context_limit(session.loaded.model)),
    )
    return found, Read(stores, counts)


def stored_episodes(
    session: Session, stage: PairSettings, read: Counter[str], wanted: Collection[str] | None = None
) -> Iterator[Trajectory]:
    """Episodes of the stage's stores, one at a time, counted in `read`."""
    every = dict.fromkeys(store for other in session.recipe.stages for store in other.training_stores)
    for name in stage.stores or every:
        for trajectory in session.store(name):
            read[name] += 1
            if wanted is None or trajectory.episode_id in wanted:
                yield trajectory


def check_learnt(session: Session, stage: PairSettings, names: Collection[str]) -> None:
    """Replays a sample of the stored episodes called `names`, which the stage is about to learn from."""
    if stage.title in session.replay_checked:
        return
    some = stream(session.recipe.seed, stage.title, "replay-candidates").sample(
        sorted(names), min(len(names), REPLAY_CANDIDATES)
    )
    check_replays(session, stage.title, stored_episodes(session, stage, Counter(), set(some)))


def samples_under_own_prompt(session: Session) -> Callable[[Trajectory], list[TrainingSample]]:
    """From an episode to its samples under the recipe's own prompt: as recorded if it was played under that.

    Else, as in `sft`, it is rendered: demonstrations have no tokens, and what was done with hints and shuffled tools is
    learnt for the prompt that is used from now on.
    """
    environment = session.environment_class
    by_id = {task.id: task for task in session.tasks("train")}

    def samples_of(trajectory: Trajectory) -> list[TrainingSample]:
        as_recorded = samples_from(trajectory)
        if as_recorded and trajectory.provenance.prompt_variant == session.prompt.recorded_name:
            return as_recorded
        if trajectory.task_id not in by_id or not trajectory.steps:
            return []
        noise = Noise.from_levels(trajectory.provenance.noise)
        system = task_system_prompt(environment, by_id[trajectory.task_id], session.prompt, noise)
        return [rendered_sample(session.loaded.renderer, trajectory, system)]

    return samples_of


# ---------------------------------------------------------------- the report, in files and words


def _read(path: Path) -> PreferenceReport:
    try:
        return msgspec.json.decode(path.read_bytes(), type=PreferenceReport)
    except (OSError, msgspec.DecodeError) as error:
        raise StoreError(
            f"{path}: cannot be read: {error}; the stage has begun to learn from the pairs in it: put it back, or "
            "remove the stage's folder of checkpoints to begin it again"
        ) from error


def _write_hand_check(session: Session, stage: Dpo, report: PreferenceReport, path: Path) -> None:
    if not stage.hand_check:
        return
    count = min(stage.hand_check, len(report.pairs))
    drawn = Random(session.context.seed(stage.title, "hand_check")).sample(report.pairs, count)
    wanted = {name for pair in drawn for name in (pair.chosen, pair.rejected)}
    shown = {t.episode_id: t for t in stored_episodes(session, stage, Counter(), wanted)}
    replace_text(path, hand_check_text(drawn, shown))


def _by_kind(stage: PairSettings, pairs: Sequence[PreferencePair]) -> dict[str, int]:
    counts = Counter(pair.kind for pair in pairs)
    return {kind: counts[kind] for kind in stage.kinds}


def _say(session: Session, stage: PairSettings, report: PreferenceReport) -> None:
    lengths = report.kept_lengths
    share = "no pair differs in length" if lengths.share_longer is None else f"longer in {lengths.share_longer:.0%}"
    correlation = "" if lengths.correlation is None else f", r = {lengths.correlation:.2f}"
    session.context.progress.say(
        f"{stage.title}: {len(report.pairs)} pairs of {report.tasks} tasks to learn from, {len(report.held_out)} held "
        f"out, of {report.episodes.usable} episodes; dropped: {_counts(report.dropped)}; chosen sides: {share}"
        f"{correlation}"
    )


def _why_none(stage: PairSettings, report: PreferenceReport) -> str:
    episodes, built = report.episodes, sum(report.built.values())
    if not built:
        return (
            f"{episodes.solved} solved and {episodes.failed} failed episodes, of {episodes.read} in "
            f"{', '.join(report.stores) or 'no store'}, have no two of one task and prompt to prefer one of; raise "
            f"tasks ({stage.tasks}) and samples_per_task to play more, or add guided to sources "
            f"({episodes.other_source} are of other sources)"
        )
    return (
        f"of {built} pairs none is left (dropped: {_counts(report.dropped)}); lower min_margin ({stage.min_margin:g}), "
        f"widen length_band, or raise tasks ({stage.tasks}) and samples_per_task to play more"
    )


def _counts(dropped: dict[str, int]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in dropped.items() if count) or "none"
