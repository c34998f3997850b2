"""One place for an environment: builds it, runs its calls, and replaces it when it can no longer be trusted."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar, cast

import anyio
import gymnasium

from deedrl.environments.environment import Environment
from deedrl.errors import EnvironmentAuthorError
from deedrl.redaction import loggable
from deedrl.rollouts.calls import Calls, InlineCalls, ThreadCalls

T = TypeVar("T")

log = logging.getLogger(__name__)

AnyEnvironment = gymnasium.Env[str, Any]
"""An `Environment`, bare or inside Gymnasium wrappers."""


class EnvironmentSource:
    """Makes environments and knows whether their calls block (attribute `blocking` of the class, True if absent)."""

    def __init__(self, factory: Callable[[], AnyEnvironment]) -> None:
        self._factory = factory
        self._asking: anyio.Event | None = None
        self._blocking = bool(getattr(factory, "blocking", True)) if isinstance(factory, type) else None

    def make(self) -> AnyEnvironment:
        """A new environment; what is not one of ours raises `EnvironmentAuthorError`."""
        environment = self._factory()
        if not isinstance(getattr(environment, "unwrapped", None), Environment):
            raise EnvironmentAuthorError(
                f"expected the environment factory to return a deedrl Environment, got {type(environment).__name__}; "
                "pass the class or a function that makes an instance"
            )
        return environment

    async def blocking(self, limit_s: float) -> bool:
        """Asked of an instance made for this: a factory may be any function.

        The first caller asks and the others wait for it; if it fails, the next of them asks again.
        """
        while self._blocking is None:
            if self._asking is not None:
                await self._asking.wait()
                continue
            self._asking = anyio.Event()
            try:
                self._blocking = await self._ask(limit_s)
            finally:
                self._asking.set()
                self._asking = None
        return self._blocking

    async def _ask(self, limit_s: float) -> bool:
        calls = ThreadCalls()
        try:
            environment = await calls.run(self.make, limit_s)
            answer = bool(getattr(environment.unwrapped, "blocking", True))
            await calls.run(environment.close, limit_s)
        finally:
            calls.close()
        return answer


class EnvironmentSlot:
    """Holds one environment for episodes that follow each other.

    A healthy environment is used again after `reset`. Whoever finds it hung or crashed sets `broken`; `recycle`
    then closes it, and the next episode builds a fresh one (case D21).
    """

    def __init__(self, source: EnvironmentSource) -> None:
        self._source = source
        self._calls: Calls | None = None
        self._environment: AnyEnvironment | None = None
        self.broken = False
        self.abandoned_threads = 0

    @property
    def wrapped(self) -> AnyEnvironment:
        """The environment with its wrappers; `build` comes first."""
        if self._environment is None:
            raise RuntimeError("no environment in this slot; call build() first")
        return self._environment

    @property
    def base(self) -> Environment:
        """The environment inside all wrappers."""
        return cast(Environment, self.wrapped.unwrapped)

    @property
    def stuck(self) -> bool:
        """True while a call that could not be stopped still runs in the environment."""
        return self._calls is not None and self._calls.stuck

    async def build(self, limit_s: float) -> None:
        """Makes an environment if there is none."""
        if self._environment is not None:
            return
        if self._calls is None:
            self._calls = ThreadCalls() if await self._source.blocking(limit_s) else InlineCalls()
        self._environment = await self._calls.run(self._source.make, limit_s)

    async def call(self, function: Callable[[], T], limit_s: float) -> T:
        """Runs a method of the environment; see `Calls.run`."""
        if self._calls is None:
            raise RuntimeError("no environment in this slot; call build() first")
        return await self._calls.run(function, limit_s)

    async def recycle(self, limit_s: float) -> None:
        """After an episode: throws a broken environment away and keeps a healthy one."""
        if self.broken:
            await self.close(limit_s)
            self.broken = False

    async def close(self, limit_s: float) -> None:
        """Closes the environment; its exceptions are logged, since no episode depends on it any more.

        While a call still hangs in it, it is closed from another thread: that frees processes and connections,
        and often ends the hanging call.
        """
        environment, calls = self._environment, self._calls
        self._environment = self._calls = None
        if calls is None:
            return
        if environment is not None:
            closer = ThreadCalls() if calls.stuck else calls
            try:
                await closer.run(environment.close, limit_s)
            except Exception as error:  # noqa: BLE001  the boundary for teardown: reported, never in an episode's way
                trouble = loggable(f"{type(error).__name__}: {error}")
                log.warning("close() of %s failed: %s", type(environment).__name__, trouble)
            closer.close()
        calls.close()
        self.abandoned_threads += calls.stuck
