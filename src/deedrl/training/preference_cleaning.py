"""What makes preference pairs fit to learn from: one pure function a step, each keeping the order of what it keeps."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import zip_longest

from deedrl.training.preferences import Candidate, PreferencePair
from deedrl.types import Record

Pairs = Sequence[PreferencePair]
Episodes = Mapping[str, Candidate]
"""By episode id."""

EQUAL_REWARDS = 1e-9
"""Rewards that differ by no more than rounding are equal."""


class Cleaned(Record, frozen=True):
    """Pairs that are left, and by step how many it dropped, in the order of the steps."""

    pairs: tuple[PreferencePair, ...]
    dropped: dict[str, int]


def clean(
    pairs: Pairs,
    episodes: Episodes,
    *,
    min_margin: float,
    pairs_per_task: int,
    length_band: tuple[float, float],
    seed: int,
) -> Cleaned:
    """All steps in turn; `episodes` holds every episode that `pairs` name."""
    steps: dict[str, Callable[[Pairs], list[PreferencePair]]] = {
        "equal_sequences": lambda left: without_equal_sequences(left, episodes),
        "equal_rewards": without_equal_rewards,
        "small_margins": lambda left: without_small_margins(left, min_margin),
        "contradictions": lambda left: without_contradictions(left, episodes),
        "duplicates": lambda left: without_duplicates(left, episodes),
        "pairs_per_task": lambda left: at_most_per_task(left, pairs_per_task, seed),
        "length_band": lambda left: within_length_band(left, *length_band),
    }
    dropped: dict[str, int] = {}
    left = list(pairs)
    for name, step in steps.items():
        before, left = len(left), step(left)
        dropped[name] = before - len(left)
    return Cleaned(pairs=tuple(left), dropped=dropped)


def without_equal_sequences(pairs: Pairs, episodes: Episodes) -> list[PreferencePair]:
    """Drops pairs whose sides did the same, token for token: nothing of the policy's tells them apart (case C07)."""
    number = _numbers(episodes, lambda episode: episode.actions)
    return [pair for pair in pairs if number[pair.chosen] != number[pair.rejected]]


def without_equal_rewards(pairs: Pairs) -> list[PreferencePair]:
    """Drops pairs whose sides earned the same (case C07)."""
    return [pair for pair in pairs if abs(pair.margin) > EQUAL_REWARDS]


def without_small_margins(pairs: Pairs, min_margin: float) -> list[PreferencePair]:
    """Drops pairs whose chosen side did not earn at least `min_margin` (not negative) more than the other."""
    return [pair for pair in pairs if pair.margin >= min_margin]


def without_contradictions(pairs: Pairs, episodes: Episodes) -> list[PreferencePair]:
    """Drops both directions wherever two equal sequences are preferred to each other, once this way and once that."""
    key = _directions(episodes)
    directions = {key(pair) for pair in pairs}
    return [pair for pair in pairs if key(pair)[::-1] not in directions]


def without_duplicates(pairs: Pairs, episodes: Episodes) -> list[PreferencePair]:
    """Keeps the first of the pairs with the same two sequences."""
    key = _directions(episodes)
    first: dict[Hashable, PreferencePair] = {}
    for pair in pairs:
        first.setdefault(key(pair), pair)
    return list(first.values())


def at_most_per_task(pairs: Pairs, limit: int, seed: int) -> list[PreferencePair]:
    """At most `limit` pairs of each task: kinds take turns, and within a kind chance decides, by `seed` and task."""
    by_task: dict[str, dict[str, list[PreferencePair]]] = {}
    for pair in pairs:
        by_task.setdefault(pair.task_id, {}).setdefault(pair.kind, []).append(pair)
    kept: set[PreferencePair] = set()
    for task, kinds in by_task.items():
        rng = random.Random(f"{seed} {task}")
        shuffled = [rng.sample(found, len(found)) for found in kinds.values()]
        turns = [pair for turn in zip_longest(*shuffled) for pair in turn if pair is not None]
        kept.update(turns[:limit])
    return [pair for pair in pairs if pair in kept]


# ---------------------------------------------------------------- length


class LengthReport(Record, frozen=True):
    """How much being chosen has to do with being long, counted in action tokens."""

    chosen_longer: int = 0
    chosen_shorter: int = 0
    equal: int = 0
    correlation: float | None = None
    """Pearson's r between being chosen (1 or 0) and length over both sides of all pairs; None where it is undefined."""

    @property
    def share_longer(self) -> float | None:
        """Of the pairs of different lengths; None if there are none."""
        different = self.chosen_longer + self.chosen_shorter
        return self.chosen_longer / different if different else None


def length_report(pairs: Pairs) -> LengthReport:
    """Of `pairs`."""
    differences = [pair.chosen_tokens - pair.rejected_tokens for pair in pairs]
    return LengthReport(
        chosen_longer=sum(difference > 0 for difference in differences),
        chosen_shorter=sum(difference < 0 for difference in differences),
        equal=sum(difference == 0 for difference in differences),
        correlation=_length_correlation(pairs),
    )


def within_length_band(pairs: Pairs, low: float, high: float) -> list[PreferencePair]:
    """Drops pairs of the largest difference in length until the share whose chosen side is longer is in [low, high].

    The share is that of the pairs of different lengths, `LengthReport.share_longer`. No more are dropped than it takes,
    all on the side of which there are too many; with so few pairs that no share of the band can be met, it ends up on
    the band's other side.
    """
    longer = [pair for pair in pairs if pair.chosen_tokens > pair.rejected_tokens]
    shorter = [pair for pair in pairs if pair.chosen_tokens < pair.rejected_tokens]
    too_many_longer = _surplus(len(longer), len(shorter), high)
    too_many_shorter = _surplus(len(shorter), len(longer), 1 - low)
    dropped = {*_extreme(longer)[:too_many_longer], *_extreme(shorter)[:too_many_shorter]}
    return [pair for pair in pairs if pair not in dropped]


def _surplus(count: int, others: int, share: float) -> int:
    """How many of `count` must go for them to be at most `share` of what is left beside `others`."""
    if share >= 1.0:
        return 0
    # The allowance is for shares that decimals cannot hold, such as 1 - 0.9.
    return max(count - math.floor(others * share / (1 - share) + 1e-9), 0)


def _extreme(pairs: Pairs) -> list[PreferencePair]:
    """The largest difference in length first; ids decide among equals."""
    return sorted(pairs, key=lambda p: (-abs(p.chosen_tokens - p.rejected_tokens), p.task_id, p.chosen, p.rejected))


def _length_correlation(pairs: Pairs) -> float | None:
    """Half of the sides are chosen, so r = (mean chosen - mean rejected) / (2 std of all lengths)."""
    lengths = [length for pair in pairs for length in (pair.chosen_tokens, pair.rejected_tokens)]
    if not lengths:
        return None
    mean = math.fsum(lengths) / len(lengths)
    std = math.sqrt(math.fsum((length - mean) ** 2 for length in lengths) / len(lengths))
    gap = math.fsum(pair.chosen_tokens - pair.rejected_tokens for pair in pairs) / len(pairs)
    return gap / (2 * std) if std else None


# ---------------------------------------------------------------- held-out pairs


def split_by_task(pairs: Pairs, share: float, seed: int) -> tuple[list[PreferencePair], list[PreferencePair]]:
    """Pairs to train on, and those of `share` of the tasks to measure on."""
    held = held_tasks([pair.task_id for pair in pairs], share, seed)
    return [p for p in pairs if p.task_id not in held], [p for p in pairs if p.task_id in held]


def held_tasks(tasks: Sequence[str], share: float, seed: int) -> set[str]:
    """`share` of the distinct `tasks`, by chance: one at least, and never all of them."""
    distinct = sorted(set(tasks))
    count = min(max(round(share * len(distinct)), 1), len(distinct) - 1) if share and distinct else 0
    return set(random.Random(seed).sample(distinct, count))


def _directions(episodes: Episodes) -> Callable[[PreferencePair], tuple[int, int]]:
    """From a pair to numbers of its two sequences, equal for equal sequences."""
    number = _numbers(episodes, lambda episode: episode.sequence)
    return lambda pair: (number[pair.chosen], number[pair.rejected])


def _numbers(episodes: Episodes, key: Callable[[Candidate], Hashable]) -> dict[str, int]:
    """A number for each episode, equal where keys are: long sequences are compared once, not once a pair."""
    numbers: dict[Hashable, int] = {}
    return {name: numbers.setdefault(key(episode), len(numbers)) for name, episode in episodes.items()}
