from __future__ import annotations

import pytest

from deedrl.planning.load import Load, MicroBatch, micro_batch


def load(**changes: int) -> Load:
    settings = {"prefix_tokens": 100, "own_tokens": 200, "episodes": 32, "group_size": 8, "micro_batch_tokens": 1024}
    return Load(**(settings | changes))


def test_siblings_share_a_quarter_of_a_short_episode_at_most() -> None:
    assert load().task_tokens == 50
    assert load(own_tokens=1000).task_tokens == 60
    assert load(group_size=1).task_tokens == 0


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # A group is 50 + 8 x 150 tokens: only some of its rows fit, then one, then two groups.
        ({}, MicroBatch(rows=6, own=150, beginnings=1, shared=50)),
        ({"micro_batch_tokens": 1250}, MicroBatch(rows=8, own=150, beginnings=1, shared=50)),
        ({"micro_batch_tokens": 2600}, MicroBatch(rows=16, own=150, beginnings=2, shared=50)),
        # A row longer than the limit gets a micro-batch of its own; there are never more rows than episodes.
        ({"micro_batch_tokens": 10}, MicroBatch(rows=1, own=150, beginnings=1, shared=50)),
        ({"micro_batch_tokens": 10**6}, MicroBatch(rows=32, own=150, beginnings=4, shared=50)),
        ({"group_size": 1}, MicroBatch(rows=5, own=200, beginnings=0, shared=0)),
    ],
)
def test_micro_batches(changes: dict[str, int], expected: MicroBatch) -> None:
    assert micro_batch(load(**changes)) == expected
