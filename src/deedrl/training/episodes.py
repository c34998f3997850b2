"""From trajectories to episodes with a reward at each action token, as algorithms with a critic learn from them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from deedrl.training.gae import Credit
from deedrl.training.samples import SampleCounts, TrainingSample, collect_samples, require_logprobs
from deedrl.training.turn_rewards import has_step_rewards, is_guided, step_reward, usable_reward
from deedrl.types import Record, TerminationReason, Trajectory


class RewardedEpisode(Record, frozen=True):
    """One episode: its samples in order, and the reward that followed each of their action tokens."""

    task_id: str
    samples: tuple[TrainingSample, ...]
    rewards: tuple[float, ...]
    """One for each action token of all samples together."""
    cut: bool = False
    """A limit ended it, not the job: the critic's value of the last state stands for what would have come."""

    def __post_init__(self) -> None:
        tokens = sum(sample.action_tokens for sample in self.samples)
        if tokens != len(self.rewards):
            raise ValueError(
                f"expected a reward for each of {tokens} action tokens of episode {self.samples[0].episode_id}, "
                f"got {len(self.rewards)}"
            )


class EpisodeCounts(Record, frozen=True):
    """What became of the trajectories of one step."""

    episodes: int = 0
    """That are learnt from."""
    unscored: int = 0
    """Without a reward: left out, not counted as 0."""
    guided: int = 0
    """Sampled under constraints, which are not samples of this policy; left out."""
    cut: int = 0
    """Of `episodes`, those whose outcome the critic's value stands for."""
    with_step_rewards: int = 0
    """Trajectories, left out ones included, whose environment paid for single steps."""
    samples: SampleCounts = SampleCounts()


def rewarded_episodes(
    trajectories: Sequence[Trajectory],
    *,
    max_tokens: int,
    step_weight: float,
    cut_by: Collection[TerminationReason],
) -> tuple[list[RewardedEpisode], EpisodeCounts]:
    """Episodes to learn from, and counts of them and of what was left out.

    The outcome (the trajectory's reward) lies on the last action token. For endings in `cut_by` it is left out: it was
    taken from a state in which the job was not over. Rewards of single steps count `step_weight` times and lie on the
    last action token of their step. An episode with a sample over `max_tokens` is left out whole, for a chain of values
    must not have holes.
    """
    usable = [trajectory for trajectory in trajectories if usable_reward(trajectory) is not None]
    require_logprobs(usable)
    found, counts = collect_samples(usable, max_tokens=max_tokens)
    episodes: dict[str, RewardedEpisode] = {}
    for trajectory, samples in zip(usable, found, strict=True):
        outcome, cut = usable_reward(trajectory), trajectory.termination in cut_by
        rewards = token_rewards(trajectory, outcome=0.0 if cut else outcome or 0.0, step_weight=step_weight)
        if not samples or sum(sample.action_tokens for sample in samples) < len(rewards):
            continue
        if trajectory.episode_id in episodes:
            raise ValueError(f"episode id '{trajectory.episode_id}' came twice; rewards are keyed by it")
        last = msgspec.structs.replace(samples[-1], cut=cut)
        episodes[trajectory.episode_id] = RewardedEpisode(
            task_id=trajectory.task_id, samples=(*samples[:-1], last), rewards=tuple(rewards), cut=cut
        )
    return list(episodes.values()), EpisodeCounts(
        episodes=len(episodes),
        unscored=sum(trajectory.reward is None for trajectory in trajectories),
        guided=sum(is_guided(trajectory) for trajectory in trajectories),
        cut=sum(episode.cut for episode in episodes.values()),
        with_step_rewards=sum(has_step_rewards(trajectory) for trajectory in trajectories),
        samples=counts,
    )


def token_rewards(trajectory: Trajectory, *, outcome: float, step_weight: float) -> list[float]:
    """The reward of each action token: steps' own on the last token of the step, `outcome` on the last of all."""
    rewards: list[float] = []
    for step in trajectory.steps:
        rewards += [0.0] * len(step.completion.token_ids)
        if rewards:
            rewards[-1] += step_weight * step_reward(trajectory, step)
    if rewards:
        rewards[-1] += outcome
    return rewards


def credited(
    episode: RewardedEpisode, values: Sequence[float], credit: Credit, advantages: Sequence[float]
) -> list[TrainingSample]:
    """The episode's samples with values, returns and `advantages` (those of `credit`, or scaled) at action tokens."""
    columns = {"values": iter(values), "returns": iter(credit.returns), "advantages": iter(advantages)}
    return [
        msgspec.structs.replace(
            sample,
            **{
                name: tuple(next(column) if action else 0.0 for action in sample.action_mask)
                for name, column in columns.items()
            },
        )
        for sample in episode.samples
    ]
