"""The feedback from a stage's episodes to its tasks: what was seen of them decides what is drawn next.

What a step draws depends on the episodes of earlier steps alone, in whatever order sampling and updates are done, and a
checkpoint holds all of it; so a resumed stage draws what an uninterrupted one would have drawn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Protocol

import msgspec

from deedrl.pipeline.curriculum_settings import (
    AnyCurriculum,
    FrontierCurriculum,
    QuotaCurriculum,
    UniformCurriculum,
)
from deedrl.tasks.bands import BANDS, tasks_by_band
from deedrl.tasks.choosing import Choice, frontier_offer, quota_offer, uniform_choice
from deedrl.tasks.experience import Experience, Ledger
from deedrl.tasks.filters import Facts, facts, parse_filter, split_by
from deedrl.tasks.pool import TaskPool
from deedrl.tasks.statistics import TaskStatistics, count_outcomes
from deedrl.types import Record, Task, Trajectory


class Observer(Protocol):
    """What follows a stage's steps beside the learner, and is saved with it."""

    def saw(self, step: int, episodes: Sequence[Trajectory]) -> None:
        """All episodes that `step` (from 0) sampled."""

    def figures(self, step: int) -> dict[str, float]:
        """What to log of `step`, once it is over."""

    def state(self, step: int) -> dict[str, Any]:
        """What a checkpoint before `step` holds, as plain data."""

    def restore(self, step: int, state: Mapping[str, Any]) -> None:
        """Goes on from a checkpoint before `step`."""

    def finish(self, step: int) -> None:
        """The stage is over after `step` steps."""


class Unobserved:
    """Of stages whose draws do not depend on what was seen."""

    def saw(self, step: int, episodes: Sequence[Trajectory]) -> None:
        pass

    def figures(self, step: int) -> dict[str, float]:
        return {}

    def state(self, step: int) -> dict[str, Any]:
        return {}

    def restore(self, step: int, state: Mapping[str, Any]) -> None:
        pass

    def finish(self, step: int) -> None:
        pass


class StepReport(Record, frozen=True, kw_only=True):
    """What a step drew, and from what."""

    pool_version: str
    """Of the tasks and all that was seen of them before the step."""
    pool: dict[str, int]
    """Tasks of the pool by measured band, before the step."""
    batch: dict[str, int]
    """Tasks that were played, by that band."""
    fallback: dict[str, int]
    """Tasks that stood in, as ``wanted from found``."""
    always_solved_groups: int
    never_solved_groups: int
    """Groups whose scored episodes all ended alike, and taught nothing of completion."""

    def figures(self) -> dict[str, float]:
        """As figures of the step: shares of bands, and counts."""
        played, tasks = max(sum(self.batch.values()), 1), max(sum(self.pool.values()), 1)
        return {
            **{f"batch_{band}_share": count / played for band, count in self.batch.items()},
            **{f"pool_{band}_share": count / tasks for band, count in self.pool.items()},
            "fallback_tasks": float(sum(self.fallback.values())),
            "always_solved_groups": float(self.always_solved_groups),
            "never_solved_groups": float(self.never_solved_groups),
        }


class Curriculum:
    """Draws tasks by what was seen of them before the step; nothing here knows of models or runs."""

    def __init__(self, settings: AnyCurriculum, pool: TaskPool, seen: Mapping[str, Experience], batch: int) -> None:
        """`batch` is the tasks of a step; those that follow stand ready for groups that are replaced."""
        self.settings = settings
        self.pool = pool
        self._batch = batch
        self._where = parse_filter(settings.where) if settings.where else None
        self._ledgers = {0: Ledger(dict(seen), settings.half_life_steps)}
        self._choices: dict[int, list[Choice]] = {}
        self._outcomes: dict[int, Mapping[str, TaskStatistics]] = {}

    def draw(self, step: int, count: int, weights: Mapping[str, float], rng: Random) -> list[Task]:
        """`count` distinct tasks for `step`, fewer if the pool is smaller; `weights` are of families.

        Quotas and frontier take no weights of families.
        """
        kept, left_out = split_by(self._where, self.pool, lambda task: self._facts(task, step))
        full, rest = divmod(count, self._batch)
        sizes = [self._batch] * full + [rest] * (rest > 0)
        by_band = tasks_by_band(kept, self._ledgers[step], step, self.settings.bands)
        match self.settings:
            case UniformCurriculum():
                chosen = uniform_choice(kept, left_out, count, rng, weights)
            case QuotaCurriculum(shares=shares):
                chosen = quota_offer(by_band, left_out, shares).choose(sizes, rng)
            case FrontierCurriculum(up_to=up_to, explore_share=share):
                rates = {task.id: self._ledgers[step].of(task.id, step).success_rate or 0.0 for task in kept}
                offer = frontier_offer(by_band, rates, left_out, up_to=up_to, explore_share=share)
                chosen = offer.choose(sizes, rng)
        self._choices[step] = chosen
        return [choice.task for choice in chosen]

    def saw(self, step: int, episodes: Sequence[Trajectory]) -> None:
        """All episodes that `step` sampled; steps come in order."""
        self.counted(step, count_outcomes(episodes))

    def counted(self, step: int, outcomes: Mapping[str, TaskStatistics]) -> None:
        """As `saw`, counted already."""
        self._outcomes[step] = outcomes
        self._ledgers[step + 1] = self._ledgers[step].after(step, outcomes)

    def report(self, step: int) -> StepReport:
        """On a step that was drawn and seen; what lies before it is forgotten."""
        ledger, outcomes = self._ledgers[step], self._outcomes[step]
        bands = self.settings.bands
        pool = tasks_by_band(self.pool, ledger, step, bands)
        played = [choice for choice in self._choices[step] if choice.task.id in outcomes]
        batch = Counter(bands.band(ledger.of(choice.task.id, step)) for choice in played)
        fallback = Counter(f"{choice.wanted} from {choice.group}" for choice in played if choice.fell_back)
        scored = [seen for seen in outcomes.values() if seen.scored]
        self._forget_before(step)
        return StepReport(
            pool_version=self.version(step),
            pool={band: len(pool[band]) for band in BANDS},
            batch={band: batch[band] for band in BANDS},
            fallback=dict(fallback),
            always_solved_groups=sum(seen.solved == seen.scored for seen in scored),
            never_solved_groups=sum(seen.solved == 0 for seen in scored),
        )

    def version(self, step: int) -> str:
        """Of the pool and what was seen of it before `step`."""
        return self._ledgers[step].version(self.pool)

    def seen_at(self, step: int) -> dict[str, Experience]:
        """What was seen before `step` of every task that was tried, as of then."""
        ledger = self._ledgers[step]
        return {task_id: ledger.of(task_id, step) for task_id in ledger.entries}

    def state(self, step: int) -> dict[str, Any]:
        """What was seen before `step`, as plain data; `restore` takes it back exactly."""
        return {"task_experience": msgspec.to_builtins(dict(self._ledgers[step].entries))}

    def restore(self, step: int, state: Mapping[str, Any]) -> None:
        """Goes on at `step` from what `state` returned."""
        seen = msgspec.convert(state["task_experience"], dict[str, Experience])
        self._ledgers = {step: Ledger(seen, self.settings.half_life_steps)}

    def _facts(self, task: Task, step: int) -> Facts:
        experience = self._ledgers[step].of(task.id, step)
        return facts(task, experience, self.settings.bands.band(experience))

    def _forget_before(self, step: int) -> None:
        for kept in (self._ledgers, self._choices, self._outcomes):
            for old in [number for number in kept if number < step]:
                del kept[old]
