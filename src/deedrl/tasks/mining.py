"""Finds the training tasks a policy solves sometimes, and groups them by what goes wrong.

Such tasks teach most: one that always succeeds or always fails gives a group of siblings nothing to compare.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from deedrl.errors import ConfigError, TaskError
from deedrl.tasks.failures import FailureSignature, failure_signature, similarity
from deedrl.tasks.outcomes import completed
from deedrl.types import Record, Task, Trajectory


class Band(Record, frozen=True):
    """Success rates that make a task worth training again: above `above`, up to and including `up_to`."""

    above: float = 0.0
    up_to: float = 0.5
    include_unsolved: bool = False
    """Takes never-solved tasks too; plain group-relative training learns nothing from them."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.above < self.up_to <= 1.0:
            raise ConfigError(
                f"a mining band needs 0 <= above < up_to <= 1, got above={self.above}, up_to={self.up_to}"
            )

    def holds(self, successes: int, attempts: int) -> bool:
        if successes == 0:
            return self.include_unsolved
        return self.above < successes / attempts <= self.up_to


class MinedTask(Record, frozen=True):
    """One mined task with what was seen of it."""

    task: Task
    attempts: int
    """Judged episodes; errored ones are no attempts."""
    successes: int
    failure: FailureSignature
    """The commonest way it failed."""


class FailureCluster(Record, frozen=True):
    """Mined tasks that mostly fail alike."""

    label: str
    """The commonest signature in words."""
    signature: FailureSignature
    task_ids: tuple[str, ...]
    failures: int
    """Failed episodes of these tasks."""


class MinedPool(Record, frozen=True):
    """Mined tasks by id, clusters by size, and how many tasks were left out and why; plain JSON."""

    version: str
    """16 hex digits of SHA-256 over everything else: equal versions, equal pools."""
    tasks: tuple[MinedTask, ...]
    clusters: tuple[FailureCluster, ...]
    band: Band
    too_easy: int
    """Tasks solved too often for the band."""
    too_hard: int
    """Tasks solved too rarely for the band, never-solved ones included."""
    too_few_attempts: int
    unmatched_episodes: int
    """Episodes of tasks that were not given."""


def mine(
    tasks: Sequence[Task],
    trajectories: Sequence[Trajectory],
    *,
    band: Band | None = None,
    least_attempts: int = 2,
    merge_above: float = 0.6,
) -> MinedPool:
    """Picks the `tasks` whose success rate over `trajectories` lies in `band` and clusters them by failure.

    `trajectories` holds several attempts of each task, in any order; the result does not depend on orders. Tasks with
    fewer than `least_attempts` judged attempts are left out. Signatures at least `merge_above` alike (Jaccard, 0 to 1)
    share a cluster. Raises `TaskError` for a task outside the training split: mining held-out tasks would train on
    them.
    """
    band = band or Band()
    known = _training_tasks(tasks)
    runs: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        runs[trajectory.task_id].append(trajectory)
    left_out: Counter[str] = Counter()
    mined: list[MinedTask] = []
    for task_id in sorted(known):
        judged = [run for run in runs[task_id] if completed(run) is not None]
        successes = sum(completed(run) is True for run in judged)
        if len(judged) < least_attempts:
            left_out["too_few_attempts"] += 1
        elif successes == len(judged) or successes / len(judged) > band.up_to:
            left_out["too_easy"] += 1
        elif not band.holds(successes, len(judged)):
            left_out["too_hard"] += 1
        else:
            mined.append(
                MinedTask(
                    task=known[task_id],
                    attempts=len(judged),
                    successes=successes,
                    failure=_commonest_failure(judged),
                )
            )
    return _versioned(
        MinedPool(
            version="",
            tasks=tuple(mined),
            clusters=_clusters(mined, merge_above),
            band=band,
            too_easy=left_out["too_easy"],
            too_hard=left_out["too_hard"],
            too_few_attempts=left_out["too_few_attempts"],
            unmatched_episodes=sum(len(group) for task_id, group in runs.items() if task_id not in known),
        )
    )


def training_mix(
    mined: MinedPool, base: Sequence[Task], share: float, rng: random.Random, count: int | None = None
) -> list[Task]:
    """`count` tasks (default: as many as `base`), of which `share` are mined and the rest drawn from `base`.

    Mined tasks are taken from the clusters in turn, so that a common failure does not drown a rare one, and repeat when
    there are fewer than needed; so does `base`. With nothing mined, all are from `base`. Shuffled by `rng`.
    """
    if not 0.0 <= share <= 1.0:
        raise ConfigError(f"the share of mined tasks must lie in [0, 1], got {share}")
    count = len(base) if count is None else count
    wanted = round(count * share) if mined.tasks else 0
    if not base and wanted < count:
        raise TaskError(f"a mix of {count} tasks needs {count - wanted} from the base pool, which is empty")
    by_id = {entry.task.id: entry.task for entry in mined.tasks}
    clusters = [[by_id[task_id] for task_id in cluster.task_ids] for cluster in mined.clusters]
    mix = [*_in_turn(clusters, wanted, rng), *_in_turn([list(base)], count - wanted, rng)]
    rng.shuffle(mix)
    return mix


# ---------------------------------------------------------------- parts


def _training_tasks(tasks: Sequence[Task]) -> Mapping[str, Task]:
    for task in tasks:
        if task.split != "train":
            raise TaskError(
                f"mining takes training tasks only, but task '{task.id}' is in split '{task.split}'; filter"
            )
    return {task.id: task for task in tasks}


def _commonest_failure(judged: Sequence[Trajectory]) -> FailureSignature:
    """The commonest signature of the failed runs; among equally common ones the first by text."""
    solved = sorted(
        (run for run in judged if completed(run)),
        key=lambda run: (len(run.steps), [step.action.tool_name or "" for step in run.steps], run.episode_id),
    )
    reference = solved[0] if solved else None
    counts = Counter(failure_signature(run, reference) for run in judged if completed(run) is False)
    return min(counts, key=lambda signature: (-counts[signature], signature.text()))


def _clusters(mined: Sequence[MinedTask], merge_above: float) -> tuple[FailureCluster, ...]:
    """Gives each signature, commonest first, to the first cluster whose leading signature is like enough."""
    members: dict[FailureSignature, list[MinedTask]] = defaultdict(list)
    for entry in mined:
        members[entry.failure].append(entry)
    clusters: dict[FailureSignature, list[MinedTask]] = {}
    for signature in sorted(members, key=lambda signature: (-len(members[signature]), signature.text())):
        leader = next((known for known in clusters if similarity(known, signature) >= merge_above), signature)
        clusters.setdefault(leader, []).extend(members[signature])
    found = [
        FailureCluster(
            label=leader.text(),
            signature=leader,
            task_ids=tuple(sorted(entry.task.id for entry in entries)),
            failures=sum(entry.attempts - entry.successes for entry in entries),
        )
        for leader, entries in clusters.items()
    ]
    return tuple(sorted(found, key=lambda cluster: (-len(cluster.task_ids), cluster.label)))


def _versioned(pool: MinedPool) -> MinedPool:
    content = msgspec.json.encode(pool, order="deterministic")
    return msgspec.structs.replace(pool, version=hashlib.sha256(content).hexdigest()[:16])


def _in_turn(groups: Sequence[Sequence[Task]], count: int, rng: random.Random) -> Iterator[Task]:
    """`count` tasks, one of each group in turn; each group in a random order that is drawn anew when used up."""
    queues: list[list[Task]] = [[] for _ in groups]
    for number in range(count):
        group = number % len(groups)
        if not queues[group]:
            queues[group] = rng.sample(groups[group], len(groups[group]))
        yield queues[group].pop()
