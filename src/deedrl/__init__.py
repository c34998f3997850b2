"""DeedRL: from words to deeds. Trains a language model into an agent that finishes jobs, and proves it.

Importing the package does no I/O and loads neither torch nor transformers; names resolve on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from deedrl.environments.suite import register_when_imported

__version__ = "0.1.0"

_EXPORTS = {
    "Action": "deedrl.types",
    "Environment": "deedrl.environments.environment",
    "Rubric": "deedrl.rewards.rubric",
    "Task": "deedrl.types",
    "TaskPool": "deedrl.tasks.pool",
    "ToolError": "deedrl.errors",
    "Trajectory": "deedrl.types",
    "Verdict": "deedrl.types",
    "check_environment": "deedrl.environments.checker",
    "parse_action": "deedrl.parsing.parser",
    "tool": "deedrl.tools.tool",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'deedrl' has no attribute '{name}'")


# `gymnasium.make("deedrl/…")` works after `import deedrl`, whichever of the two was imported first.
register_when_imported()
