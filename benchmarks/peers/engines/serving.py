"""The protocol between `compare.py` and an engine: a line on stdin asks for one repetition, a JSON line answers.

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

Episode = dict[str, Any]


def read_work() -> dict[str, Any]:
    """The workload named by the first argument (see `workload.py`)."""
    return json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))


def serve(play: Callable[[], int], **facts: Any) -> None:
    """Answers until stdin closes. `play` does the whole workload once and returns how many tokens it sampled.

    `facts` (versions, settings) are told once, when the engine is ready. What engines print themselves goes to stderr.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _tell(answers, {"ready": facts})
    for _ in sys.stdin:
        began = time.perf_counter()
        tokens = play()
        seconds = time.perf_counter() - began
        peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
        _tell(answers, {"seconds": seconds, "tokens": tokens, "peak_gb": peak_gb})


def _tell(answers: Any, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


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
