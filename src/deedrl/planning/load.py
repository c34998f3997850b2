"""What a training step holds: how long episodes are, how many, and how they lie in a micro-batch."""

from __future__ import annotations

from typing import NamedTuple

from deedrl.config import Count, NonNegative, PositiveFloat, PositiveInt, Settings


class EpisodeLengths(Settings, frozen=True, kw_only=True):
    """Tokens of the parts of a job's episodes, in the mean."""

    prefix: NonNegative
    """System prompt and tool schemas: computed once by a policy that samples, and once in an update."""
    task: NonNegative
    """The task itself; computed once for siblings."""
    turns: PositiveFloat
    """Turns of an episode."""
    turn: PositiveFloat
    """Sampled in a turn."""
    observation: NonNegative
    """What is told between two turns."""

    @property
    def sampled(self) -> float:
        """By the policy in an episode."""
        return self.turns * self.turn

    @property
    def told(self) -> float:
        """To the policy after its first turn."""
        return max(self.turns - 1, 0) * self.observation

    @property
    def own(self) -> float:
        """After the prefix."""
        return self.task + self.sampled + self.told


TYPICAL = EpisodeLengths(prefix=350, task=60, turns=3, turn=48, observation=48)
"""Of a job of which nothing is known, like a support desk's."""
OWN_TOKENS = round(TYPICAL.own)


class Load(Settings, frozen=True, kw_only=True):
    """The episodes of one step, all of one length."""

    prefix_tokens: Count = round(TYPICAL.prefix)
    """What every episode begins with."""
    own_tokens: PositiveInt = OWN_TOKENS
    """An episode's tokens after the prefix: task, turns and what the tools said."""
    longest_tokens: Count = 0
    """As `own_tokens`, of the longest episode in flight: the cache gives every row as much. 0: all are alike."""
    episodes: PositiveInt = 48
    """Episodes of a step."""
    group_size: PositiveInt = 6
    """Episodes of one task, which share its `task_tokens`."""
    micro_batch_tokens: PositiveInt = 4096
    """Most tokens of one forward and backward pass, the prefix not counted."""
    concurrency: PositiveInt = 32
    """Episodes sampled at once."""

    @property
    def task_tokens(self) -> int:
        """Tokens after the prefix that siblings share."""
        return min(round(TYPICAL.task), self.own_tokens // 4) if self.group_size > 1 else 0


class MicroBatch(NamedTuple):
    """The largest micro-batch of a load: `rows` of `own` tokens, which follow `beginnings` of `shared` tokens."""

    rows: int
    own: int
    beginnings: int
    shared: int

    @property
    def tokens(self) -> int:
        return self.beginnings * self.shared + self.rows * self.own


def micro_batch(load: Load) -> MicroBatch:
    """How `deedrl.training.packing.pack` fills a micro-batch: whole groups, or what fits of one; at least one row."""
    shared = load.task_tokens
    own = load.own_tokens - shared
    siblings = min(load.group_size, load.episodes)
    groups = load.micro_batch_tokens // (shared + siblings * own)
    if groups:
        groups = min(groups, -(-load.episodes // siblings))
        rows = min(groups * siblings, load.episodes)
    else:
        groups, rows = 1, max((load.micro_batch_tokens - shared) // own, 1)
    return MicroBatch(rows=rows, own=own, beginnings=groups if shared else 0, shared=shared)
