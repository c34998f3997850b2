"""Sampling ahead of updates: batches wait for updates so that they cannot grow stale, and none is thrown away.

Update k trains on batch k. The sampling of batch k may begin as soon as update k - 1 - `max_staleness` is applied, so
what an update trains on was sampled by weights at most `max_staleness` updates old. Dropping what took too long would
bound staleness as well, but it drops the slow tasks, which are often the hard ones (case I07).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Generic, TypeVar

import anyio
from anyio.abc import TaskStatus

from deedrl.rollouts.failures import first_error
from deedrl.types import Trajectory

Batch = TypeVar("Batch")


def pace(batches: range, max_staleness: int) -> Iterator[tuple[int, range]]:
    """For each of `batches` in order, those whose sampling begins before its update, once all earlier ones are applied.

    Every batch begins exactly once. `batches` rises by 1; updates before its first count as applied.
    """
    if batches.step != 1:
        raise ValueError(f"expected batches that rise by 1, got steps of {batches.step}")
    if max_staleness < 0:
        raise ValueError(f"expected max_staleness of at least 0, got {max_staleness}")
    begun = batches.start
    for number in batches:
        end = min(number + max_staleness + 1, batches.stop)
        yield number, range(begun, end)
        begun = end


async def run_paced(
    batches: range,
    play: Callable[[int], Awaitable[Batch]],
    update: Callable[[int, Batch], Awaitable[None]],
    *,
    max_staleness: int,
) -> None:
    """Plays `batches` and updates on each of them in order, `play` running ahead as far as `max_staleness` allows.

    At most `max_staleness` + 1 batches are in flight or wait for their update, so that a slow one holds up the updates
    but not the sampling of those after it. `play` is called in order of batches and has begun (run up to its first
    wait) before the update that it need not wait for. An exception of either, and cancellation, stops both.
    """
    playing: dict[int, _Playing[Batch]] = {}
    try:
        async with anyio.create_task_group() as group:
            for number, beginning in pace(batches, max_staleness):
                for begun in beginning:
                    playing[begun] = _Playing()
                    await group.start(playing[begun].run, play, begun)
                await update(number, await playing.pop(number).result())
    except BaseExceptionGroup as errors:
        error = first_error(errors)
        raise error from error.__cause__


class _Playing(Generic[Batch]):
    """One batch on its way."""

    def __init__(self) -> None:
        self._done = anyio.Event()
        self._batch: list[Batch] = []

    async def run(self, play: Callable[[int], Awaitable[Batch]], number: int, *, task_status: TaskStatus[None]) -> None:
        task_status.started()
        self._batch.append(await play(number))
        self._done.set()

    async def result(self) -> Batch:
        await self._done.wait()
        return self._batch.pop()


def mean_staleness(trajectories: Iterable[Trajectory], update: int, number_of: Callable[[str], int]) -> float:
    """How many updates the weights that sampled were behind those of `update`, as the mean over sampled tokens.

    `number_of` gives the number of updates behind a completion's `policy_version`. Without tokens it is 0.
    """
    tokens = late = 0
    for trajectory in trajectories:
        for step in trajectory.steps:
            sampled = len(step.completion.token_ids)
            tokens += sampled
            late += sampled * (update - number_of(step.completion.policy_version))
    return late / tokens if tokens else 0.0
