"""An update on a thread beside sampling."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Updated = TypeVar("Updated")
Sampled = TypeVar("Sampled")


def while_updating(update: Callable[[], Updated], sample: Callable[[], Sampled]) -> tuple[Updated, Sampled]:
    """Runs `update` on a thread of its own while `sample` runs here, where Ctrl-C arrives; returns both results.

    Both have ended when this returns or raises. An exception of `sample` comes before one of `update`.
    """
    threads = torch.get_num_threads()

    def updated() -> Updated:
        torch.set_num_threads(threads)  # a new thread starts with as many as the machine has cores
        return update()

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="deedrl-update") as executor:
        future = executor.submit(updated)
        sampled = sample()
        return future.result(), sampled
