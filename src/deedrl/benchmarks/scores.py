"""What simple policies score in each environment that comes with DeedRL: measured, kept in the package, shown by
`deedrl envs`. Doing nothing must be worth about nothing, and the environment's own demonstrations must solve all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from deedrl.benchmarks.measure import Machine, this_machine
from deedrl.environments.contract import checked_tasks, own_rubric
from deedrl.environments.environment import Environment
from deedrl.environments.loading import load_environment
from deedrl.environments.suite import ENTRY_POINTS
from deedrl.policies.policy import Policy
from deedrl.policies.scripted import EchoPolicy, NoOpPolicy, RandomPolicy
from deedrl.rewards.rubric import default_rubric
from deedrl.rollouts.demonstration import demonstration_policy
from deedrl.rollouts.episode import EpisodeSpec
from deedrl.rollouts.limits import Limits
from deedrl.rollouts.runner import run_episodes_sync
from deedrl.tasks.intervals import wilson
from deedrl.types import Record, SamplingParams, Task, Trajectory

SHIPPED = Path(__file__).with_name("scores.json")
SEED = 20_261
TEMPERATURE, MAX_TOKENS = 0.5, 72
"""Of the base model; as in the recipes."""


class Score(Record, frozen=True, kw_only=True):
    """What one policy did."""

    policy: str
    episodes: int
    """Those that were judged; others are infrastructure trouble and count in `errors`."""
    solved: int
    errors: int
    mean_progress: float
    mean_reward: float | None

    @property
    def completion(self) -> float:
        return self.solved / self.episodes

    @property
    def interval(self) -> tuple[float, float]:
        """95 % Wilson interval of the completion."""
        return wilson(self.solved, self.episodes)


class EnvironmentScores(Record, frozen=True, kw_only=True):
    """All scores of one environment, on the same test tasks of all difficulties."""

    ref: str
    scores: tuple[Score, ...]
    machine: Machine


class Overview(Record, frozen=True, kw_only=True):
    """What there is to say of an environment without playing it."""

    ref: str
    summary: str
    families: tuple[str, ...]
    splits: dict[str, int]
    """Tasks of each split when 60 are asked for."""
    steps: dict[str, tuple[int, float, int]]
    """Difficulty → fewest, mean and most steps of the shortest known solutions; empty where none are known."""


def overview(ref: str, tasks: int = 60) -> Overview:
    """Reads the class and generates tasks of every split."""
    cls = load_environment(ref)
    splits = {split: checked_tasks(cls, split, tasks, SEED) for split in ("train", "validation", "test", "test_unseen")}
    known = [task for made in splits.values() for task in made]
    lengths: dict[str, list[int]] = {}
    for task in known:
        if task.shortest_steps is not None:
            lengths.setdefault(task.difficulty, []).append(task.shortest_steps)
    return Overview(
        ref=ref,
        summary=(cls.__doc__ or "").strip().partition("\n")[0],
        families=tuple(dict.fromkeys(task.family for task in known)),
        splits={split: len(made) for split, made in splits.items()},
        steps={level: (min(n), sum(n) / len(n), max(n)) for level, n in lengths.items()},
    )


def shipped_scores() -> dict[str, EnvironmentScores]:
    """The scores in the package, by id."""
    if not SHIPPED.is_file():
        return {}
    return {one.ref: one for one in msgspec.json.decode(SHIPPED.read_bytes(), type=list[EnvironmentScores])}


def keep_scores(measured: EnvironmentScores) -> None:
    """Puts scores among those in the package, in the order of the ids."""
    kept = shipped_scores() | {measured.ref: measured}
    ordered = [kept[ref] for ref in ENTRY_POINTS if ref in kept]
    SHIPPED.write_bytes(msgspec.json.format(msgspec.json.encode(ordered), indent=1) + b"\n")


def measure_scores(ref: str, tasks: int, *, base: bool = False) -> EnvironmentScores:
    """Plays `tasks` test tasks with each policy; with `base` also with the embedded model as it is."""
    cls = load_environment(ref)
    made = checked_tasks(cls, "test", tasks, SEED)
    scores = []
    for name, policy in _policies(cls, made):
        scores.append(_score(name, _play(cls, made, policy)))
    if base:
        with _base_policy() as policy:
            scores.append(_score("base", _play(cls, made, policy)))
    return EnvironmentScores(ref=ref, scores=tuple(scores), machine=this_machine())


def _policies(cls: type[Environment], tasks: Sequence[Task]) -> Iterator[tuple[str, Policy]]:
    yield "no-op", NoOpPolicy()
    yield "echo", EchoPolicy()
    yield "random", RandomPolicy()
    yield "expert", demonstration_policy(_specs(tasks), cls)


@contextmanager
def _base_policy() -> Iterator[Policy]:
    from deedrl.policies.local.model import load_model
    from deedrl.policies.local.policy import LocalPolicy

    loaded = load_model("embedded")
    policy = LocalPolicy(loaded.model, loaded.renderer, max_rows=48)
    yield policy
    policy.rest()


def _specs(tasks: Sequence[Task]) -> list[EpisodeSpec]:
    sampling = SamplingParams(temperature=TEMPERATURE, max_tokens=MAX_TOKENS)
    return [EpisodeSpec(task=task, episode_id=task.id, seed=SEED, sampling=sampling) for task in tasks]


def _play(cls: type[Environment], tasks: Sequence[Task], policy: Policy) -> list[Trajectory]:
    return run_episodes_sync(
        _specs(tasks),
        environment=cls,
        policy=policy,
        rubric=own_rubric(cls) or default_rubric(),
        limits=Limits(),
        concurrency=48,
    )


def _score(name: str, played: Sequence[Trajectory]) -> Score:
    judged = [t for t in played if t.verdict is not None]
    rewards = [t.reward for t in judged if t.reward is not None]
    return Score(
        policy=name,
        episodes=len(judged),
        solved=sum(t.solved is True for t in judged),
        errors=len(played) - len(judged),
        mean_progress=round(sum(t.verdict.progress for t in judged if t.verdict) / max(1, len(judged)), 4),
        mean_reward=round(sum(rewards) / len(rewards), 4) if rewards else None,
    )
