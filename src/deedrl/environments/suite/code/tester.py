"""Runs pytest for whoever asks, request by request: started once inside a sandbox, it forks a child for each run.

Importing pytest takes ten times as long as running a few tests. A script of its own: it imports nothing of DeedRL,
which the sandbox does not show it. Requests and answers are lines of JSON on standard input and output.
"""

from __future__ import annotations

import json
import os
import resource
import select
import shutil
import signal
import sys
import time
from typing import Any

LARGEST_ANSWER = 60_000


class Results:
    """A pytest plugin: name, outcome and first line of what went wrong of each test."""

    def __init__(self) -> None:
        self.found: list[list[str]] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.found.append([report.nodeid.rpartition("::")[2], report.outcome, _reason(report)])

    def pytest_collectreport(self, report: Any) -> None:
        if report.outcome != "passed":
            self.found.append([report.nodeid, "failed", _reason(report)])


def _reason(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(crash.message if crash is not None else report.longrepr or "")
    return text.strip().splitlines()[0][:200] if text.strip() else ""


def child(request: dict[str, Any], answer: int) -> None:
    """Runs the tests of a request and writes what came of them to `answer`; never returns."""
    import pytest

    silent = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(silent, descriptor)
    for name, value in request["limits"].items():
        resource.setrlimit(getattr(resource, name), (value, value))
    sys.path.insert(0, os.getcwd())
    sys.dont_write_bytecode = True
    results = Results()
    code = pytest.main(
        ["-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", ".", *request["tests"]], plugins=[results]
    )
    text = json.dumps({"code": int(code), "results": results.found})[:LARGEST_ANSWER]
    os.write(answer, text.encode())
    os._exit(0)


def run(request: dict[str, Any], alone: bool) -> dict[str, Any]:
    """What came of a request. `alone`: all other processes that can be seen are this request's, and are ended."""
    for entry in os.scandir("."):
        shutil.rmtree(entry.path) if entry.is_dir(follow_symlinks=False) else os.unlink(entry.path)
    for name, text in request["files"].items():
        with open(name, "w", encoding="utf-8") as file:
            file.write(text)
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.close(ours)
        try:
            child(request, theirs)
        finally:
            os._exit(70)
    os.close(theirs)
    deadline, text, ended = time.monotonic() + request["wall_s"], b"", False
    while time.monotonic() < deadline and len(text) <= LARGEST_ANSWER:
        if select.select([ours], [], [], max(0.0, deadline - time.monotonic()))[0]:
            part = os.read(ours, 65_536)
            text += part
            if not part:
                ended = True
                break
    os.kill(-1, signal.SIGKILL) if alone else _kill_group(pid)
    os.close(ours)
    os.waitpid(pid, 0)
    try:
        return dict(json.loads(text))
    except ValueError:
        return {"code": -1, "results": [], "stopped": "crashed" if ended else "time"}


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def main() -> None:
    import _pytest.assertion.rewrite  # noqa: F401 - what a run would import first
    import pytest  # noqa: F401

    alone = sys.argv[1] == "alone"
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(run(json.loads(line), alone)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
