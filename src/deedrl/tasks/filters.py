"""Conditions on tasks as text: ``success_rate < 0.5 and attempts >= 4 and family in [window, status]``.

The text is read by Python's own grammar into a tree, of which a few kinds of node are taken and all others refused with
their place; nothing is ever evaluated as Python.
"""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from deedrl.errors import ConfigError, suggest
from deedrl.tasks.bands import BANDS, BandName
from deedrl.tasks.experience import Experience
from deedrl.types import Task

Value: TypeAlias = float | str | None
Facts: TypeAlias = Mapping[str, Value]
Filter: TypeAlias = Callable[[Facts], bool]

NUMBERS = (
    "success_rate",
    "success_low",
    "success_high",
    "attempts",
    "unscored",
    "scored",
    "solved",
    "shortest_steps",
)
TEXTS = ("family", "difficulty", "band", "id")
MAX_CHARS = 1000

_ORDER: Mapping[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_EXAMPLE = "e.g. success_rate < 0.5 and family in [window, status]"


def facts(task: Task, experience: Experience, band: BandName) -> Facts:
    """What a condition may ask about a task; None where nothing was measured."""
    low, high = experience.interval or (None, None)
    return {
        "success_rate": experience.success_rate,
        "success_low": low,
        "success_high": high,
        "attempts": experience.attempts,
        "unscored": experience.unscored,
        "scored": experience.scored,
        "solved": experience.solved,
        "shortest_steps": task.shortest_steps,
        "family": task.family,
        "difficulty": task.difficulty,
        "band": band,
        "id": task.id,
    }


def parse_filter(text: str) -> Filter:
    """The condition that `text` states; `ConfigError` naming what was expected, what came and where.

    A comparison with a figure that was not measured does not hold, whichever way it goes.
    """
    if len(text) > MAX_CHARS:
        raise ConfigError(f"expected a condition of at most {MAX_CHARS} characters, got {len(text)}")
    try:
        with warnings.catch_warnings(action="ignore", category=SyntaxWarning):
            tree = ast.parse(text.strip(), mode="eval")
        return _condition(tree.body)
    except SyntaxError as error:
        place = f" at character {error.offset}" if error.offset else ""
        raise ConfigError(f"expected a condition, {_EXAMPLE}; cannot read {text!r}{place}: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:  # NUL bytes, numbers of thousands of digits, deep nests
        raise ConfigError(f"expected a condition, {_EXAMPLE}; cannot read {text[:80]!r}: {error}") from None


# ---------------------------------------------------------------- conditions


def _condition(node: ast.expr) -> Filter:
    match node:
        case ast.BoolOp(op=ast.And(), values=values):
            parts = [_condition(value) for value in values]
            return lambda seen: all(part(seen) for part in parts)
        case ast.BoolOp(op=ast.Or(), values=values):
            parts = [_condition(value) for value in values]
            return lambda seen: any(part(seen) for part in parts)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            part = _condition(operand)
            return lambda seen: not part(seen)
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            sides = [left, *comparators]
            parts = [_comparison(sides[i], op, sides[i + 1]) for i, op in enumerate(ops)]
            return lambda seen: all(part(seen) for part in parts)
        case _:
            raise _refused(node, f"a comparison, or several with and, or and not, {_EXAMPLE}")


def _comparison(left: ast.expr, op: ast.cmpop, right: ast.expr) -> Filter:
    if isinstance(op, ast.In | ast.NotIn):
        return _membership(left, right, wanted=isinstance(op, ast.In))
    if isinstance(op, ast.Is | ast.IsNot):
        raise _refused(left, "one of <, <=, >, >=, ==, !=, in, not in")
    if not _is_field(left) and not _is_field(right):
        named = next((side for side in (left, right) if isinstance(side, ast.Name)), left)
        known = suggest(named.id, [*NUMBERS, *TEXTS]) if isinstance(named, ast.Name) else ""
        raise _refused(named, f"the name of a figure or label of tasks on one side of a comparison{known}")
    field = left if _is_field(left) else right
    assert isinstance(field, ast.Name)  # what `_is_field` says
    if field.id in NUMBERS:
        return _ordered(_number(left), op, _number(right))
    if type(op) in _ORDER:
        raise _refused(field, f"== or != or in with '{field.id}', which is text")
    equal = isinstance(op, ast.Eq)
    name, word = field.id, _word(right if field is left else left, field.id)
    return lambda seen: (seen[name] == word) == equal


def _ordered(left: Callable[[Facts], Value], op: ast.cmpop, right: Callable[[Facts], Value]) -> Filter:
    equalities = {ast.Eq: operator.eq, ast.NotEq: operator.ne}
    compare = _ORDER.get(type(op)) or equalities[type(op)]

    def holds(seen: Facts) -> bool:
        a, b = left(seen), right(seen)
        return isinstance(a, float | int) and isinstance(b, float | int) and compare(a, b)

    return holds


def _membership(left: ast.expr, right: ast.expr, *, wanted: bool) -> Filter:
    if not _is_field(left):
        known = suggest(left.id, [*NUMBERS, *TEXTS]) if isinstance(left, ast.Name) else ""
        raise _refused(left, f"the name of a figure or label of tasks before 'in'{known}")
    if not isinstance(right, ast.List | ast.Tuple | ast.Set):
        raise _refused(right, "a list after 'in', e.g. family in [window, status]")
    assert isinstance(left, ast.Name)
    name = left.id
    if name in NUMBERS:
        numbers = {_constant(item) for item in right.elts}
        return lambda seen: seen[name] is not None and (seen[name] in numbers) == wanted
    words = {_word(item, name) for item in right.elts}
    return lambda seen: (seen[name] in words) == wanted


# ---------------------------------------------------------------- values


def _is_field(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and (node.id in NUMBERS or node.id in TEXTS)


def _number(node: ast.expr) -> Callable[[Facts], Value]:
    if isinstance(node, ast.Name):
        if node.id not in NUMBERS:
            raise _refused(node, f"a number or the name of a figure{suggest(node.id, NUMBERS)}")
        name = node.id
        return lambda seen: seen[name]
    value = _constant(node)
    return lambda seen: value


def _constant(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=bool()):
            raise _refused(node, "a number")
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)) if value is not True:
            return -value
        case _:
            raise _refused(node, "a number")


def _word(node: ast.expr, field: str) -> str:
    """Text in quotes, or a word without them; of a band one that there is."""
    match node:
        case ast.Constant(value=str() as word) | ast.Name(id=word):
            if field == "band" and word not in BANDS:
                raise _refused(node, f"a band{suggest(word, BANDS)}")
            return word
        case _:
            raise _refused(node, f"a word to compare '{field}' with, in quotes unless it is plain letters")


def _refused(node: ast.expr, expected: str) -> ConfigError:
    return ConfigError(f"expected {expected}; got {ast.unparse(node)!r} at character {node.col_offset + 1}")


def split_by(
    filter_: Filter | None, tasks: Iterable[Task], seen: Callable[[Task], Facts]
) -> tuple[list[Task], list[Task]]:
    """The tasks for which the condition holds, and the others; all hold where there is none."""
    kept: list[Task] = []
    left_out: list[Task] = []
    for task in tasks:
        (kept if filter_ is None or filter_(seen(task)) else left_out).append(task)
    return kept, left_out
