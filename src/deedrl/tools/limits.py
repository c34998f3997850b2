"""Ways to stop a call that does not return: an exception in its thread, an alarm in its process."""

from __future__ import annotations

import asyncio
import ctypes
import signal
import threading
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import FrameType
from typing import Any

from deedrl.errors import ToolError


class ToolInterrupted(BaseException):
    """Raised inside a call that went past its limit; not an `Exception`, so that ``except Exception`` lets it pass."""


class ToolTimeout(ToolError):
    """A tool kept its own limit: what the model is told was decided by the clock."""


def interrupt_thread(thread_id: int) -> bool:
    """Raises `ToolInterrupted` in the thread with this identifier at its next Python instruction.

    Stops a loop in Python. Does nothing to a thread blocked in C (``time.sleep``, a socket) until that call
    returns; only `ProcessEnvironment` can end those. False if there is no such thread.
    """
    changed = ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), ctypes.py_object(ToolInterrupted))
    return int(changed) == 1


@contextmanager
def alarm(limit_s: float, kind: type[BaseException] = ToolInterrupted) -> Iterator[None]:
    """Raises `kind` in the body after `limit_s` seconds, also out of ``time.sleep`` and other waits.

    Works in the main thread of a process on systems with interval timers; elsewhere it raises `RuntimeError`.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        raise RuntimeError("alarm() needs the main thread of a process on a POSIX system; use a worker process")

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise kind

    previous = signal.signal(signal.SIGALRM, stop)
    began, outer_s = time.monotonic(), 0.0
    try:
        outer_s, _ = signal.setitimer(signal.ITIMER_REAL, limit_s)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, previous)
        if outer_s:  # an alarm around this one goes on, with what is left of its time
            signal.setitimer(signal.ITIMER_REAL, max(outer_s - (time.monotonic() - began), 0.001))


def run_coroutine(coroutine: Coroutine[Any, Any, Any], limit_s: float, what: str) -> Any:
    """Runs `coroutine` to its end from synchronous code, also where an event loop is already running.

    Past `limit_s` seconds it is cancelled and `ToolTimeout` says so in the name of `what`.
    """

    async def limited() -> Any:
        deadline = asyncio.timeout(limit_s)
        try:
            async with deadline:
                return await coroutine
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise ToolTimeout(f"{what} did not finish within {limit_s:g} s") from error

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(limited())
    with ThreadPoolExecutor(max_workers=1) as threads:
        return threads.submit(asyncio.run, limited()).result()
