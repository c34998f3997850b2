"""What the scripts in benchmarks/ take from DeedRL exists; most run in environments of their own, for hours."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


def taken(script: Path) -> list[tuple[str, str]]:
    """Modules of DeedRL and the names imported from them."""
    nodes = ast.walk(ast.parse(script.read_text(encoding="utf-8")))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    return [(n.module, name.name) for n in imports if n.module and n.module.startswith("deedrl") for name in n.names]


@pytest.mark.parametrize("script", sorted(FOLDER.rglob("*.py")), ids=lambda path: str(path.relative_to(FOLDER)))
def test_names_that_a_script_imports_exist(script: Path) -> None:
    for module, name in taken(script):
        found = __import__(module, fromlist=[name])  # as the statement does: a name may be a module
        assert hasattr(found, name), f"{module} has no {name}"
