"""Runs many episodes at once. Environments are synchronous and policies async; only this module knows both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sized
from functools import partial

import anyio

from deedrl.errors import DeedRLError
from deedrl.policies.policy import Policy
from deedrl.rewards.rubric import Rubric
from deedrl.rollouts.episode import EpisodeSpec, play_episode
from deedrl.rollouts.failures import FailureLedger, FailurePolicy, RolloutsStopped, first_error
from deedrl.rollouts.limits import Limits
from deedrl.rollouts.prompting import PromptVariant
from deedrl.rollouts.slot import AnyEnvironment, EnvironmentSlot, EnvironmentSource
from deedrl.types import Trajectory

__all__ = ["EpisodeSpec", "FailurePolicy", "Limits", "PromptVariant", "run_episodes", "run_episodes_sync"]

MAX_ABANDONED_THREADS = 32
"""Hanging calls that could not be stopped, in one run, before it is stopped instead of piling up threads."""


async def run_episodes(
    specs: Iterable[EpisodeSpec],
    *,
    environment: Callable[[], AnyEnvironment],
    policy: Policy,
    rubric: Rubric | None,
    limits: Limits | None = None,
    failures: FailurePolicy | None = None,
    concurrency: int = 16,
    on_trajectory: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    """Plays one episode per spec, at most `concurrency` at a time, and returns trajectories in the order of specs.

    Episodes are independent: none waits for another. Specs are taken from the iterable as episodes finish.
    `on_trajectory` gets each trajectory the moment it is final (failed ones too), in order of completion; an
    exception from it (a full disk) stops the run. So does too large a share of failures: `RolloutsStopped`.
    Ctrl-C and cancellation propagate; unfinished episodes are then not reported. `rubric` None leaves
    trajectories unscored.

    An environment whose class says ``blocking = False`` runs its calls in the event loop, where no time limit can
    be enforced; any other runs on threads. To learn which, one environment more is built unless `environment` is
    the class itself.
    """
    if concurrency < 1:
        raise ValueError(f"expected concurrency of at least 1, got {concurrency}")
    run = _Run(specs, policy, rubric, limits or Limits(), failures or FailurePolicy(), on_trajectory)
    source = EnvironmentSource(environment)
    workers = min(concurrency, len(specs)) if isinstance(specs, Sized) else concurrency
    try:
        async with anyio.create_task_group() as group:
            for _ in range(workers):
                group.start_soon(run.work, EnvironmentSlot(source))
        run.ledger.check()
    except (RolloutsStopped, BaseExceptionGroup) as errors:
        error = first_error(errors)
        if isinstance(error, RolloutsStopped):
            raise RolloutsStopped(str(error), run.trajectories()) from None
        raise error from error.__cause__
    return run.trajectories()


def run_episodes_sync(
    specs: Iterable[EpisodeSpec],
    *,
    environment: Callable[[], AnyEnvironment],
    policy: Policy,
    rubric: Rubric | None,
    limits: Limits | None = None,
    failures: FailurePolicy | None = None,
    concurrency: int = 16,
    on_trajectory: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    """`run_episodes` for code without an event loop."""
    return anyio.run(
        partial(
            run_episodes,
            specs,
            environment=environment,
            policy=policy,
            rubric=rubric,
            limits=limits,
            failures=failures,
            concurrency=concurrency,
            on_trajectory=on_trajectory,
        ),
        backend="asyncio",
    )


class _Run:
    """What the workers of one run share."""

    def __init__(
        self,
        specs: Iterable[EpisodeSpec],
        policy: Policy,
        rubric: Rubric | None,
        limits: Limits,
        failures: FailurePolicy,
        on_trajectory: Callable[[Trajectory], None] | None,
    ) -> None:
        self.limits = limits
        self.ledger = FailureLedger(failures)
        self._specs = enumerate(specs)
        self._policy = policy
        self._rubric = rubric
        self._failures = failures
        self._on_trajectory = on_trajectory
        self._finished: dict[int, Trajectory] = {}
        self._episode_ids: set[str] = set()
        self._abandoned_threads = 0

    def trajectories(self) -> list[Trajectory]:
        return [self._finished[index] for index in sorted(self._finished)]

    async def work(self, slot: EnvironmentSlot) -> None:
        """Plays episodes until no specs are left."""
        try:
            for index, spec in self._specs:
                self._claim(spec)
                await asyncio.sleep(0)  # or one worker whose episodes fail at once would take all specs
                trajectory = await self._play(spec, slot)
                self._finished[index] = trajectory
                if self._on_trajectory is not None:
                    self._on_trajectory(trajectory)
                self.ledger.finish(trajectory)
                self._check_threads(slot)
        finally:
            with anyio.CancelScope(shield=True):
                await slot.close(self.limits.call_timeout_s)

    async def _play(self, spec: EpisodeSpec, slot: EnvironmentSlot) -> Trajectory:
        """The episode, played again in a fresh environment while infrastructure fails and retries are left."""
        for attempt in range(1, self._failures.retries + 2):
            trajectory = await play_episode(
                spec, attempt=attempt, slot=slot, policy=self._policy, rubric=self._rubric, limits=self.limits
            )
            await slot.recycle(self.limits.call_timeout_s)
            if trajectory.failure is None:
                break
        return trajectory

    def _claim(self, spec: EpisodeSpec) -> None:
        if spec.episode_id in self._episode_ids:
            raise ValueError(f"episode id '{spec.episode_id}' came twice; rewards are keyed by it, so make ids unique")
        self._episode_ids.add(spec.episode_id)
        self.ledger.start()

    def _check_threads(self, slot: EnvironmentSlot) -> None:
        self._abandoned_threads += slot.abandoned_threads
        slot.abandoned_threads = 0
        if self._abandoned_threads > MAX_ABANDONED_THREADS:
            raise DeedRLError(
                f"{self._abandoned_threads} environment calls hang and cannot be stopped (they wait outside Python); "
                "give those tools time-outs of their own or run the environment in a process (ProcessEnvironment)"
            )
