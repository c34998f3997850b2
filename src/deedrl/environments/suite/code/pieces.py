"""Small functions, each in a right and a wrong form that differ in one line, with calls that tell them apart."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

OPERATORS = {"plus": "+", "minus": "-", "times": "*"}
BOUNDS = {"at least": ">=", "more than": ">", "at most": "<=", "less than": "<"}
COMPUTED: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    ">=": operator.ge,
    ">": operator.gt,
    "<=": operator.le,
    "<": operator.lt,
    "and": lambda first, second: first and second,
    "or": lambda first, second: first or second,
}
VISIBLE, HIDDEN = 2, 5
"""Calls of a function in the tests that are shown, and in those that are not."""

Form = tuple[str, Callable[..., Any]]
"""The expression that a function gives back, and what it computes."""


@dataclass(frozen=True)
class Piece:
    """One function; its last line is the one that may be wrong."""

    name: str
    right: tuple[str, ...]
    """Its lines."""
    wrong: str
    """The last line of the wrong form."""
    text: str
    """What it does, in words."""
    value: Callable[..., Any]
    """What it gives back."""
    wrong_value: Callable[..., Any]
    calls: tuple[tuple[Any, ...], ...]
    """Arguments of the calls in tests; the first `VISIBLE` are shown."""

    @property
    def broken(self) -> tuple[str, ...]:
        return (*self.right[:-1], self.wrong)

    @property
    def told_apart(self) -> bool:
        """Whether the calls that are shown find the wrong form out, and the hidden ones do too."""
        parts = (self.calls[:VISIBLE], self.calls[VISIBLE:])
        return all(any(self.value(*call) != self.wrong_value(*call) for call in part) for part in parts)


@dataclass(frozen=True)
class _Draft:
    """Parameters, what is said of the function, its right and wrong forms, and calls."""

    parameters: Sequence[str]
    text: str
    right: Form
    wrong: Form
    calls: Sequence[tuple[Any, ...]]


def draw_piece(kind: str, outcome: str, rng: Random, name: str, nouns: Sequence[str], *, described: bool) -> Piece:
    """A function of a kind whose right form is decided by `outcome`; `described`: its docstring says what is right."""
    while True:
        draft = _KINDS[kind](outcome, rng, nouns)
        said = [f'    """{draft.text}"""'] if described else []
        right = (f"def {name}({', '.join(draft.parameters)}):", *said, f"    return {draft.right[0]}")
        wrong = f"    return {draft.wrong[0]}"
        piece = Piece(name, right, wrong, draft.text, draft.right[1], draft.wrong[1], tuple(draft.calls))
        if piece.told_apart:
            return piece


def _numbers(rng: Random, count: int) -> list[tuple[int, ...]]:
    return [tuple(rng.randint(2, 30) for _ in range(count)) for _ in range(VISIBLE + HIDDEN)]


def _operator(outcome: str, rng: Random, nouns: Sequence[str]) -> _Draft:
    first, second = nouns[:2]
    signs = OPERATORS[outcome], rng.choice([sign for word, sign in OPERATORS.items() if word != outcome])
    right, wrong = ((f"{first} {sign} {second}", COMPUTED[sign]) for sign in signs)
    return _Draft((first, second), f"{first} {outcome} {second}", right, wrong, _numbers(rng, 2))


def _bound(outcome: str, rng: Random, nouns: Sequence[str]) -> _Draft:
    noun, limit = nouns[0], rng.randint(5, 95)
    signs = BOUNDS[outcome], rng.choice([sign for words, sign in BOUNDS.items() if words != outcome])
    right, wrong = ((f"{noun} {sign} {limit}", partial(_compared, sign, limit)) for sign in signs)
    steps = [0, rng.choice([-1, 1]), *rng.sample([-7, -1, 0, 1, 9], HIDDEN)]
    return _Draft((noun,), f"{noun} is {outcome} {limit}", right, wrong, [(limit + step,) for step in steps])


def _name(outcome: str, rng: Random, nouns: Sequence[str]) -> _Draft:
    parameters, chosen = tuple(nouns[:3]), int(outcome)
    indices = chosen, rng.choice([index for index in range(3) if index != chosen])
    right, wrong = ((parameters[index], partial(_chosen, index)) for index in indices)
    return _Draft(parameters, f"gives the {parameters[chosen]}", right, wrong, _numbers(rng, 3))


def _constant(outcome: str, rng: Random, nouns: Sequence[str]) -> _Draft:
    noun = nouns[0]
    factor = rng.randint(2, 9) if outcome == "small" else rng.randint(11, 99)
    factors = factor, factor + rng.choice([-1, 1, 10])
    right, wrong = ((f"{noun} * {number}", partial(operator.mul, number)) for number in factors)
    return _Draft((noun,), f"{noun} times {factor}", right, wrong, _numbers(rng, 1))


def _logic(outcome: str, rng: Random, nouns: Sequence[str]) -> _Draft:
    first, second = nouns[:2]
    words = outcome, "or" if outcome == "and" else "and"
    right, wrong = ((f"{first} {word} {second}", COMPUTED[word]) for word in words)
    differing, equal = [(True, False), (False, True)], [(True, True), (False, False)]
    calls = [rng.choice(differing), rng.choice(equal), *differing, *equal, differing[0]]
    return _Draft((first, second), f"{first} {outcome} {second}", right, wrong, calls)


def _compared(sign: str, limit: int, given: int) -> bool:
    return bool(COMPUTED[sign](given, limit))


def _chosen(index: int, *given: Any) -> Any:
    return given[index]


_KINDS: Mapping[str, Callable[[str, Random, Sequence[str]], _Draft]] = {
    "operator": _operator,
    "bound": _bound,
    "name": _name,
    "constant": _constant,
    "logic": _logic,
}
KIND_OUTCOMES: Mapping[str, tuple[str, ...]] = {
    "operator": tuple(OPERATORS),
    "bound": tuple(BOUNDS),
    "name": ("0", "1", "2"),
    "constant": ("small", "large"),
    "logic": ("and", "or"),
}
