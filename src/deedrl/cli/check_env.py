"""The command ``deedrl check-env``."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from deedrl.environments.checker import CheckReport, check_environment
from deedrl.environments.loading import load_environment

_MARKS = {True: "[green]ok[/]", False: "[red]failed[/]", None: "[dim]n/a[/]"}


def check_env(
    environment: Annotated[str, typer.Argument(help="deedrl/SupportDesk-v0, package.module:Class or path/file.py")],
    tasks: Annotated[int, typer.Option(min=1, help="How many generated tasks to check on.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the tasks and the made-up calls.")] = 0,
) -> None:
    """Check that an environment keeps its contract; exit code 1 if a check fails."""
    report = check_environment(load_environment(environment), tasks=tasks, seed=seed)
    Console().print(as_table(report))
    if not report.ok:
        raise typer.Exit(code=1)


def as_table(report: CheckReport) -> Table:
    """One row a check: its name, its outcome, what was seen and, after a failure, what to do."""
    table = Table(title=report.environment, title_justify="left", show_lines=not report.ok)
    table.add_column("check", no_wrap=True)
    table.add_column("outcome", no_wrap=True)
    table.add_column("seen")
    for result in report.results:
        seen = escape(result.seen) + (f"\n[yellow]→ {escape(result.todo)}[/]" if result.todo else "")
        table.add_row(result.name, _MARKS[result.ok], seen)
    return table
