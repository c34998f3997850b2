"""The stage `profile`: play every training task several times and say how often the policy solves it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from deedrl.pipeline.online import shuffled_tasks
from deedrl.pipeline.profile_settings import Profile
from deedrl.pipeline.session import Session
from deedrl.pipeline.stage_curriculum import SeenTasks, seen_file
from deedrl.tasks.bands import BANDS, BandName, Bands
from deedrl.tasks.experience import Experience, Ledger
from deedrl.tasks.statistics import count_outcomes
from deedrl.types import Record, Task, Trajectory


class ProfiledTask(Record, frozen=True, kw_only=True):
    """What was measured of one task."""

    id: str
    family: str
    difficulty: str
    """As labelled by its author."""
    band: BandName
    """As measured."""
    attempts: int
    unscored: int
    solved: int
    success_rate: float | None
    low: float | None
    high: float | None
    """95 % interval of the rate (Wilson)."""


class ProfileReport(Record, frozen=True, kw_only=True):
    """What a profile found; plain JSON."""

    policy_version: str
    pool_version: str
    attempts: int
    """Asked for of each task."""
    temperature: float
    bands: dict[str, int]
    """Tasks by measured band."""
    by_difficulty: dict[str, dict[str, int]]
    """Labelled difficulty → measured band → tasks."""
    by_family: dict[str, dict[str, int]]
    tasks: tuple[ProfiledTask, ...]


def profile_stage(session: Session, stage: Profile) -> dict[str, object]:
    """Writes ``profile-<stage>.json`` and what curricula start from; returns counts by band."""
    tasks = session.tasks("train")
    if stage.tasks is not None:
        tasks = shuffled_tasks(session, stage.title, tasks, -1, stage.tasks)
    ledger = Ledger().after(0, count_outcomes(_episodes(session, stage, tasks)))
    version = ledger.version(session.pools["train"])
    seen = SeenTasks(policy_version=session.policy_version, pool_version=version, tasks=dict(ledger.entries))
    session.run.write_json(seen_file(stage.title), seen)
    report = profile_report(tasks, seen, stage, session.sampling(stage.temperature).temperature)
    session.run.write_json(f"profile-{stage.title}.json", report)
    for line in profile_text(report):
        session.context.progress.say(f"{stage.title}: {line}")
    return {"pool_version": version, "tasks": len(tasks), "bands": report.bands, "by_difficulty": report.by_difficulty}


def _episodes(session: Session, stage: Profile, tasks: Sequence[Task]) -> list[Trajectory]:
    sampling = session.sampling(stage.temperature)
    specs = [
        session.spec(
            task, f"{stage.title}-{task.id}-{attempt}", stage=stage.title, sampling=sampling, noise=stage.noise
        )
        for task in tasks
        for attempt in range(stage.attempts)
    ]
    with session.context.progress.bar(stage.title, total=len(specs), unit="episode") as bar:
        return session.play(specs, store=stage.title, policy=session.policy(), bar=bar)


def profile_report(tasks: Sequence[Task], seen: SeenTasks, stage: Profile, temperature: float) -> ProfileReport:
    """What was `seen` of `tasks`, under the stage's bands."""
    rows = tuple(_row(task, seen.tasks.get(task.id, Experience()), stage.bands) for task in tasks)
    return ProfileReport(
        policy_version=seen.policy_version,
        pool_version=seen.pool_version,
        attempts=stage.attempts,
        temperature=temperature,
        bands=_counts(rows),
        by_difficulty={label: _counts(group) for label, group in _grouped(rows, "difficulty").items()},
        by_family={label: _counts(group) for label, group in _grouped(rows, "family").items()},
        tasks=rows,
    )


def profile_text(report: ProfileReport) -> Iterator[str]:
    """The counts in words: of all tasks, then by labelled difficulty where there is more than one label."""
    yield f"{len(report.tasks)} tasks under {report.policy_version}: {_words(report.bands)}"
    if len(report.by_difficulty) > 1:
        for label, bands in report.by_difficulty.items():
            yield f"labelled {label}: {_words(bands)}"


def _row(task: Task, experience: Experience, bands: Bands) -> ProfiledTask:
    low, high = experience.interval or (None, None)
    return ProfiledTask(
        id=task.id,
        family=task.family,
        difficulty=task.difficulty,
        band=bands.band(experience),
        attempts=experience.attempts,
        unscored=experience.unscored,
        solved=round(experience.solved),
        success_rate=experience.success_rate,
        low=low,
        high=high,
    )


def _counts(rows: Iterable[ProfiledTask]) -> dict[str, int]:
    counts = Counter(row.band for row in rows)
    return {band: counts[band] for band in BANDS}


def _grouped(rows: Iterable[ProfiledTask], label: str) -> dict[str, list[ProfiledTask]]:
    groups: dict[str, list[ProfiledTask]] = {}
    for row in rows:
        groups.setdefault(getattr(row, label), []).append(row)
    return groups


def _words(bands: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {band.replace('_', ' ')}" for band, count in bands.items() if count)
