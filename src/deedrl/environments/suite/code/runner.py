"""Test runs of all copies of the environment: a few sandboxes a process, used in turn, made anew when they break."""

from __future__ import annotations

import atexit
import importlib.util
import json
import os
import queue
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from deedrl.errors import EnvironmentAuthorError
from deedrl.tools.sandbox import SandboxLimits, clean_environment, isolated, missing_isolation
from deedrl.types import Record

START_LIMIT_S = 60.0
GRACE_S = 3.0
"""How long after a run's limit a sandbox may take to answer before it is given up."""
LIMITS = SandboxLimits(cpu_s=2, wall_s=20.0, memory_mb=1024, file_mb=1)
MEGABYTE = 1024 * 1024


class TestRun(Record, frozen=True, kw_only=True):
    """What came of a run of pytest."""

    __test__ = False

    passed: tuple[str, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()
    """Name and first line of what went wrong."""
    stopped: str | None = None
    """``crashed`` if the run did not come to its end: processor time, memory, or an end of its own making."""

    @property
    def ok(self) -> bool:
        """Whether there were tests and all of them passed."""
        return self.stopped is None and not self.failed and bool(self.passed)


class TestRunner:
    """Sandboxes for test runs, as many as there are processors; each run has one for itself."""

    __test__ = False

    def __init__(self, count: int | None = None) -> None:
        self._idle: queue.LifoQueue[_Sandbox] = queue.LifoQueue()
        for _ in range(count or len(os.sched_getaffinity(0))):
            self._idle.put(_Sandbox())

    def run(self, files: Mapping[str, str], tests: Sequence[str]) -> TestRun:
        """Runs the test files named in `tests` among `files` (name → text) in an otherwise empty folder."""
        sandbox = self._idle.get()
        try:
            return sandbox.run(files, tests)
        finally:
            self._idle.put(sandbox)

    def close(self) -> None:
        """Ends all sandboxes that are not in use; a later run starts them again."""
        held = []
        while not self._idle.empty():
            held.append(self._idle.get())
        for sandbox in held:
            sandbox.stop()
            self._idle.put(sandbox)


class _Sandbox:
    """One process that runs tests, started at its first use."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def run(self, files: Mapping[str, str], tests: Sequence[str]) -> TestRun:
        limits = {
            "RLIMIT_CPU": LIMITS.cpu_s,
            "RLIMIT_AS": LIMITS.memory_mb * MEGABYTE,
            "RLIMIT_FSIZE": LIMITS.file_mb * MEGABYTE,
            "RLIMIT_NOFILE": LIMITS.open_files,
            "RLIMIT_CORE": 0,
        }
        request = {"files": dict(files), "tests": list(tests), "limits": limits, "wall_s": LIMITS.wall_s}
        answer = self._ask(json.dumps(request)) or self._ask_anew(json.dumps(request))
        found = [(str(name), str(outcome), str(reason)) for name, outcome, reason in answer["results"]]
        return TestRun(
            passed=tuple(name for name, outcome, _ in found if outcome == "passed"),
            failed=tuple((name, reason) for name, outcome, reason in found if outcome != "passed"),
            stopped=answer.get("stopped"),
        )

    def _ask_anew(self, line: str) -> dict[str, Any]:
        """Asks once more in a new process; no answer then either is trouble of the machine and no one's mistake."""
        self.stop()
        answer = self._ask(line)
        if answer is None or answer.get("stopped") == "time":
            self.stop()
            raise OSError(f"a sandbox for tests gave no answer within {LIMITS.wall_s:g} s; is the machine overloaded?")
        return answer

    def _ask(self, line: str) -> dict[str, Any] | None:
        process = self._process or self._start()
        assert process.stdin is not None
        try:
            process.stdin.write(line + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            return None
        told = _line(process, LIMITS.wall_s + GRACE_S)
        try:
            answer = None if told is None else msgspec.json.decode(told, type=dict[str, Any])
        except msgspec.DecodeError:
            return None
        # A program that computes is ended by its limit of processor time; waiting is the machine's.
        return None if answer is None or answer.get("stopped") == "time" else answer

    def _start(self) -> subprocess.Popen[str]:
        if importlib.util.find_spec("pytest") is None:
            raise EnvironmentAuthorError("the environment CodeRepair runs pytest, which is missing; pip install pytest")
        self._folder = tempfile.TemporaryDirectory(prefix="deedrl-tests-", ignore_cleanup_errors=True)
        script = Path(__file__).with_name("tester.py")
        alone = "alone" if missing_isolation() is None else "shared"
        process = subprocess.Popen(
            isolated(
                [sys.executable, str(script), alone], Path(self._folder.name), read=[script], outlives_thread=True
            ),
            cwd=self._folder.name,
            env={**clean_environment(), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self._process = process
        weakref.finalize(self, _kill, process)
        if _line(process, START_LIMIT_S) != "ready":
            self.stop()
            raise OSError("the sandbox for tests did not start; is pytest installed where this Python finds it?")
        return process

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            _kill(process)
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


def _line(process: subprocess.Popen[str], limit_s: float) -> str | None:
    """The next line of the process; None at its end or after the limit."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        if not selector.select(limit_s):
            return None
    return process.stdout.readline().strip() or None


def _kill(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


_lock = threading.Lock()
_runners: dict[int, TestRunner] = {}


def shared_runner() -> TestRunner:
    """This process's runner; after a fork a new one."""
    with _lock:
        if os.getpid() not in _runners:
            _runners.clear()
            _runners[os.getpid()] = TestRunner()
            atexit.register(_runners[os.getpid()].close)
        return _runners[os.getpid()]
