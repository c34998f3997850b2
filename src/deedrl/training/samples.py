"""Trajectories to masked token sequences, from what was recorded; nothing is rendered or tokenised again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from deedrl.errors import ModelError
from deedrl.types import Record, Step, Trajectory


class TrainingSample(Record, frozen=True):
    """One token sequence of an episode. All per-token fields have the length of `ids`.

    `action_mask` is True exactly at tokens the policy sampled (turn-end tokens included). `logprobs` are the sampler's,
    0.0 elsewhere. `advantages` are 0.0 until assigned; with a critic, `values` are its own as recorded before the
    update, and `returns` what it is to learn. `weight` scales the whole sample in the loss.
    """

    episode_id: str
    ids: tuple[int, ...]
    action_mask: tuple[bool, ...]
    logprobs: tuple[float, ...]
    advantages: tuple[float, ...] = ()
    values: tuple[float, ...] = ()
    returns: tuple[float, ...] = ()
    cut: bool = False
    """A limit cut the episode after this sample: a critic is asked for the value of the state after its last token."""
    read_at: tuple[int, ...] = ()
    """Positions after whose tokens a head is asked, beside the states that actions were sampled in; ascending."""
    weight: float = 1.0
    turns: tuple[tuple[int, int], ...] = ()
    """Index and number of action tokens of each turn in it, in order, where it was made from a trajectory."""

    def __post_init__(self) -> None:
        optional = {len(self.advantages), len(self.values), len(self.returns)} - {0}
        lengths = {len(self.ids), len(self.action_mask), len(self.logprobs)} | optional
        if len(lengths) != 1:
            raise ValueError(f"per-token fields of sample {self.episode_id} differ in length: {sorted(lengths)}")

    @property
    def action_tokens(self) -> int:
        return sum(self.action_mask)

    @property
    def longest_turn(self) -> int:
        """Tokens of the longest completion, the turn's end included."""
        return max((sum(1 for _ in run) for action, run in groupby(self.action_mask) if action), default=0)


class SampleCounts(Record, frozen=True):
    """What became of a set of trajectories on the way to samples."""

    trajectories: int = 0
    samples: int = 0
    split_trajectories: int = 0
    """Trajectories with more than one sample, because a prompt did not extend the recorded tokens."""
    too_long: int = 0
    """Samples over the length limit: left out whole, never cut."""
    without_tokens: int = 0
    """Trajectories without recorded tokens (scripted policies) or without steps."""


def samples_from(trajectory: Trajectory) -> list[TrainingSample]:
    """The samples of one trajectory: one, or several where a prompt was not an extension of the earlier tokens.

    A turn in which nothing was sampled is context of the turns that extend it.
    """
    pieces: list[list[Step]] = []
    for step in trajectory.steps:
        completion = step.completion
        if not completion.token_ids and not completion.prompt_ids:
            continue  # a policy without tokens
        if completion.extends_previous and pieces:
            pieces[-1].append(step)
        else:
            pieces.append([step])
    return [_joined(trajectory.episode_id, piece) for piece in pieces if any(s.completion.token_ids for s in piece)]


def require_logprobs(trajectories: Iterable[Trajectory]) -> None:
    """Raises `ModelError` if a sampled turn has no log-probabilities: taken as 0.0 they would falsify every ratio."""
    for trajectory in trajectories:
        for step in trajectory.steps:
            tokens, logprobs = len(step.completion.token_ids), len(step.completion.logprobs)
            if tokens != logprobs:
                raise ModelError(
                    f"episode '{trajectory.episode_id}', turn {step.index}: expected a log-probability for each of "
                    f"{tokens} sampled tokens, got {logprobs}; reinforcement learning needs them as they were sampled: "
                    "use a policy that returns them"
                )


def _joined(episode_id: str, steps: Sequence[Step]) -> TrainingSample:
    ids: list[int] = []
    mask: list[bool] = []
    logprobs: list[float] = []
    for step in steps:
        completion = step.completion
        context, sampled = len(completion.prompt_ids), len(completion.token_ids)
        ids += [*completion.prompt_ids, *completion.token_ids]
        mask += [False] * context + [True] * sampled
        logprobs += [0.0] * context + list(completion.logprobs or [0.0] * sampled)
    return TrainingSample(
        episode_id=episode_id,
        ids=tuple(ids),
        action_mask=tuple(mask),
        logprobs=tuple(logprobs),
        turns=tuple((step.index, len(step.completion.token_ids)) for step in steps),
    )


def collect_samples(
    trajectories: Sequence[Trajectory], *, max_tokens: int
) -> tuple[list[list[TrainingSample]], SampleCounts]:
    """Samples per trajectory (in order, possibly empty lists) and what was left out and why."""
    result: list[list[TrainingSample]] = []
    split = too_long = empty = 0
    for trajectory in trajectories:
        samples = samples_from(trajectory)
        split += len(samples) > 1
        empty += not samples
        kept = [sample for sample in samples if len(sample.ids) <= max_tokens]
        too_long += len(samples) - len(kept)
        result.append(kept)
    counts = SampleCounts(
        trajectories=len(trajectories),
        samples=sum(map(len, result)),
        split_trajectories=split,
        too_long=too_long,
        without_tokens=empty,
    )
    return result, counts
