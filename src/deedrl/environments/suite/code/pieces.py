"""Small functions, each in a right and a wrong form that differ in one line, with calls that tell them apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

OPERATORS = {"plus": "+", "minus": "-", "times": "*"}
BOUNDS = {"at least": ">=", "more than": ">", "at most": "<=", "less than": "<"}
VISIBLE, HIDDEN = 2, 5
"""Calls of a function in the tests that are shown, and in those that are not."""


@dataclass(frozen=True)
class Piece:
    """One function."""

    name: str
    right: tuple[str, ...]
    """Its lines."""
    line: int
    """Which of them, from 0, is wrong in the wrong form."""
    wrong: str
    reasoning: str
    calls: tuple[tuple[Any, ...], ...]
    """Arguments of the calls in tests; the first `VISIBLE` are shown."""

    @property
    def broken(self) -> tuple[str, ...]:
        return (*self.right[: self.line], self.wrong, *self.right[self.line + 1 :])


def outcome_of(lines: Sequence[str], name: str, arguments: Sequence[Any]) -> Any:
    """What the function of these lines gives back; the lines are this module's own."""
    namespace: dict[str, Any] = {}
    exec("\n".join(lines), namespace)
    return namespace[name](*arguments)


def tell_apart(piece: Piece) -> bool:
    """Whether the calls that are shown find the wrong form out, and the hidden ones do too."""
    parts = (piece.calls[:VISIBLE], piece.calls[VISIBLE:])
    return all(any(_differs(piece, call) for call in part) for part in parts)


def _differs(piece: Piece, call: Sequence[Any]) -> bool:
    return bool(outcome_of(piece.right, piece.name, call) != outcome_of(piece.broken, piece.name, call))


def draw_piece(kind: str, outcome: str, rng: Random, name: str, nouns: Sequence[str], *, described: bool) -> Piece:
    """A function of a kind whose right form is decided by `outcome`; `described`: its docstring says what is right."""
    while True:
        piece = _KINDS[kind](outcome, rng, name, nouns, described)
        if tell_apart(piece):
            return piece


def _made(
    name: str, parameters: Sequence[str], text: str, body: tuple[str, str], reason: str, calls: Any, described: bool
) -> Piece:
    right = [f"def {name}({', '.join(parameters)}):", *([f'    """{text}"""'] if described else []), f"    {body[0]}"]
    return Piece(name, tuple(right), len(right) - 1, f"    {body[1]}", reason, tuple(calls))


def _numbers(rng: Random, count: int, low: int = 2, high: int = 30) -> list[tuple[int, ...]]:
    return [tuple(rng.randint(low, high) for _ in range(count)) for _ in range(VISIBLE + HIDDEN)]


def _operator(outcome: str, rng: Random, name: str, nouns: Sequence[str], described: bool) -> Piece:
    first, second = nouns[:2]
    wrong = rng.choice([sign for word, sign in OPERATORS.items() if word != outcome])
    body = (f"return {first} {OPERATORS[outcome]} {second}", f"return {first} {wrong} {second}")
    text = f"{first} {outcome} {second}"
    return _made(name, (first, second), text, body, f"It says {text}.", _numbers(rng, 2), described)


def _bound(outcome: str, rng: Random, name: str, nouns: Sequence[str], described: bool) -> Piece:
    noun, limit = nouns[0], rng.randint(5, 95)
    wrong = rng.choice([sign for words, sign in BOUNDS.items() if words != outcome])
    body = (f"return {noun} {BOUNDS[outcome]} {limit}", f"return {noun} {wrong} {limit}")
    text = f"{noun} is {outcome} {limit}"
    calls = [(limit + step,) for step in (0, rng.choice([-1, 1]))]
    calls += [(limit + step,) for step in rng.sample([-7, -1, 0, 1, 9], HIDDEN)]
    return _made(name, (noun,), text, body, f"It says {text}.", calls, described)


def _name(outcome: str, rng: Random, name: str, nouns: Sequence[str], described: bool) -> Piece:
    parameters = tuple(nouns[:3])
    right = parameters[int(outcome)]
    wrong = rng.choice([noun for noun in parameters if noun != right])
    text = f"gives the {right}"
    return _made(
        name, parameters, text, (f"return {right}", f"return {wrong}"), f"It {text}.", _numbers(rng, 3), described
    )


def _constant(outcome: str, rng: Random, name: str, nouns: Sequence[str], described: bool) -> Piece:
    noun = nouns[0]
    right = rng.randint(2, 9) if outcome == "small" else rng.randint(11, 99)
    wrong = rng.choice([n for n in (right - 1, right + 1, right + 10) if n != right])
    text = f"{noun} times {right}"
    body = (f"return {noun} * {right}", f"return {noun} * {wrong}")
    return _made(name, (noun,), text, body, f"It says {text}.", _numbers(rng, 1), described)


def _logic(outcome: str, rng: Random, name: str, nouns: Sequence[str], described: bool) -> Piece:
    first, second = nouns[:2]
    wrong = "or" if outcome == "and" else "and"
    text = f"{first} {outcome} {second}"
    body = (f"return {first} {outcome} {second}", f"return {first} {wrong} {second}")
    both = [(True, False), (True, True), (False, True), (False, False)]
    calls = [*rng.sample(both[:1] + both[2:3], 1), *rng.sample(both, 1), *rng.sample(both, 4), both[0]]
    return _made(name, (first, second), text, body, f"It says {text}.", calls, described)


_KINDS: Mapping[str, Callable[[str, Random, str, Sequence[str], bool], Piece]] = {
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
