"""From finished episodes of one task to pairs of a better and a worse one: pure functions, one per kind of pair."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Literal

from deedrl.training.samples import TrainingSample
from deedrl.training.turn_rewards import is_guided
from deedrl.types import Record, Source, Trajectory

Kind = Literal["triple", "outcome", "efficiency"]


class Candidate(Record, frozen=True):
    """An episode that a pair may be made of: the verifier judged it, the rubric scored it, its tokens are known."""

    episode_id: str
    task_id: str
    role: str
    samples: tuple[TrainingSample, ...]
    """All of its samples; several where the conversation was rendered anew."""
    solved: bool
    reward: float
    steps: int
    action_tokens: int

    @property
    def prompt(self) -> tuple[int, ...]:
        """The tokens before its first action."""
        first = self.samples[0]
        return first.ids[: first.action_mask.index(True)]

    @property
    def sequence(self) -> tuple[object, ...]:
        """All tokens, and which of them the policy sampled: equal for equal episodes alone."""
        return tuple((sample.ids, sample.action_mask) for sample in self.samples)

    @property
    def actions(self) -> tuple[int, ...]:
        """The tokens the policy sampled."""
        return tuple(
            token
            for sample in self.samples
            for token, action in zip(sample.ids, sample.action_mask, strict=True)
            if action
        )


class PreferencePair(Record, frozen=True):
    """Of two episodes of one task the better and the worse one."""

    kind: Kind
    task_id: str
    chosen: str
    """Episode id, as of `rejected`."""
    rejected: str
    margin: float
    """Reward of the chosen episode minus that of the rejected one."""
    chosen_tokens: int
    """Action tokens, as of `rejected_tokens`."""
    rejected_tokens: int


class CandidateCounts(Record, frozen=True):
    """What became of the episodes that were read; one is counted under the first reason that applies."""

    read: int = 0
    repeated: int = 0
    """In another store too, under the same episode id."""
    other_split: int = 0
    """Not of the split ``train``."""
    errored: int = 0
    """Infrastructure trouble: no outcome of the policy's."""
    unverified: int = 0
    """The verifier never got to judge."""
    unscored: int = 0
    other_source: int = 0
    """Of a source that is not wanted, such as guided ones."""
    without_tokens: int = 0
    too_long: int = 0
    """With a sample over the length limit: left out whole."""
    solved: int = 0
    failed: int = 0

    @property
    def usable(self) -> int:
        return self.solved + self.failed


def candidates(
    trajectories: Iterable[Trajectory],
    samples_of: Callable[[Trajectory], Sequence[TrainingSample]],
    *,
    sources: Sequence[Source],
    max_tokens: int,
) -> tuple[list[Candidate], CandidateCounts]:
    """The episodes that pairs may be made of, in the order of their ids, and why others may not.

    Only the split ``train`` counts, only what the verifier judged and the rubric scored, and only `sources`. A turn
    sampled under constraints makes an episode guided, whatever its provenance says.
    """
    found: dict[str, Candidate] = {}
    counts = dict.fromkeys(CandidateCounts.__struct_fields__, 0)
    for trajectory in trajectories:
        counts["read"] += 1
        problem = "repeated" if trajectory.episode_id in found else _problem(trajectory, sources)
        samples = () if problem else tuple(samples_of(trajectory))
        problem = problem or _problem_of_samples(samples, max_tokens)
        if problem or trajectory.solved is None or trajectory.reward is None:
            counts[problem or "unscored"] += 1
            continue
        counts["solved" if trajectory.solved else "failed"] += 1
        found[trajectory.episode_id] = Candidate(
            episode_id=trajectory.episode_id,
            task_id=trajectory.task_id,
            role=trajectory.role,
            samples=samples,
            solved=trajectory.solved,
            reward=trajectory.reward,
            steps=len(trajectory.steps),
            action_tokens=sum(sample.action_tokens for sample in samples),
        )
    return [found[name] for name in sorted(found)], CandidateCounts(**counts)


def source_of(trajectory: Trajectory) -> Source:
    """Where an episode came from; ``guided`` if any of its turns was sampled under constraints."""
    return "guided" if is_guided(trajectory) else trajectory.provenance.source


def _problem(trajectory: Trajectory, sources: Sequence[Source]) -> str:
    if trajectory.split != "train":
        return "other_split"
    if trajectory.errored:
        return "errored"
    if trajectory.solved is None:
        return "unverified"
    if trajectory.reward is None:
        return "unscored"
    return "" if source_of(trajectory) in sources else "other_source"


def _problem_of_samples(samples: Sequence[TrainingSample], max_tokens: int) -> str:
    if not any(sample.action_tokens for sample in samples):
        return "without_tokens"
    return "too_long" if any(len(sample.ids) > max_tokens for sample in samples) else ""


# ---------------------------------------------------------------- pairs of one task

Pairing = Callable[[Sequence[Candidate], float], list[PreferencePair]]
"""From the episodes of one task, and how many times the fewest steps are wasteful, to ordered pairs."""


def outcome_pairs(episodes: Sequence[Candidate], ratio: float) -> list[PreferencePair]:
    """Every success against every failure."""
    successes, failures = _by_outcome(episodes)
    return [_pair("outcome", better, worse) for better, worse in product(successes, failures)]


def efficiency_pairs(episodes: Sequence[Candidate], ratio: float) -> list[PreferencePair]:
    """Every success of the fewest steps seen against every success of at least `ratio` times as many."""
    excellent, ordinary = _by_steps(episodes, ratio)
    return [_pair("efficiency", better, worse) for better, worse in product(excellent, ordinary)]


def triple_pairs(episodes: Sequence[Candidate], ratio: float) -> list[PreferencePair]:
    """Triples of an excellent, an ordinary and a failed episode, each episode in one triple at most; three pairs each.

    Excellent successes are of the fewest steps seen, ordinary ones of at least `ratio` times as many.
    """
    excellent, ordinary = _by_steps(episodes, ratio)
    _, failures = _by_outcome(episodes)
    return [
        _pair("triple", better, worse)
        for best, middle, failed in zip(excellent, ordinary, failures, strict=False)
        for better, worse in ((best, middle), (middle, failed), (best, failed))
    ]


PAIRINGS: dict[Kind, Pairing] = {"triple": triple_pairs, "outcome": outcome_pairs, "efficiency": efficiency_pairs}


def pairs_from(episodes: Sequence[Candidate], kinds: Sequence[Kind], ratio: float) -> list[PreferencePair]:
    """Pairs of these kinds within each task: of the same role, and of the very same prompt.

    Implicit rewards compare answers to one prompt; episodes of a task that were told different things make no pair.
    """
    groups: dict[tuple[str, str, tuple[int, ...]], list[Candidate]] = {}
    for episode in episodes:
        groups.setdefault((episode.task_id, episode.role, episode.prompt), []).append(episode)
    return [pair for group in groups.values() for kind in kinds for pair in PAIRINGS[kind](group, ratio)]


def _by_outcome(episodes: Sequence[Candidate]) -> tuple[list[Candidate], list[Candidate]]:
    return [e for e in episodes if e.solved], [e for e in episodes if not e.solved]


def _by_steps(episodes: Sequence[Candidate], ratio: float) -> tuple[list[Candidate], list[Candidate]]:
    """The successes of the fewest steps, and those of at least `ratio` times as many."""
    successes, _ = _by_outcome(episodes)
    fewest = min((episode.steps for episode in successes), default=0)
    return (
        [episode for episode in successes if episode.steps == fewest],
        [episode for episode in successes if episode.steps > fewest and episode.steps >= ratio * fewest],
    )


def _pair(kind: Kind, chosen: Candidate, rejected: Candidate) -> PreferencePair:
    return PreferencePair(
        kind=kind,
        task_id=chosen.task_id,
        chosen=chosen.episode_id,
        rejected=rejected.episode_id,
        margin=chosen.reward - rejected.reward,
        chosen_tokens=chosen.action_tokens,
        rejected_tokens=rejected.action_tokens,
    )
