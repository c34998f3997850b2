"""Gymnasium's spaces in words, as parameters of a tool, and back as samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from gymnasium import Space, spaces
from msgspec import Meta

from deedrl.errors import EnvironmentAuthorError, ToolError

MOST_NUMBERS = 16
"""Numbers in an action, or in an observation that is put into words without an author's help."""


def in_words(space: Space[Any], names: Sequence[str] = ()) -> str:
    """What values of `space` are, e.g. ``a number from 0 to 3``; `names` are those of a `Discrete` space's values."""
    match space:
        case spaces.Discrete():
            return f"one of {', '.join(names)}" if names else f"a number from {space.start} to {_last(space)}"
        case spaces.MultiDiscrete():
            highest = (space.nvec + space.start - 1).ravel()
            bounds = zip(space.start.ravel(), highest, strict=True)
            return f"a list of {space.nvec.size} numbers: {', '.join(f'{low} to {high}' for low, high in bounds)}"
        case spaces.MultiBinary():
            return f"a list of {int(np.prod(space.shape))} numbers, each 0 or 1"
        case spaces.Box():
            bounds_text = f"from {space.low.min():g} to {space.high.max():g}"
            count = int(np.prod(space.shape))
            return f"a list of {count} numbers {bounds_text}" if space.shape else f"a number {bounds_text}"
        case spaces.Text():
            return f"a text of {space.min_length} to {space.max_length} characters"
        case spaces.Tuple():
            return "; ".join(f"part {index}: {in_words(part)}" for index, part in enumerate(space.spaces, 1))
        case spaces.Dict():
            return "; ".join(f"{key}: {in_words(part)}" for key, part in space.spaces.items())
    raise _unknown(space)


def value_in_words(space: Space[Any], value: Any) -> str:
    """One observation: numbers with at most four digits behind the point, parts with their names."""
    match space:
        case spaces.Tuple():
            parts = zip(space.spaces, value, strict=True)
            return ", ".join(value_in_words(part, entry) for part, entry in parts)
        case spaces.Dict():
            return "; ".join(f"{key}: {value_in_words(part, value[key])}" for key, part in space.spaces.items())
        case spaces.Text():
            return str(value)
        case spaces.Discrete():
            return str(int(value))
        case spaces.MultiDiscrete() | spaces.MultiBinary() | spaces.Box():
            numbers = np.round(np.asarray(value, dtype=np.float64), 4).ravel()
            shown = ", ".join(f"{number:g}" for number in numbers)
            return f"[{shown}]" if space.shape else shown
    raise _unknown(space)


def check_describable(space: Space[Any], what: str) -> None:
    """Raises `EnvironmentAuthorError` for a space whose values would be no text that anyone reads."""
    parts = _parts(space)
    for part in parts:
        if _size(part) > MOST_NUMBERS:
            raise EnvironmentAuthorError(
                f"{what}: expected at most {MOST_NUMBERS} numbers to put into words, got {_size(part)} ({part}); say "
                "what matters of them with describe=..."
            )


def parameters_of(space: Space[Any], names: Sequence[str] = ()) -> dict[str, Any]:
    """The type of each parameter of a tool that takes an action of `space`.

    `Dict` has one for each key and `Tuple` one for each part (``part_1``, …); any other space is ``action``.
    """
    if names and not isinstance(space, spaces.Discrete):
        raise EnvironmentAuthorError(f"names of actions go with a Discrete action space, got {space}; leave them out")
    if isinstance(space, spaces.Discrete) and names and len(names) != space.n:
        raise EnvironmentAuthorError(f"expected a name for each of {space.n} actions, got {len(names)}: {names}")
    return {name: _hint(part, names) for name, part in _named_parts(space).items()}


def to_sample(space: Space[Any], given: Mapping[str, Any], names: Sequence[str] = ()) -> Any:
    """The action that a tool's parameters mean; `ToolError` says what was expected if it is none of `space`."""
    parts = _named_parts(space)
    found = {name: _value(part, given[name], names) for name, part in parts.items()}
    for name, part in parts.items():
        if not part.contains(found[name]):
            raise ToolError(f"{name}: expected {in_words(part, names)}, got {given[name]}")
    if isinstance(space, spaces.Dict):
        return found
    return tuple(found.values()) if isinstance(space, spaces.Tuple) else found["action"]


def _named_parts(space: Space[Any]) -> dict[str, Space[Any]]:
    if isinstance(space, spaces.Dict):
        return dict(space.spaces)
    if isinstance(space, spaces.Tuple):
        return {f"part_{index}": part for index, part in enumerate(space.spaces, 1)}
    return {"action": space}


def _parts(space: Space[Any]) -> list[Space[Any]]:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        inside = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return [part for entry in inside for part in _parts(entry)]
    return [space]


def _hint(space: Space[Any], names: Sequence[str]) -> Any:
    size = _size(space)
    if size > MOST_NUMBERS:
        raise EnvironmentAuthorError(f"expected an action of at most {MOST_NUMBERS} numbers, got {space}")
    match space:
        case spaces.Discrete():
            named: Any = Literal.__getitem__(tuple(names)) if names else None
            return named or Annotated[int, Meta(ge=int(space.start), le=_last(space))]
        case spaces.MultiDiscrete():
            return Annotated[list[int], Meta(min_length=size, max_length=size)]
        case spaces.MultiBinary():
            return Annotated[list[Annotated[int, Meta(ge=0, le=1)]], Meta(min_length=size, max_length=size)]
        case spaces.Box():
            return Annotated[list[float], Meta(min_length=size, max_length=size)] if space.shape else float
        case spaces.Text():
            return Annotated[str, Meta(min_length=space.min_length, max_length=space.max_length)]
    raise _unknown(space)


def _value(space: Space[Any], given: Any, names: Sequence[str]) -> Any:
    match space:
        case spaces.Discrete():
            return np.int64(space.start + names.index(given) if names else given)
        case spaces.MultiDiscrete() | spaces.MultiBinary() | spaces.Box():
            return np.asarray(given, dtype=space.dtype).reshape(space.shape)
    return given


def _size(space: Space[Any]) -> int:
    return int(np.prod(space.shape)) if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary | spaces.Box) else 1


def _last(space: spaces.Discrete) -> int:
    return int(space.start + space.n - 1)


def _unknown(space: Space[Any]) -> EnvironmentAuthorError:
    return EnvironmentAuthorError(
        f"expected Discrete, MultiDiscrete, MultiBinary, Box or Text, alone or in one Tuple or Dict, got {space}; wrap "
        "the game in a gymnasium.ActionWrapper or ObservationWrapper with such a space"
    )
