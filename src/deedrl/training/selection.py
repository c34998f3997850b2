"""From scored groups to the samples of one update: who is left out, why, and with which advantage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from deedrl.training.credit import Comparison, has_signal
from deedrl.training.gae import whitened
from deedrl.training.samples import SampleCounts, TrainingSample, collect_samples, require_logprobs
from deedrl.training.turn_rewards import is_guided, usable_reward
from deedrl.types import Record, Trajectory, TrajectoryGroup


class SelectionCounts(Record, frozen=True):
    """What one update was made of."""

    groups: int = 0
    zero_variance: int = 0
    """Groups in which no turn has an advantage, because what was scored is equal: nothing to compare."""
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
    left_out: int = 0
    """Scored episodes that a limit cut, where the stage leaves these out; masked."""
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


def select(
    groups: Sequence[TrajectoryGroup], comparison: Comparison, *, max_tokens: int, keep_zero_variance: bool = False
) -> Selection:
    """Samples of all groups with a signal, each action token carrying its turn's advantage.

    Baselines are per episode, whatever the number of turns. `keep_zero_variance` keeps groups without signal at
    advantage 0, for a KL term that should act on them too.
    """
    chosen: list[Trajectory] = []
    advantages_of: dict[str, list[float]] = {}
    silent: list[Trajectory] = []
    zero = small = unscored = guided = left_out = 0
    for group in groups:
        found = comparison.advantages(group)
        compared = [(t, turns) for t, turns in zip(group.trajectories, found, strict=True) if turns is not None]
        guided += sum(is_guided(trajectory) for trajectory in group.trajectories)
        unscored += sum(trajectory.reward is None for trajectory in group.trajectories)
        left_out += sum(usable_reward(trajectory) is not None for trajectory in group.trajectories) - len(compared)
        if not has_signal(found):
            small += len(compared) < 2
            zero += len(compared) >= 2
            if not keep_zero_variance or len(compared) < 2:
                silent += [trajectory for trajectory, _ in compared if len(compared) >= 2]
                continue
        for trajectory, turns in compared:
            if trajectory.episode_id in advantages_of:
                raise ValueError(f"episode id '{trajectory.episode_id}' came twice; advantages are keyed by it")
            chosen.append(trajectory)
            advantages_of[trajectory.episode_id] = turns
    require_logprobs(chosen)
    samples, counts = collect_samples(chosen, max_tokens=max_tokens)
    return Selection(
        samples=tuple(_with_advantages(s, advantages_of[s.episode_id]) for found in samples for s in found),
        counts=SelectionCounts(
            groups=len(groups),
            zero_variance=zero,
            silent_episodes=len(silent),
            silent_tokens=sum(len(step.completion.token_ids) for t in silent for step in t.steps),
            too_small=small,
            unscored=unscored,
            guided=guided,
            left_out=left_out,
            samples=counts,
        ),
    )


def whitened_samples(samples: Sequence[TrainingSample], silent_tokens: int) -> list[TrainingSample]:
    """Samples whose advantages have mean 0 and standard deviation 1 over the step's action tokens.

    Tokens of episodes without a signal count as part of the step with advantage 0, and stay out of the loss. With group
    means subtracted before, it is the baseline variant of REINFORCE++ (Hu et al. 2025, arXiv 2501.03262).
    """
    rows = [[a for a, action in zip(s.advantages, s.action_mask, strict=True) if action] for s in samples]
    changed = whitened([*rows, [0.0] * silent_tokens])[: len(samples)]
    return [_with_tokens(sample, row) for sample, row in zip(samples, changed, strict=True)]


def _with_advantages(sample: TrainingSample, of_turn: Sequence[float]) -> TrainingSample:
    """The sample with each turn's advantage on the turn's action tokens."""
    return _with_tokens(sample, [of_turn[turn] for turn, tokens in sample.turns for _ in range(tokens)])


def _with_tokens(sample: TrainingSample, advantages: Sequence[float]) -> TrainingSample:
    """The sample with one advantage for each of its action tokens."""
    of_token = iter(advantages)
    per_token = tuple(next(of_token) if action else 0.0 for action in sample.action_mask)
    return msgspec.structs.replace(sample, advantages=per_token)
