"""Judges a repair by the program as it is: allowed by the rules, passing the tests shown and the tests hidden."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from deedrl.environments.suite.code.goal import Goal
from deedrl.environments.suite.code.rules import as_read, complaints, parsed
from deedrl.environments.suite.code.runner import TestRun, TestRunner
from deedrl.types import Verdict

BLIND = "changed a file without reading it"
NOT_ALLOWED = "handed in a program that reaches beyond its job"
HIDDEN_FILE = "test_hidden.py"


def modules_of(files: Mapping[str, str]) -> list[str]:
    """Names under which the task's files import each other."""
    return [path.removesuffix(".py") for path in files]


def not_allowed(files: Mapping[str, str]) -> list[str]:
    """What the rules forbid in the program's files, in words."""
    own = modules_of(files)
    return [f"{path}: {text}" for path, source in files.items() for text in complaints(source, own)]


def run_tests(runner: TestRunner, files: Mapping[str, str], tests: Mapping[str, str]) -> TestRun:
    """Runs pristine tests beside the program's files alone, as the rules read them.

    A file that is no Python is not run: then every test fails for it.
    """
    readable: dict[str, str] = {}
    for path, source in files.items():
        if (text := as_read(source)) is None:
            return TestRun(failed=((path, "it is no Python"),))
        readable[path] = text
    return runner.run({**readable, **tests}, [*tests])


def named_as_asked(files: Mapping[str, str], goal: Goal) -> bool:
    """Whether every name that must be defined is, and no name that must be gone is left."""
    trees = {path: parsed(source) for path, source in files.items()}
    for path, names in goal.present.items():
        tree = trees[path]
        if tree is None or not set(names) <= {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}:
            return False
    for path, names in goal.absent.items():
        tree = trees[path]
        if tree is None or set(names) & _names(tree):
            return False
    return True


def _names(tree: ast.AST) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.alias):
            found.add(node.name)
    return found


def judge(
    runner: TestRunner,
    files: Mapping[str, str],
    tests: Mapping[str, str],
    goal: Goal,
    *,
    log: Sequence[tuple[str, str]],
    changed: bool,
    submitted: bool,
) -> Verdict:
    """Solved if it was handed in, is allowed, is named as asked and passes all tests.

    `log`: (``read`` or ``change``, file) in order. A file must have been read before it is changed.
    """
    read = {path for kind, path in log if kind == "read"}
    needed = {fix.path for fix in goal.fixes} or set(files)
    forbidden = not_allowed(files)
    violations = ((BLIND,) if _blind(log) else ()) + ((NOT_ALLOWED,) if forbidden else ())
    sound = changed and not violations and named_as_asked(files, goal)
    hidden = {HIDDEN_FILE: goal.hidden} if submitted else {}
    result = run_tests(runner, files, {**tests, **hidden}) if sound else TestRun()
    shown = _shown_pass(result)
    exact = submitted and result.ok
    milestones = {"read_the_program": needed <= read, "shown_tests_pass": shown, "exact": exact}
    progress = 1.0 if exact else round(0.2 * (needed <= read) + 0.4 * shown, 2)
    return Verdict(solved=exact, progress=0.0 if violations else progress, milestones=milestones, violations=violations)


def _shown_pass(result: TestRun) -> bool:
    """Whether all tests but the hidden ones passed."""
    failed = [name for name, _ in result.failed if not name.startswith("test_hidden")]
    passed = [name for name in result.passed if not name.startswith("test_hidden")]
    return result.stopped is None and bool(passed) and not failed


def _blind(log: Sequence[tuple[str, str]]) -> bool:
    read: set[str] = set()
    for kind, path in log:
        if kind == "read":
            read.add(path)
        elif path not in read:
            return True
    return False
