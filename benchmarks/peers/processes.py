"""An engine in a process and a virtual environment of its own; see `engines/serving.py` for the other side."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ENGINES = Path(__file__).resolve().parent / "engines"
ENVIRONMENTS = Path(".peers")
"""Where `install.py` puts a peer's virtual environment, below the current folder."""
INSTALLED = ("trl", "vllm", "llamacpp")
"""Peers with an environment of their own; the others run in this one."""
ANSWER_LIMIT_S = 7200.0
"""An engine that is silent for longer is ended: it would keep the results of all others back."""
READY = ".ready"
"""Written into an environment when its installation is complete."""


class EngineFailed(Exception):
    """An engine could not be started, or ended instead of answering; the text says where its messages are."""


def script_of(name: str, kind: str) -> Path:
    """The engine's file for a kind of workload, whether it exists or not."""
    return ENGINES / f"{name}_{kind}.py"


class Engine:
    """One engine, ready when it is made and stopped when its context ends.

    What it and its library print goes to ``WORKLOAD.NAME.log``. Raises `EngineFailed`.
    """

    def __init__(self, name: str, workload: Path, kind: str) -> None:
        self.name = name
        self._log = Path(f"{workload}.{kind}.{name}.log")
        command = [_python_of(name), str(script_of(name, kind)), str(workload)]
        with self._log.open("w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        try:
            self.facts: dict[str, Any] = self._answer()["ready"]
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def ask(self, what: str, **request: Any) -> dict[str, Any]:
        """Sends one request and waits for its answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": what, **request}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failure() from None
        return self._answer()

    def stop(self) -> None:
        """Lets the engine end, and ends it where it does not."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        silent = threading.Timer(ANSWER_LIMIT_S, self._process.kill)
        silent.start()
        line = self._process.stdout.readline()
        silent.cancel()
        if not line:
            raise self._failure()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _failure(self) -> EngineFailed:
        code = self._process.wait()
        said = [line for line in self._log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        last = said[-1].strip()[:200] if said else "nothing"
        return EngineFailed(f"{self.name} ended with code {code}, its last words: {last}; all of them: {self._log}")


def _python_of(name: str) -> str:
    if name not in INSTALLED:
        return sys.executable
    folder = ENVIRONMENTS / name
    if not (folder / READY).exists():
        raise EngineFailed(f"{name} is not installed in {folder}; run: python benchmarks/peers/install.py {name}")
    return str(folder / "bin" / "python")
