"""``deedrl report``: the report page of a run, offline, from its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deedrl.cli.options import RunArgument


def report(
    run: RunArgument,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Where to write. Default: RUN/report.html.")] = None,
) -> None:
    """Write the report page of a run and print its before/after table."""
    from deedrl.pipeline.run import SUMMARY
    from deedrl.reports.report import write_report
    from deedrl.reports.tables import print_before_after, read_summary

    page = write_report(run, out)
    if (run / SUMMARY).exists():
        print_before_after(read_summary(run / SUMMARY))
    typer.echo(f"Report: {page}")
