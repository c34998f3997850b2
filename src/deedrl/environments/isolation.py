"""An environment in a process of its own, so that a call that cannot be interrupted can still be ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from multiprocessing import Pipe
from typing import Any, ClassVar

import gymnasium

from deedrl.environments.contract import checked_verdict
from deedrl.environments.environment import Environment, read_action, read_task
from deedrl.environments.loading import load_environment
from deedrl.environments.worker import Problem, Reply, Request, pack, unpack
from deedrl.errors import DeedRLError
from deedrl.tools.tool import ToolCrash
from deedrl.tools.toolbox import Toolbox
from deedrl.types import Action, Task, Verdict

START_LIMIT_S = 60.0
"""Longest time a worker may take to import the environment."""
GRACE_S = 1.0
"""How long after the interrupt a worker may take to answer before it is killed."""


class WorkerDied(RuntimeError):
    """The environment's process ended by itself or had to be ended: infrastructure trouble, worth a retry."""


class WorkerTimeout(WorkerDied):
    """The environment's process did not answer within its limit and was killed."""


class WorkerRaised(RuntimeError):
    """An exception in the environment's process that has no class here; the message has its name and place."""

    def __init__(self, message: str, trace: str = "") -> None:
        super().__init__(message)
        self.trace = trace
        """The traceback in that process; a failed episode keeps it as ``failure.trace``."""


class ProcessEnvironment(Environment):
    """The environment behind `factory_ref`, run in a worker process, with the same interface (POSIX only).

    A tool gets the smaller of its own ``timeout_s`` and `call_timeout_s`. Past it the call is interrupted and
    becomes an error observation, and the episode goes on. If the interrupt has no effect the worker is killed and
    the step is `truncated` with ``info["timed_out"]`` True; the state is lost, so `current_verdict` says not solved.
    A worker that dies raises `WorkerDied`; the next `reset` builds a new one. `close` leaves no process behind.

    Every `reset` sends the worker a seed: the one given, or one drawn from this object's own random stream.
    """

    limit_grace_s: ClassVar[float] = GRACE_S + 0.5
    """The runner waits this much beyond a call's limit, so that the worker's own end of the call comes first."""
    reset_grace_s: ClassVar[float] = START_LIMIT_S + limit_grace_s
    """The same for `reset`, which may have to start a worker first; many starting at once take long."""

    def __init__(self, factory_ref: str, call_timeout_s: float = 30.0) -> None:
        self.factory_ref = factory_ref
        self.call_timeout_s = call_timeout_s
        self.environment_class = load_environment(factory_ref)
        self._take_over(self.environment_class)
        self._worker: Worker | None = None
        self._task: Task | None = None
        self._state_lost = False

    def _take_over(self, cls: type[Environment]) -> None:
        """What is asked of this object is what `cls` says."""
        vars(self).update({name: getattr(cls, name) for name in ("instructions", "max_steps", "tools")})

    @property
    def toolbox(self) -> Toolbox:
        """The tools the current task allows, for their schemas and limits; only `step` runs them."""
        return self.tools if self._task is None else self.tools.restricted(self._task.tools)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        gymnasium.Env.reset(self, seed=seed)
        task = (options or {}).get("task")
        request = Request(
            operation="reset",
            limit_s=self.call_timeout_s,
            seed=int(self.np_random.integers(2**62)) if seed is None else seed,
            task=None if task is None else read_task(task),
        )
        self._task, self._state_lost = None, False
        reply = self._reset_used_worker(request) or self._reset_new_worker(request)
        assert reply.task is not None
        self.task = self._task = reply.task
        self._take_over(self.environment_class.played_by(reply.task))
        return reply.observation, {"task_id": reply.task.id}

    def step(self, action: Action | Mapping[str, Any] | str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        toolbox = self.toolbox
        read = read_action(action, toolbox.schemas())
        used = toolbox.get(read.tool_name or "")
        limit_s = self.call_timeout_s if used is None else min(self.call_timeout_s, used.timeout_s)
        try:
            reply = self._call(Request(operation="step", limit_s=limit_s, action=read))
        except WorkerTimeout:
            self._state_lost = True
            told = f"{read.tool_name} did not finish within {limit_s:g} s; the episode had to be ended"
            return told, 0.0, False, True, {"ok": False, "ended_by": None, "timed_out": True}
        info: dict[str, Any] = {"ok": reply.ok, "ended_by": reply.ended_by}
        if reply.interrupted:
            info["interrupted"] = True
        if reply.verdict is not None:
            info["verdict"] = reply.verdict
        solved = reply.verdict is not None and self._checked(reply.verdict).solved
        return reply.observation, float(solved), reply.terminated, reply.truncated, info

    def current_verdict(self) -> Verdict:
        if self._state_lost:
            return Verdict(solved=False)
        return self._checked(self._ask("verdict").verdict)

    def state_hash(self) -> str | None:
        return None if self._state_lost else self._ask("state_hash").text

    def demonstrate(self, task: Task) -> Sequence[Action]:
        return self._ask("demonstrate", task).actions

    def close(self) -> None:
        """Closes the environment in the worker if it still answers, then ends the worker and all it started."""
        if self._worker is not None and self._worker.alive:
            self._worker.close(min(self.call_timeout_s, 5.0))
        self._drop_worker()

    def _reset_used_worker(self, request: Request) -> Reply | None:
        """None if there is no worker of an earlier episode, or only one that has died since."""
        if self._worker is None or not self._worker.alive:
            return None
        try:
            return self._call(request)
        except WorkerTimeout:
            raise
        except WorkerDied:
            return None

    def _reset_new_worker(self, request: Request) -> Reply:
        self._drop_worker()
        self._worker = Worker(self.factory_ref)
        return self._call(request)

    def _ask(self, operation: Any, task: Task | None = None) -> Reply:
        return self._call(Request(operation=operation, limit_s=self.call_timeout_s, task=task))

    def _call(self, request: Request) -> Reply:
        if self._worker is None:
            raise gymnasium.error.ResetNeeded(f"{request.operation} before reset(); call reset() first")
        reply = self._worker.call(request, request.limit_s + GRACE_S)
        if reply.problem is not None:
            raise _as_exception(reply.problem)
        return reply

    def _checked(self, verdict: Verdict | None) -> Verdict:
        return checked_verdict(verdict, self.environment_class.__name__)

    def _drop_worker(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.kill()


class Worker:
    """The parent's end of one worker process. `kill` may be called from any thread, also during a `call`."""

    def __init__(self, factory_ref: str) -> None:
        self._connection, other = Pipe()
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "deedrl.environments.worker", str(other.fileno()), factory_ref],
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
        self._busy = threading.Lock()
        self.kill = weakref.finalize(self, _end, self._process)
        reply = self._receive("start", START_LIMIT_S)
        if reply.problem is not None:
            self.kill()
            raise _as_exception(reply.problem)

    @property
    def alive(self) -> bool:
        """False once the process is gone: an idle worker sends nothing, so what can be read is the stream's end."""
        return bool(self.kill.alive) and not self._connection.poll(0)

    def call(self, request: Request, limit_s: float) -> Reply:
        """The worker's reply; `WorkerTimeout` after `limit_s` seconds and `WorkerDied` if it is gone."""
        with self._busy:
            if not self.kill.alive:
                raise WorkerDied("the environment's process was ended; reset() starts a new one")
            try:
                self._connection.send_bytes(pack(request))
            except OSError as error:
                raise self._died(request.operation) from error
            return self._receive(request.operation, limit_s)

    def close(self, limit_s: float) -> None:
        """Lets the environment clean up, unless it is busy or does not answer."""
        if not self._busy.acquire(blocking=False):
            return
        try:
            self._connection.send_bytes(pack(Request(operation="close", limit_s=limit_s)))
            self._receive("close", limit_s + GRACE_S)
        except (WorkerDied, OSError):
            return
        finally:
            self._busy.release()

    def _receive(self, operation: str, limit_s: float) -> Reply:
        try:
            if self._connection.poll(limit_s):
                return unpack(self._connection.recv_bytes(), Reply)
        except (EOFError, OSError) as error:
            raise self._died(operation) from error
        self.kill()
        raise WorkerTimeout(f"the environment's process did not answer '{operation}' within {limit_s:g} s; killed")

    def _died(self, operation: str) -> WorkerDied:
        self.kill()
        code = self._process.returncode
        return WorkerDied(f"the environment's process ended during '{operation}' (exit code {code})")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kills the worker's whole process group; it is not reaped before, so the group's number is still its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _as_exception(problem: Problem) -> Exception:
    if problem.kind == "ToolCrash":
        crash = ToolCrash(problem.tool_name or "", RuntimeError(problem.message), problem.parameters)
        crash.add_note(problem.where)
        return crash
    for kind in DeedRLError.__subclasses__():
        if kind.__name__ == problem.kind:
            return kind(problem.message)
    return WorkerRaised(f"{problem.kind}: {problem.message}{problem.place}", problem.where)
