"""Where an environment's synchronous methods run: on a thread of its own with a time limit, or inline.

Each blocking environment keeps one thread for its whole life, because many libraries (SQLite connections, browser
drivers) refuse to be used from another thread than the one that made them. Threads of a general pool give no such
promise, and theirs keep the process alive when a call never returns; these are daemon threads.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import anyio

from deedrl.tools.limits import ToolInterrupted, interrupt_thread

T = TypeVar("T")

INTERRUPT_EVERY_S = 0.05
INTERRUPT_FOR_S = 1.0
"""How long a call over its limit is interrupted before its thread is given up."""


class CallTimeout(Exception):
    """A call of the environment was not done within its limit."""


class Calls(Protocol):
    """Runs an environment's methods."""

    @property
    def stuck(self) -> bool:
        """True if a call over its limit could not be ended, so that the environment must not be touched again."""
        ...

    async def run(self, function: Callable[[], T], limit_s: float) -> T: ...

    def close(self) -> None: ...


class InlineCalls:
    """Runs each call in the event loop: for environments whose calls take microseconds.

    A limit cannot be enforced here: nothing else runs until the call returns.
    """

    stuck = False

    async def run(self, function: Callable[[], T], limit_s: float) -> T:
        return _without_exit(function)

    def close(self) -> None:
        """There is nothing to end."""


class ThreadCalls:
    """Runs all calls of one environment on one daemon thread, one after another, each under a limit."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.stuck = False

    async def run(self, function: Callable[[], T], limit_s: float) -> T:
        """The function's result or exception; `CallTimeout` after `limit_s`, once the call has been interrupted.

        Python code is interrupted for up to `INTERRUPT_FOR_S`. A call that ignores that, or sleeps in C, leaves
        `stuck` set; its thread ends when the call does.
        """
        if self.stuck:
            raise RuntimeError("an earlier call of this environment still hangs; a fresh environment is needed")
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="deedrl-environment", daemon=True)
            self._thread.start()
        call = _Call(function, asyncio.get_running_loop())
        self._queue.put(call)
        try:
            with anyio.move_on_after(limit_s):
                await asyncio.shield(call.future)
        finally:
            if not call.future.done():
                await self._interrupt(call)
        if call.interrupted:
            raise CallTimeout(f"no result within {limit_s:g} s")
        result, error = call.future.result()
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]

    async def _interrupt(self, call: _Call) -> None:
        with anyio.CancelScope(shield=True):
            for _ in range(round(INTERRUPT_FOR_S / INTERRUPT_EVERY_S)):
                call.interrupt()
                await asyncio.wait((call.future,), timeout=INTERRUPT_EVERY_S)
                if call.future.done():
                    return
        self.stuck = True

    def close(self) -> None:
        """Lets the thread end after the calls it has; returns at once."""
        self._queue.put(None)

    def _serve(self) -> None:
        while (call := self._queue.get()) is not None:
            call.execute()


class _Call:
    """One call on its way to the thread and back. The future's value is (result, exception)."""

    def __init__(self, function: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> None:
        self._function = function
        self._loop = loop
        self._lock = threading.Lock()
        self._thread_id: int | None = None
        self.future: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
        self.interrupted = False

    def interrupt(self) -> None:
        """Asks the function to stop. The lock makes sure that no later call on the thread is hit."""
        with self._lock:
            self.interrupted = True
            if self._thread_id is not None:
                interrupt_thread(self._thread_id)

    def execute(self) -> None:
        outcome: tuple[Any, BaseException | None] = (None, None)
        try:
            with self._lock:
                if not self.interrupted:
                    self._thread_id = threading.get_ident()
            if self._thread_id is not None:
                outcome = self._outcome()
            with self._lock:
                self._thread_id = None
            for _ in range(3):  # an interrupt sent in the last moment is raised here, inside this try
                threading.get_ident()
        except ToolInterrupted:
            self._thread_id = None
        with suppress(RuntimeError):  # raised when the loop has been closed: nobody waits for the result
            self._loop.call_soon_threadsafe(self._deliver, outcome)

    def _outcome(self) -> tuple[Any, BaseException | None]:
        try:
            return _without_exit(self._function), None
        except BaseException as error:  # noqa: BLE001  handed to the waiting coroutine, which raises it
            return None, error

    def _deliver(self, outcome: tuple[Any, BaseException | None]) -> None:
        if not self.future.done():
            self.future.set_result(outcome)


def _without_exit(function: Callable[[], T]) -> T:
    """Calls `function`; a tool that calls ``sys.exit`` must not end the run (case D01).

    Nor must one in which something of its own was cancelled: here that would look like the end of the episode's task,
    and the episode would be lost without a word.
    """
    try:
        return function()
    except SystemExit as error:
        raise RuntimeError(f"the environment tried to exit the process (code {error.code})") from error
    except (asyncio.CancelledError, GeneratorExit) as error:
        raise RuntimeError(f"{type(error).__name__} came out of the environment; something in it was ended") from error
