"""The layers of the design, read from the source with `ast`; nothing is imported to check them."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "deedrl"
FILES = sorted(SOURCE.rglob("*.py"))

# Row of each module or folder; the longest matching name counts. A module imports from lower rows and its own folder.
ROWS = {
    "deedrl": 0,
    "deedrl.types": 0,
    "deedrl.errors": 0,
    "deedrl.seeding": 0,
    "deedrl.redaction": 0,
    "deedrl.config": 0,
    "deedrl.files": 0,
    "deedrl.memory": 0,
    "deedrl.pages": 0,
    "deedrl.reasoning": 0,
    "deedrl.tasks": 1,
    "deedrl.tools": 1,
    "deedrl.parsing": 1,
    "deedrl.rendering": 1,
    "deedrl.rewards": 1,
    "deedrl.store": 1,
    "deedrl.tracking": 1,
    "deedrl.environments": 2,
    "deedrl.policies": 2,
    "deedrl.rollouts": 3,
    "deedrl.training": 4,
    "deedrl.evaluation": 4,
    "deedrl.diagnosis": 4,
    "deedrl.planning": 4,
    "deedrl.pipeline": 5,
    "deedrl.reports": 6,
    "deedrl.integrations": 6,
    "deedrl.labelling": 6,
    "deedrl.benchmarks": 6,
    "deedrl.cli": 7,
    "deedrl.__main__": 8,
}
# Imports beside the rows' order that are meant, and why. (importing folder, imported folder)
SIBLINGS = {
    ("deedrl", "deedrl.environments"),  # the package's root registers the built-in environments with gymnasium
    ("deedrl.rewards", "deedrl.parsing"),  # the format term scores text by the parser's own rules
    ("deedrl.rewards", "deedrl.tasks"),  # terms read an episode's outcome
}
# Who may import torch and transformers at all.
TORCH_ALLOWED = ("deedrl.policies.local", "deedrl.training", "deedrl.pipeline")
HEAVY = ("torch", "transformers", "peft", "accelerate", "safetensors", "llguidance")
# Boundaries at which any exception may be caught, and turned into a recorded status or a readable error.
BOUNDARIES = {
    "deedrl.environments.checker",  # an author's bug becomes a failed check
    "deedrl.environments.environment",  # of two errors the first is reported
    "deedrl.environments.worker",  # what happens in a worker process is sent to its parent, which raises it
    "deedrl.policies.local.policy",  # what happens in the engine is handed to every episode that waits for a turn
    "deedrl.rollouts.calls",  # what happens in a tool's thread is handed to the waiting coroutine
    "deedrl.rollouts.episode",  # trouble becomes a recorded failure of the episode
    "deedrl.rollouts.replay",  # an environment that raises has left the recording
    "deedrl.rollouts.slot",  # an environment that cannot be closed is reported and left behind
    "deedrl.tracking.tracker",  # a tracker never ends a run
}
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 80


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(tree: ast.AST, module: str, is_package: bool) -> Iterator[str]:
    """Full names of what is imported anywhere in `tree`; blocks under TYPE_CHECKING do not run and are left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".") if is_package else module.split(".")[:-1]
                base = ".".join([*parents[: len(parents) - node.level + 1], *([base] if base else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)
        else:
            yield from imported(node, module, is_package)


def imports_of(path: Path) -> list[str]:
    return list(imported(tree_of(path), module_name(path), path.name == "__init__.py"))


def place(name: str) -> tuple[str, int]:
    """The folder (or top module) of the table that `name` belongs to, and its row."""
    known = [entry for entry in ROWS if name == entry or name.startswith(f"{entry}.")]
    folder = max(known, key=len)
    return folder, ROWS[folder]


def layer_violations() -> Iterator[str]:
    for path in FILES:
        module = module_name(path)
        folder, row = place(module)
        for target in imports_of(path):
            if not target.startswith("deedrl"):
                continue
            other, other_row = place(target)
            if other == folder or other_row < row or (row == other_row == 0) or (folder, other) in SIBLINGS:
                continue
            yield f"{module} (row {row}) imports {target} (row {other_row})"


def allowed_heavy(module: str) -> bool:
    return any(module == allowed or module.startswith(f"{allowed}.") for allowed in TORCH_ALLOWED)


def test_every_module_has_a_row() -> None:
    folders = {module_name(path).split(".")[1] for path in FILES if module_name(path) != "deedrl"}
    assert {name for name in folders if f"deedrl.{name}" not in ROWS} == set()


def test_imports_go_downwards_only() -> None:
    assert list(layer_violations()) == []


def test_the_core_imports_neither_torch_nor_transformers() -> None:
    found = [
        f"{module_name(path)} imports {target}"
        for path in FILES
        if not allowed_heavy(module_name(path))
        for target in imports_of(path)
        if target.split(".")[0] in HEAVY
    ]
    assert found == []


def test_exceptions_are_caught_by_kind_outside_the_boundaries() -> None:
    broad = {"Exception", "BaseException"}
    found = []
    for path in FILES:
        if module_name(path) in BOUNDARIES:
            continue
        for node in ast.walk(tree_of(path)):
            if not isinstance(node, ast.ExceptHandler):
                continue
            names = {ast.unparse(name) for name in (getattr(node.type, "elts", None) or [node.type]) if name}
            # A handler that only cleans up and raises again swallows nothing.
            if (not names or names & broad) and not isinstance(node.body[-1], ast.Raise):
                found.append(f"{module_name(path)}, line {node.lineno}")
    assert found == []


def test_files_are_at_most_500_lines() -> None:
    assert [f.name for f in FILES if len(f.read_text(encoding="utf-8").splitlines()) > MAX_FILE_LINES] == []


def test_functions_are_at_most_80_lines() -> None:
    found = [
        f"{module_name(path)}.{node.name}: {node.end_lineno - node.lineno + 1} lines"
        for path in FILES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno >= MAX_FUNCTION_LINES
    ]
    assert found == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import torch", ["torch"]),
        ("def f():\n    from torch import nn", ["torch.nn"]),
        ("from ..store import codec", ["deedrl.store.codec"]),
        ("if TYPE_CHECKING:\n    import torch", []),
    ],
)
def test_the_reader_sees_imports_inside_functions(source: str, expected: list[str]) -> None:
    assert list(imported(ast.parse(source), "deedrl.parsing.parser", is_package=False)) == expected


def seconds_and_modules(statement: str) -> tuple[float, set[str]]:
    code = (
        f"import sys, time\nstart = time.perf_counter()\n{statement}\n"
        "print(time.perf_counter() - start, *sys.modules, sep='\\n')"
    )
    lines = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    return float(lines[0]), set(lines[1:])


def test_importing_deedrl_is_fast_and_loads_no_torch() -> None:
    runs = [seconds_and_modules("import deedrl") for _ in range(3)]
    assert min(seconds for seconds, _ in runs) < 0.3
    assert runs[0][1].isdisjoint({"torch", "transformers", "numpy", "gymnasium"})


def test_help_loads_nothing_heavy() -> None:
    runs = [seconds_and_modules("import deedrl.cli.main") for _ in range(3)]
    assert min(seconds for seconds, _ in runs) < 0.5
    assert runs[0][1].isdisjoint({"torch", "transformers", "numpy", "gymnasium", "matplotlib"})


def calls_that_run_data(tree: ast.AST) -> Iterator[str]:
    """Ways for text or files to become running code: evaluation of source, and formats that execute when read."""
    loaders = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None)
            names = [module] if module else [alias.name for alias in node.names]
            yield from (name for name in names if name.split(".")[0] in loaders)
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            safe = any(k.arg == "weights_only" and ast.unparse(k.value) == "True" for k in node.keywords)
            if name in {"eval", "exec", "compile", "yaml.load", "os.system", "os.popen"}:
                # A loader of our own that builds plain values alone is given as an argument.
                yield from () if name == "yaml.load" and len(node.args) + len(node.keywords) > 1 else (name,)
            elif name == "torch.load" and not safe:
                yield name
            elif any(k.arg == "shell" and ast.unparse(k.value) != "False" for k in node.keywords):
                yield f"{name}(shell=…)"


def test_F17_H05_H10_nothing_read_or_written_by_a_model_becomes_code() -> None:
    found = [f"{module_name(path)}: {call}" for path in FILES for call in calls_that_run_data(tree_of(path))]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "eval(answer)",
        "exec(text, {})",
        "import pickle",
        "from marshal import loads",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "yaml.load(text)",
        "subprocess.run(text, shell=True)",
    ],
)
def test_F17_the_reader_sees_what_runs_data(source: str) -> None:
    assert len(list(calls_that_run_data(ast.parse(source)))) == 1


def test_F17_harmless_relatives_are_let_through() -> None:
    source = "model.eval()\nre.compile(text)\ntorch.load(path, weights_only=True)\nyaml.load(text, Loader=Plain)"
    assert list(calls_that_run_data(ast.parse(source))) == []
