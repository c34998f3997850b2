"""The one space that observations and actions live in: text of any script."""

from __future__ import annotations

import functools
import string
from typing import Any

from gymnasium import spaces

_SAMPLE_CHARACTERS = string.ascii_letters + string.digits + string.punctuation + " \n"


class AnyText(spaces.Text):
    """Every Python string belongs to it; `sample` draws short printable ASCII."""

    def __init__(self) -> None:
        for name, value in _laid_out().items():
            setattr(self, name, value)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str)

    def __repr__(self) -> str:
        return "AnyText()"


@functools.cache
def _laid_out() -> dict[str, Any]:
    """The attributes of such a space that is not seeded yet.

    Gymnasium makes some two hundred objects of its characters, more than the rest of a small environment. None of them
    is ever changed, so all spaces share them; random state, which each space has for itself, is not among them.
    """
    return dict(vars(spaces.Text(max_length=64, min_length=0, charset=_SAMPLE_CHARACTERS)))
