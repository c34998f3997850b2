"""The protocol between `processes.py` and an engine: a JSON line on stdin asks for something, a JSON line answers.

``{"do": "run"}`` asks for one repetition of the workload, ``{"do": "save", "folder": …}`` for the trained adapter.
Engines run in virtual environments of their own, so this file needs the standard library alone.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def read_work() -> dict[str, Any]:
    """The workload named by the first argument (see `workload.py`)."""
    return json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))


# Before an engine's library is imported, for some print while they are: its own words go to stderr.
_ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


class Requests:
    """Stdin and stdout of an engine. What its library prints goes to stderr.

    `facts` (versions, settings) are told once, when the engine is ready. `save` writes what is trained into a folder.
    """

    def __init__(self, save: Callable[[Path], object] | None = None, **facts: Any) -> None:
        self._save = save
        self._began = 0.0
        self._tell({"ready": facts})

    def wait(self) -> dict[str, Any]:
        """Returns when a repetition is asked for, and starts its clock; ends the process when none will be."""
        for line in iter(sys.stdin.readline, ""):
            request: dict[str, Any] = json.loads(line)
            if request["do"] == "run":
                self._began = time.perf_counter()
                return request
            assert self._save is not None, "this engine trains nothing that could be saved"
            self._save(Path(request["folder"]))
            self._tell({"saved": request["folder"]})
        raise SystemExit(0)

    def answer(self, tokens: int, **more: Any) -> None:
        """The repetition is over; `tokens` says how much was done."""
        seconds = time.perf_counter() - self._began
        peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
        self._tell({"seconds": seconds, "tokens": tokens, "peak_gb": peak_gb, **more})

    def _tell(self, message: dict[str, Any]) -> None:
        _ANSWERS.write(json.dumps(message) + "\n")
        _ANSWERS.flush()


def serve(play: Callable[[], int], **facts: Any) -> None:
    """Calls `play`, which does the whole workload once and returns its tokens, whenever a repetition is asked for."""
    requests = Requests(**facts)
    while True:
        requests.wait()
        requests.answer(play())


def play_turn_by_turn(work: dict[str, Any], sample: Callable[[list[list[int]]], list[list[int]]]) -> int:
    """Drives an engine that takes whole conversations: all episodes' turns together, then what they are told."""
    conversations = [list(episode["context"]) for episode in work["episodes"]]
    tokens = 0
    for turn in range(work["turns"]):
        sampled = sample(conversations)
        tokens += sum(map(len, sampled))
        for conversation, new, episode in zip(conversations, sampled, work["episodes"], strict=True):
            conversation += new
            if turn + 1 < work["turns"]:
                conversation += episode["extensions"][turn]
    return tokens
