"""Which pairs of a run's episodes are shown to raters, in which order, on which side, and what of them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import combinations
from pathlib import Path

from deedrl.pipeline.own_recipe import load_own_recipe
from deedrl.redaction import mask_keys, strip_ansi
from deedrl.store.jsonl import TrajectoryStore
from deedrl.types import Record, Step, Trajectory

PAIRS_PER_TASK = 3


class Turn(Record, frozen=True):
    """What was said, and what came back."""

    said: str
    heard: str


class Episode(Record, frozen=True):
    """What a rater sees of an episode: neither verdict nor reward, which would be repeated and not judged."""

    episode_id: str
    task_id: str
    prompt: str
    turns: tuple[Turn, ...]
    ended: str

    @property
    def steps(self) -> int:
        return len(self.turns)


class ShownPair(Record, frozen=True):
    """Two episodes of one task, as they are laid out."""

    left: Episode
    right: Episode


def training_episodes(folder: Path) -> Iterator[Trajectory]:
    """Finished episodes of training tasks in the stores of a run's training stages, each once."""
    recipe = load_own_recipe(folder)
    seen: set[str] = set()
    for name in dict.fromkeys(store for stage in recipe.stages for store in stage.training_stores):
        path = folder / "trajectories" / f"{name}.jsonl"
        for trajectory in TrajectoryStore(path) if path.exists() else ():
            usable = trajectory.split == "train" and not trajectory.errored and trajectory.steps
            if usable and trajectory.episode_id not in seen:
                seen.add(trajectory.episode_id)
                yield trajectory


def shown_pairs(episodes: Iterable[Trajectory], *, limit: int, seed: int) -> list[ShownPair]:
    """At most `limit` pairs, up to three of a task and role, of episodes that did not say the same.

    The seed decides what is drawn, in which order and on which side: all raters get the same.
    """
    by_task: dict[tuple[str, str], dict[tuple[str, ...], Episode]] = {}
    for trajectory in episodes:
        said = tuple(step.completion.text for step in trajectory.steps)
        by_task.setdefault((trajectory.task_id, trajectory.role), {}).setdefault(said, shown(trajectory))
    pairs: list[ShownPair] = []
    for (task, _), different in sorted(by_task.items()):
        chance = random.Random(f"{seed} {task}")
        possible = list(combinations(different.values(), 2))
        for pair in chance.sample(possible, min(len(possible), PAIRS_PER_TASK)):
            left, right = chance.sample(pair, 2)
            pairs.append(ShownPair(left=left, right=right))
    random.Random(seed).shuffle(pairs)
    return pairs[:limit]


def shown(trajectory: Trajectory) -> Episode:
    """`trajectory` as raters see it; keys are hidden and control characters gone."""
    return Episode(
        episode_id=trajectory.episode_id,
        task_id=trajectory.task_id,
        prompt=_plain(trajectory.steps[0].observation if trajectory.steps else ""),
        turns=tuple(Turn(said=_plain(step.completion.text), heard=_plain(_heard(step))) for step in trajectory.steps),
        ended=trajectory.termination.value.replace("_", " "),
    )


def _heard(step: Step) -> str:
    return step.tool_output.text if step.tool_output is not None else step.action.error or ""


def _plain(text: str) -> str:
    return mask_keys(strip_ansi(text))
