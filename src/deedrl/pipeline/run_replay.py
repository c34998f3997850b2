"""Replay of a run's stored episodes: streamed from the stores, in several processes if asked, and counted."""

from __future__ import annotations

import multiprocessing
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Literal, get_args

import msgspec

from deedrl.environments.loading import load_environment
from deedrl.errors import ConfigError, DeedRLError, StoreError, suggest
from deedrl.pipeline.context import Progress
from deedrl.pipeline.job import environment_maker, recipe_limits, recipe_rubric, split_sizes, task_pool
from deedrl.pipeline.own_recipe import load_own_recipe
from deedrl.pipeline.recipe import Recipe
from deedrl.pipeline.stage_settings import NEGATIVES, POSITIVES
from deedrl.rollouts.replay import allowed_unreplayable, declared_unreplayable, replay_actions
from deedrl.rollouts.replay_report import Outcome, ReplayDifference, ReplayReport
from deedrl.rollouts.reproduce import replay_completions, replay_frozen
from deedrl.store.jsonl import TrajectoryStore
from deedrl.types import Completion, Record, Split, Task, Trajectory

Mode = Literal["env", "frozen", "policy"]
BATCH = 16
"""Episodes that a process is handed at a time."""
BATCHES_AHEAD = 3
"""Of a process: what is read and not yet replayed is bounded."""
KEPT_DIFFERENCES = 100
COPIES = (POSITIVES, NEGATIVES)
"""Stores whose episodes lie in others too."""


class ReplayCounts(Record, frozen=True):
    """Of one store."""

    episodes: int = 0
    steps: int = 0
    """Compared."""
    outcomes: dict[Outcome, int] = {}


class RunReplay(Record, frozen=True):
    """What the replay of a run's episodes found."""

    mode: Mode
    stores: dict[str, ReplayCounts]
    reasons: dict[str, int]
    """Why episodes were not compared, or not to their end."""
    differences: tuple[ReplayReport, ...]
    """The first 100."""

    @property
    def total(self) -> ReplayCounts:
        outcomes: Counter[Outcome] = Counter()
        for counts in self.stores.values():
            outcomes.update(counts.outcomes)
        episodes, steps = (
            sum(getattr(counts, name) for counts in self.stores.values()) for name in ("episodes", "steps")
        )
        return ReplayCounts(episodes=episodes, steps=steps, outcomes=dict(outcomes))

    @property
    def different(self) -> int:
        return self.total.outcomes.get("different", 0)


# ---------------------------------------------------------------- one process


class Replayer:
    """Replays stored episodes of one run, whose tasks are made again from its recipe."""

    def __init__(self, recipe: Recipe, mode: Mode) -> None:
        self._recipe = recipe
        self._mode = mode
        self._class = load_environment(recipe.environment.ref)
        self._environment = environment_maker(recipe, self._class)
        self._limits = recipe_limits(recipe)
        # What a reward model said would have to be computed by the model again.
        self._rubric = None if recipe.learned_terms else recipe_rubric(recipe, self._class)
        self._pools: dict[Split, dict[str, Task]] = {}

    def task_of(self, trajectory: Trajectory) -> Task | None:
        """None if the recipe's tasks, made again, do not have it."""
        split = trajectory.split
        if split not in self._pools:
            count = split_sizes(self._recipe).get(split)
            pool = () if count is None else task_pool(self._recipe, self._class, split, count)
            self._pools[split] = {task.id: task for task in pool}
        return self._pools[split].get(trajectory.task_id)

    def replay(self, trajectories: Sequence[Trajectory]) -> list[ReplayReport]:
        """One report for each, in order."""
        tasks = {t.task_id: task for t in trajectories if (task := self.task_of(t)) is not None}
        known = [t for t in trajectories if t.task_id in tasks]
        reports = {report.episode_id: report for report in self._replayed(known, tasks)}
        return [reports.get(t.episode_id) or _without_task(t) for t in trajectories]

    def _replayed(self, known: Sequence[Trajectory], tasks: dict[str, Task]) -> list[ReplayReport]:
        allowed = self._recipe.environment.allow_unreplayable
        match self._mode:
            case "env":
                return [replay_actions(t, tasks[t.task_id], self._environment, unreplayable=allowed) for t in known]
            case "policy":
                limits, rubric = self._limits, self._rubric
                reasons = allowed_unreplayable(allowed)
                for task in tasks.values():
                    reasons |= declared_unreplayable(self._class.played_by(task).tools.values())
                return replay_completions(
                    known, tasks, self._environment, limits=limits, rubric=rubric, unreplayable=reasons
                )
            case "frozen":
                return replay_frozen(known, tasks, self._class, limits=self._limits, rubric=self._rubric)


def _without_task(trajectory: Trajectory) -> ReplayReport:
    """Tasks are named by their content, so one that is missing is one that the environment now makes otherwise."""
    found = f"not among the tasks that the recipe gives for the split '{trajectory.split}'"
    return ReplayReport(
        episode_id=trajectory.episode_id,
        compared_steps=0,
        difference=ReplayDifference(step=0, what="task", recorded=trajectory.task_id, replayed=found),
        recorded_versions=trajectory.provenance.tool_versions,
        replayed_versions=trajectory.provenance.tool_versions,
    )


# ---------------------------------------------------------------- the whole run


class StoredEpisodes:
    """Episodes in a run folder: of the stage or store called `stage`, or all but copies; the one called `episode`."""

    def __init__(self, folder: Path, recipe: Recipe, stage: str | None = None, episode: str | None = None) -> None:
        stores = {path.stem: path for path in sorted((folder / "trajectories").glob("*.jsonl"))}
        if not stores:
            raise StoreError(f"{folder / 'trajectories'}: expected stored episodes (*.jsonl), found none")
        titles = [other.title for other in recipe.stages]
        if stage is not None and stage not in titles and stage not in stores:
            known = [*titles, *stores]
            raise ConfigError(f"the run has neither a stage nor a store '{stage}'{suggest(stage, known)}")
        if stage is None or stage in titles:
            self.stores = {name: path for name, path in stores.items() if name not in COPIES}
        else:
            self.stores = {stage: stores[stage]}
        self._stage = stage if stage in titles else None
        self._episode = episode

    def __iter__(self) -> Iterator[tuple[str, Trajectory]]:
        """Each with the name of its store, one at a time."""
        for name, path in self.stores.items():
            for trajectory in TrajectoryStore(path):
                of_stage = self._stage in (None, trajectory.provenance.stage)
                if of_stage and self._episode in (None, trajectory.episode_id):
                    yield name, trajectory

    def lines(self) -> int:
        """An upper bound of their number, quickly counted."""
        return sum(_newlines(path) for path in self.stores.values())


def _newlines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))


def replay_run(
    folder: Path,
    mode: Mode,
    progress: Progress,
    *,
    stage: str | None = None,
    episode: str | None = None,
    limit: int | None = None,
    jobs: int = 1,
) -> RunReplay:
    """Replays stored episodes of the run in `folder`, at most `limit`, in `jobs` processes.

    Memory is bounded: episodes are read as they are replayed. Raises `ConfigError` or `StoreError` if there is nothing
    to replay.
    """
    episodes = StoredEpisodes(folder, load_own_recipe(folder), stage, episode)
    total = episodes.lines() if limit is None else min(limit, episodes.lines())
    tally = _Tally(mode)
    with progress.bar(f"replay ({mode})", total=1 if episode else total, unit="episode") as bar:
        for store, reports in _replayed(folder, mode, _batches(islice(episodes, limit)), jobs):
            for report in reports:
                tally.add(store, report)
            bar.advance(len(reports), different=tally.different)
    if not tally.counts:
        wanted = f"episode '{episode}'" if episode else f"episodes of '{stage}'" if stage else "episodes"
        raise StoreError(f"{folder / 'trajectories'}: expected {wanted}, found none among {episodes.lines()} lines")
    return tally.result()


Batch = tuple[str, list[Trajectory]]
Reports = tuple[str, list[ReplayReport]]


def _batches(episodes: Iterable[tuple[str, Trajectory]]) -> Iterator[Batch]:
    """Episodes of one store that follow each other."""
    store, held = "", list[Trajectory]()
    for name, trajectory in episodes:
        if held and (name != store or len(held) == BATCH):
            yield store, held
            held = []
        store = name
        held.append(trajectory)
    if held:
        yield store, held


def _replayed(folder: Path, mode: Mode, batches: Iterable[Batch], jobs: int) -> Iterator[Reports]:
    if jobs == 1:
        for store, trajectories in batches:
            yield store, _replay_batch(folder, mode, trajectories)
        return
    waiting: deque[tuple[str, Future[list[ReplayReport]]]] = deque()
    # A fresh interpreter each: a fork would share the threads of the progress bar.
    pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
    try:
        for store, trajectories in batches:
            waiting.append((store, pool.submit(_replay_batch, folder, mode, [_lean(t, mode) for t in trajectories])))
            if len(waiting) >= jobs * BATCHES_AHEAD:
                name, future = waiting.popleft()
                yield name, future.result()
        for name, future in waiting:
            yield name, future.result()
    except BrokenProcessPool as error:
        raise DeedRLError(
            "a process that replayed episodes ended by itself: a tool may have ended it, or memory ran out; run again "
            "with --jobs 1, or with environment.isolation: process in the recipe"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _replay_batch(folder: Path, mode: Mode, trajectories: list[Trajectory]) -> list[ReplayReport]:
    return _replayer(folder, mode).replay(trajectories)


@cache
def _replayer(folder: Path, mode: Mode) -> Replayer:
    """One a process: it keeps the tasks."""
    return Replayer(load_own_recipe(folder), mode)


def _lean(trajectory: Trajectory, mode: Mode) -> Trajectory:
    """What another process needs of it: recorded actions are replayed without tokens."""
    if mode != "env":
        return trajectory
    steps = tuple(
        msgspec.structs.replace(step, completion=Completion(text=step.completion.text)) for step in trajectory.steps
    )
    return msgspec.structs.replace(trajectory, steps=steps)


class _Tally:
    """Counts while reports come in."""

    def __init__(self, mode: Mode) -> None:
        self.counts: dict[str, Counter[str]] = {}
        self.different = 0
        self._mode = mode
        self._reasons: Counter[str] = Counter()
        self._differences: list[ReplayReport] = []

    def add(self, store: str, report: ReplayReport) -> None:
        counts = self.counts.setdefault(store, Counter())
        counts.update({"episodes": 1, "steps": report.compared_steps, report.outcome: 1})
        if report.stopped is not None:
            # After a colon comes what one call said; there may be as many as episodes.
            self._reasons[report.stopped.partition(": ")[0]] += 1
        if report.difference is not None:
            self.different += 1
            if len(self._differences) < KEPT_DIFFERENCES:
                self._differences.append(report)

    def result(self) -> RunReplay:
        stores = {
            store: ReplayCounts(
                episodes=counts["episodes"],
                steps=counts["steps"],
                outcomes={outcome: counts[outcome] for outcome in get_args(Outcome) if counts[outcome]},
            )
            for store, counts in self.counts.items()
        }
        reasons = dict(self._reasons.most_common())
        return RunReplay(mode=self._mode, stores=stores, reasons=reasons, differences=tuple(self._differences))
