"""Exceptions a user may meet. Each message says what was expected, what came, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DeedRLError(Exception):
    """Base of all errors that are the user's to fix; the command line prints them and exits with code 2."""


class ConfigError(DeedRLError):
    """A recipe, override or command-line value is wrong."""


class ModelError(DeedRLError):
    """A model or its tokenizer is missing or cannot do what training needs."""


class TaskError(DeedRLError):
    """A task file or pool is wrong (bad line, overlap between splits, empty split)."""


class EnvironmentAuthorError(DeedRLError):
    """An environment, tool, verifier or reward term breaks its contract: the author's bug, not the model's."""


class ToolError(Exception):
    """Raised by a tool to tell the model what it did wrong; becomes an observation and never ends a run."""


class StoreError(DeedRLError):
    """A trajectory store cannot be read or written."""


class CheckpointError(DeedRLError):
    """A checkpoint is torn, unsafe or does not belong to this run."""


class BenchmarkError(DeedRLError):
    """A benchmark cannot be run as asked, or did other work than its figures would say."""


def suggest(name: str, known: Iterable[str]) -> str:
    """Returns ``"; did you mean 'x'?"`` for the nearest known name, or the list of known names."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if near:
        return f"; did you mean '{near[0]}'?"
    return f"; known: {', '.join(names)}" if names else ""
