"""Private copies of tasks. An episode makes several of each, so they are not left to `copy.deepcopy`, which is slow."""

from __future__ import annotations

import copy
from typing import Any

import msgspec

from deedrl.types import Task

_UNCHANGING = frozenset({str, int, float, bool, type(None)})


def private_copy(task: Task) -> Task:
    """`task` with states and lists of its own, so that whoever changes the copy changes nothing else."""
    return msgspec.structs.replace(task, **{name: _copied(getattr(task, name)) for name in task.__struct_fields__})


def _copied(value: Any) -> Any:
    """A deep copy. Plain data is copied directly; a part that occurs twice in it becomes two."""
    kind = type(value)
    if kind in _UNCHANGING:
        return value
    if kind is list:
        return [item if type(item) in _UNCHANGING else _copied(item) for item in value]
    if kind is dict:
        return {key: item if type(item) in _UNCHANGING else _copied(item) for key, item in value.items()}
    return copy.deepcopy(value)
