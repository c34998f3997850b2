"""What a repaired program may hold: lists of what is allowed, read from the syntax before anything runs.

The tests run in the same process as the program, so a program that reaches the interpreter's inside (frames, code,
modules, the tests' own functions) could change what they report or read the answers of the hidden ones. A program that
a shop or a bank needs does without.
"""

from __future__ import annotations

import ast
import builtins
import collections
import datetime
import itertools
import math
import re
import types
from collections.abc import Collection, Iterator, Mapping

IMPORTS: Mapping[str, frozenset[str]] = {
    module: frozenset(names.split())
    for module, names in {
        "bisect": "bisect bisect_left bisect_right insort insort_left insort_right",
        "collections": "Counter OrderedDict defaultdict deque",
        "datetime": "date datetime time timedelta timezone",
        "functools": "cache cmp_to_key lru_cache partial reduce",
        "heapq": "heapify heappop heappush heappushpop heapreplace nlargest nsmallest",
        "itertools": " ".join(name for name in dir(itertools) if not name.startswith("_")),
        "math": " ".join(name for name in dir(math) if not name.startswith("_")),
        "re": "compile escape findall finditer fullmatch match search split sub",
        "statistics": "fmean mean median median_high median_low mode multimode pstdev pvariance stdev variance",
        "string": "ascii_letters ascii_lowercase ascii_uppercase digits hexdigits punctuation whitespace",
    }.items()
}
"""Library → names that may be imported from it. None takes the name of an attribute, or shows a module."""

_PLAIN_BUILTINS = (
    "abs all any ascii bin bool bytearray bytes callable chr classmethod complex dict divmod enumerate filter float "
    "format frozenset hash hex id int isinstance issubclass iter len list map max min next object oct ord pow print "
    "property range repr reversed round set slice sorted staticmethod str sum tuple zip Ellipsis NotImplemented"
)
BUILTINS = frozenset(_PLAIN_BUILTINS.split()) | {
    name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, Exception)
}

DATA = (
    str, bytes, bytearray, int, float, complex, list, tuple, dict, set, frozenset, range, slice, property, Exception,
    collections.Counter, collections.OrderedDict, collections.defaultdict, collections.deque, datetime.date,
    datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone, re.Pattern, re.Match, itertools.chain,
)  # fmt: skip
ATTRIBUTES = (
    frozenset(name for kind in DATA for name in dir(kind) if not name.startswith("_"))
    # A format string may walk over attributes and items of what it is given.
    - {"format", "format_map", "with_traceback"}
) | IMPORTS["math"]
"""Attributes of data, which any program may use besides those it defines."""

INSIDE = frozenset(
    name
    for kind in (
        types.FrameType, types.CodeType, types.TracebackType, types.GeneratorType, types.CoroutineType,
        types.AsyncGeneratorType, types.FunctionType, types.MethodType, types.ModuleType, type,
    )
    for name in dir(kind)
) | {"format", "format_map", "with_traceback"}  # fmt: skip
"""Attributes that lead into the interpreter; they are not allowed to a program that defines them either."""

METHODS = frozenset({"__init__", "__repr__"})


def complaints(source: str, own_modules: Collection[str] = ()) -> list[str]:
    """What in a program is not allowed, in words; empty if all is, and for what is no Python.

    `own_modules`: the task's other files.
    """
    tree = parsed(source)
    if tree is None:
        return []
    own = _defined(tree)
    found = (text for node in ast.walk(tree) for text in _of_node(node, own_modules, own))
    return list(dict.fromkeys(found))


def parsed(source: str) -> ast.Module | None:
    """The program's syntax tree; None if it is no Python or nested too deeply."""
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def as_read(source: str) -> str | None:
    """The program written anew from the syntax that the rules saw; None if it has none.

    A byte-order mark or a declared encoding makes Python read a file otherwise than the rules do.
    """
    tree = parsed(source)
    try:
        return None if tree is None else ast.unparse(tree) + "\n"
    except (ValueError, RecursionError):
        return None


def _defined(tree: ast.Module) -> set[str]:
    """Names that the program defines: functions, classes, variables, attributes it sets."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
    return found


def _of_node(node: ast.AST, own_modules: Collection[str], own: Collection[str]) -> Iterator[str]:
    for name in _identifiers(node):
        if name.startswith("__") and not (isinstance(node, ast.FunctionDef) and name in METHODS):
            yield f"'{name}' is not allowed"
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name != "math" and alias.name not in own_modules:
                yield f"'import {alias.name}' is not allowed; write 'from {alias.name} import ...'"
    elif isinstance(node, ast.ImportFrom):
        yield from _of_import(node, own_modules)
    elif isinstance(node, ast.Name) and hasattr(builtins, node.id) and node.id not in BUILTINS:
        yield f"'{node.id}' is not allowed"
    elif isinstance(node, ast.Attribute):
        yield from _of_attribute(node, own_modules, own)
    elif isinstance(node, ast.MatchClass) and node.kwd_attrs:
        yield "a class pattern with names of attributes is not allowed"
    elif isinstance(node, ast.AsyncFunctionDef | ast.Global | ast.Nonlocal):
        yield f"'{type(node).__name__}' is not allowed"


def _identifiers(node: ast.AST) -> Iterator[str]:
    """Every name that stands in a node: `case`, `as`, `class` and arguments bind names too."""
    if isinstance(node, ast.Constant):
        return
    for _, value in ast.iter_fields(node):
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, str):
                yield each


def _of_attribute(node: ast.Attribute, own_modules: Collection[str], own: Collection[str]) -> Iterator[str]:
    name, owner = node.attr, node.value
    if not isinstance(node.ctx, ast.Load) and not (isinstance(owner, ast.Name) and owner.id == "self"):
        yield f"setting the attribute '{name}' of anything but self is not allowed"
    mine = name in own or (isinstance(owner, ast.Name) and owner.id in own_modules)
    if name.startswith("_") or (name not in ATTRIBUTES and (name in INSIDE or not mine)):
        yield f"the attribute '{name}' is not allowed"


def _of_import(node: ast.ImportFrom, own_modules: Collection[str]) -> Iterator[str]:
    module = node.module or ""
    if node.level or (module not in IMPORTS and module not in own_modules):
        yield f"an import from '{module or '.'}' is not allowed"
        return
    for alias in node.names:
        known = module in own_modules or alias.name in IMPORTS[module]
        if not known or alias.name == "*" or alias.name.startswith("_"):
            yield f"the import of '{alias.name}' from '{module}' is not allowed"
