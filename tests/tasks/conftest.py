from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from deedrl.types import Task


@pytest.fixture
def make() -> Callable[..., Task]:
    """A task whose content is its prompt."""

    def make_task(prompt: str, **fields: Any) -> Task:
        return Task.create(prompt=prompt, **fields)

    return make_task
