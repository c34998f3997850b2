"""From scored groups to the samples of one update: who is left out, why, and with which advantage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from deedrl.training.advantages import Estimator, has_signal
from deedrl.training.samples import SampleCounts, TrainingSample, collect_samples
from deedrl.types import Record, Trajectory, TrajectoryGroup


class SelectionCounts(Record, frozen=True):
    """What one update was made of."""

    groups: int = 0
    zero_variance: int = 0
    """Groups whose scored rewards are equal: nothing to compare."""
    silent_episodes: int = 0
    """Scored episodes of these groups, unless they are kept."""
    silent_tokens: int = 0
    """Their action tokens."""
    too_small: int = 0
    """Groups with fewer than two scored siblings."""
    unscored: int = 0
    """Episodes without a reward inside groups; masked, not counted as 0."""
    guided: int = 0
    """Episodes sampled under constraints, which are not samples of this policy; masked."""
    samples: SampleCounts = SampleCounts()


class Selection(Record, frozen=True):
    """Samples with advantages, ready to pack, and the counts behind them."""

    samples: tuple[TrainingSample, ...]
    counts: SelectionCounts


def group_trajectories(trajectories: Iterable[Trajectory]) -> list[TrajectoryGroup]:
    """Groups by (task, role) in order of first appearance."""
    groups: dict[tuple[str, str], list[Trajectory]] = {}
    for trajectory in trajectories:
        groups.setdefault((trajectory.task_id, trajectory.role), []).append(trajectory)
    return [TrajectoryGroup(task_id=key[0], role=key[1], trajectories=tuple(found)) for key, found in groups.items()]


def group_has_signal(group: TrajectoryGroup, threshold: float) -> bool:
    """Whether the group's on-policy rewards differ."""
    return has_signal([usable_reward(t) for t in group.trajectories], threshold)


def select(
    groups: Sequence[TrajectoryGroup],
    estimator: Estimator,
    *,
    threshold: float,
    max_tokens: int,
    keep_zero_variance: bool = False,
) -> Selection:
    """Samples of all groups with a signal, each action token carrying its episode's advantage.

    Baselines are per episode, whatever the number of turns. `keep_zero_variance` keeps groups without signal at
    advantage 0, for a KL term that should act on them too.
    """
    chosen: list[Trajectory] = []
    advantage_of: dict[str, float] = {}
    silent: list[Trajectory] = []
    zero = small = unscored = guided = 0
    for group in groups:
        rewards = [usable_reward(trajectory) for trajectory in group.trajectories]
        guided += sum(is_guided(trajectory) for trajectory in group.trajectories)
        unscored += sum(trajectory.reward is None for trajectory in group.trajectories)
        scored = sum(reward is not None for reward in rewards)
        if not has_signal(rewards, threshold):
            small += scored < 2
            zero += scored >= 2
            if not keep_zero_variance or scored < 2:
                if scored >= 2:
                    silent += [t for t, r in zip(group.trajectories, rewards, strict=True) if r is not None]
                continue
        advantages = estimator(rewards, threshold)
        for trajectory, reward, advantage in zip(group.trajectories, rewards, advantages, strict=True):
            if reward is not None:
                if trajectory.episode_id in advantage_of:
                    raise ValueError(f"episode id '{trajectory.episode_id}' came twice; advantages are keyed by it")
                chosen.append(trajectory)
                advantage_of[trajectory.episode_id] = advantage
    samples, counts = collect_samples(chosen, max_tokens=max_tokens)
    return Selection(
        samples=tuple(_with_advantage(s, advantage_of[s.episode_id]) for found in samples for s in found),
        counts=SelectionCounts(
            groups=len(groups),
            zero_variance=zero,
            silent_episodes=len(silent),
            silent_tokens=sum(len(step.completion.token_ids) for t in silent for step in t.steps),
            too_small=small,
            unscored=unscored,
            guided=guided,
            samples=counts,
        ),
    )


def usable_reward(trajectory: Trajectory) -> float | None:
    """The reward of an episode that the policy sampled freely and that was scored; None of any other."""
    return None if trajectory.errored or is_guided(trajectory) else trajectory.reward


def is_guided(trajectory: Trajectory) -> bool:
    """Whether any turn was sampled under constraints."""
    return any(step.completion.guided for step in trajectory.steps)


def _with_advantage(sample: TrainingSample, advantage: float) -> TrainingSample:
    per_token = tuple(advantage if action else 0.0 for action in sample.action_mask)
    return msgspec.structs.replace(sample, advantages=per_token)
