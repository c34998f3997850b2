"""The one space that observations and actions live in: text of any script."""

from __future__ import annotations

import string
from typing import Any

from gymnasium import spaces

_SAMPLE_CHARACTERS = string.ascii_letters + string.digits + string.punctuation + " \n"


class AnyText(spaces.Text):
    """Every Python string belongs to it; `sample` draws short printable ASCII."""

    def __init__(self) -> None:
        super().__init__(max_length=64, min_length=0, charset=_SAMPLE_CHARACTERS)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)

    def __repr__(self) -> str:
        return "AnyText()"
