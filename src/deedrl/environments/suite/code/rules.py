"""What a repaired program may hold: a list of what is allowed, read from the syntax before anything runs.

The tests run in the same process as the program, so a program that reaches the interpreter's inside could change what
they report. A program that a shop or a bank needs does without.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Collection, Iterator
from types import ModuleType

MODULES = ("bisect", "collections", "datetime", "functools", "heapq", "itertools", "math", "re", "statistics", "string")
"""Libraries from which names may be imported; not their modules inside."""

FORBIDDEN_NAMES = frozenset({
    "eval", "exec", "compile", "open", "input", "getattr", "setattr", "delattr", "vars", "dir", "globals", "locals",
    "breakpoint", "exit", "quit", "help", "SystemExit", "KeyboardInterrupt", "GeneratorExit", "BaseException",
    "BaseExceptionGroup", "memoryview", "type", "super",
})  # fmt: skip
ALLOWED_METHODS = frozenset({"__init__", "__repr__"})


def complaints(source: str, own_modules: Collection[str] = ()) -> list[str]:
    """What in a program is not allowed, in words; empty if all is, and for what is no Python.

    `own_modules`: the task's other files.
    """
    tree = parsed(source)
    return (
        []
        if tree is None
        else list(dict.fromkeys(text for node in ast.walk(tree) for text in _of_node(node, own_modules)))
    )


def parsed(source: str) -> ast.Module | None:
    """The program's syntax tree; None if it is no Python."""
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _of_node(node: ast.AST, own_modules: Collection[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name != "math" and alias.name not in own_modules:
                yield f"'import {alias.name}' is not allowed; write 'from {alias.name} import ...'"
    elif isinstance(node, ast.ImportFrom):
        yield from _of_import(node, own_modules)
    elif isinstance(node, ast.Name) and (node.id in FORBIDDEN_NAMES or node.id.startswith("__")):
        yield f"'{node.id}' is not allowed"
    elif isinstance(node, ast.Attribute) and node.attr.startswith("_"):
        yield f"the attribute '{node.attr}' is not allowed"
    elif isinstance(node, ast.FunctionDef) and node.name.startswith("__") and node.name not in ALLOWED_METHODS:
        yield f"the method '{node.name}' is not allowed"
    elif isinstance(node, ast.AsyncFunctionDef | ast.Global | ast.Nonlocal):
        yield f"'{type(node).__name__}' is not allowed"


def _of_import(node: ast.ImportFrom, own_modules: Collection[str]) -> Iterator[str]:
    module = node.module or ""
    if node.level or (module not in MODULES and module not in own_modules):
        yield f"an import from '{module or '.'}' is not allowed"
        return
    for alias in node.names:
        inside = getattr(importlib.import_module(module), alias.name, None) if module in MODULES else None
        if alias.name == "*" or alias.name.startswith("_") or isinstance(inside, ModuleType):
            yield f"the import of '{alias.name}' from '{module}' is not allowed"
