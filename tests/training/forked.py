"""Processes that meet over gloo, forked: each would import torch again if it was started."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

import torch
import torch.multiprocessing as multiprocessing
from accelerate.state import AcceleratorState


def in_processes(count: int, work: Callable[..., None], *arguments: Any) -> None:
    """Calls `work(rank, count, *arguments)` in each of `count` processes, as a launcher would have started them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    every = (count, port, work, arguments)
    multiprocessing.start_processes(_forked, every, nprocs=count, start_method="fork")  # type: ignore[no-untyped-call]


def _forked(rank: int, count: int, port: int, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    AcceleratorState._reset_state(reset_partial_state=True)  # the parent's
    launched = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    # Or accelerate would start threads, which in a fork wait for those of the parent for ever.
    launched |= {"OMP_NUM_THREADS": 1, "ACCELERATE_USE_CPU": "true"}
    os.environ.update({key: str(value) for key, value in launched.items()})
    work(rank, count, *arguments)
