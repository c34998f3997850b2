"""``deedrl export``: the trained policy of a run as a PEFT adapter or as a plain transformers folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deedrl.cli.options import RunArgument


def export(
    run: RunArgument,
    to: Annotated[Path, typer.Option("--to", "-o", help="Folder to write; must be empty or missing.")],
    adapter_only: Annotated[
        bool, typer.Option("--adapter-only", help="Write the PEFT adapter instead of merging it into the model.")
    ] = False,
) -> None:
    """Export a run's policy: merged into a plain transformers folder, or as an adapter."""
    from deedrl.errors import ConfigError
    from deedrl.pipeline.run import RECIPE

    if not (run / RECIPE).exists():
        raise ConfigError(f"{run}: expected a run folder with {RECIPE}, found none")
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise ConfigError(f"{to}: expected an empty or missing folder, found something there; choose another")
    from deedrl.pipeline.stages import export_policy

    export_policy(run, to, merge=not adapter_only)
    typer.echo(f"Exported to {to}")
