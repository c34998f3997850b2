"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from deedrl.errors import ConfigError

if TYPE_CHECKING:
    from deedrl.pipeline.context import Progress

RecipeArgument = Annotated[Path, typer.Argument(metavar="RECIPE", help="Recipe in YAML, see docs/recipe.md.")]
OverridesArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Settings by dotted path, e.g. stages.grpo.learning_rate=1e-4."),
]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")]
PlainOption = Annotated[bool, typer.Option("--plain", help="Plain lines instead of bars.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Warnings and results only.")]
ProcessesOption = Annotated[
    int | None,
    typer.Option(
        "--processes", min=1, help="Processes that a launcher has to have started (docs/several-processes.md)."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Progress as JSON lines on stdout.")]


def progress_from(plain: bool, quiet: bool, json: bool) -> Progress:
    """The progress the three mode options ask for; more than one of them is an error."""
    chosen = [mode for mode, wanted in (("plain", plain), ("quiet", quiet), ("json", json)) if wanted]
    if len(chosen) > 1:
        raise ConfigError(f"expected at most one of --plain, --quiet and --json, got --{' and --'.join(chosen)}")
    from deedrl.reports.progress import make_progress

    mode = cast('Literal["plain", "quiet", "json"]', chosen[0]) if chosen else None
    return make_progress(mode)
