"""``deedrl run``: a whole recipe, from the baseline to the report."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deedrl.cli.options import (
    JsonOption,
    OverridesArgument,
    PlainOption,
    ProcessesOption,
    QuietOption,
    RecipeArgument,
    progress_from,
)

if TYPE_CHECKING:
    from deedrl.pipeline.context import Progress
    from deedrl.pipeline.recipe import Recipe


def run(
    recipe: RecipeArgument,
    overrides: OverridesArgument = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Run folder, new or to resume. Default: runs/<name>.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved recipe and what it costs here; run no stage.")
    ] = False,
    plain: PlainOption = False,
    quiet: QuietOption = False,
    json: JsonOption = False,
    processes: ProcessesOption = None,
) -> None:
    """Run a recipe: all stages, then the report. The same command resumes an interrupted run."""
    from deedrl.pipeline.recipe import load_recipe

    settings = load_recipe(recipe, overrides or [])
    if dry_run:
        show_plan(settings)
        return
    progress = progress_from(plain, quiet, json)
    folder = out or Path("runs") / settings.name
    execute(settings, folder, progress, only=None, show_results=not json, processes=processes)


def show_plan(recipe: Recipe) -> None:
    """Prints the resolved recipe (secrets hidden), settings beyond usual bounds, and its cost on this machine."""
    from deedrl.config import dump_yaml, to_plain
    from deedrl.errors import ModelError
    from deedrl.pipeline.bounds import training_findings
    from deedrl.pipeline.cost import estimate, estimate_text
    from deedrl.planning.machine import detect_machine, used_by
    from deedrl.redaction import redact

    typer.echo(dump_yaml(redact(to_plain(recipe))))
    machine = used_by(recipe.model.device, detect_machine())
    try:
        lines = estimate_text(estimate(recipe, machine), machine)
    except ModelError as error:  # the recipe may be right all the same
        lines = [f"no estimate: {error}"]
    lines = [*lines, *(f"warning {finding}" for finding in training_findings(recipe))]
    for line in lines:
        typer.echo(f"# {line}" if line else "#")


def execute(
    recipe: Recipe,
    folder: Path,
    progress: Progress,
    *,
    only: Collection[str] | None,
    show_results: bool = True,
    processes: int | None = None,
) -> None:
    """Runs stages in a run folder, then writes the report and prints the before/after table.

    Of several processes that a launcher started (`processes`, if given) the first alone speaks and reports.
    """
    with joined_with(recipe, progress, processes) as own:
        _execute(recipe, folder, own, only, show_results)


@contextmanager
def joined_with(recipe: Recipe, progress: Progress, processes: int | None) -> Iterator[Progress]:
    """Inside the block this process trains with those that the launcher started (`processes`, if given).

    Gives `progress` in the first of them, and one that says nothing in the others.
    """
    from deedrl.reports.progress import NoProgress
    from deedrl.training.processes import is_first, joined

    with joined(processes, shard=recipe.processes.shard):
        yield progress if is_first() else NoProgress()


def _execute(
    recipe: Recipe, folder: Path, progress: Progress, only: Collection[str] | None, show_results: bool
) -> None:
    from deedrl.pipeline.run import SUMMARY, Run
    from deedrl.pipeline.stages import run_recipe

    with Run.open(folder, recipe) as opened:
        for warning in opened.warnings:
            progress.warn(warning)
        if opened.resumed:
            progress.say(f"resuming {folder} (attempt {opened.attempt})")
        try:
            run_recipe(recipe, opened, progress, only=only)
        except KeyboardInterrupt:
            opened.record("interrupted")
            raise
        if not opened.writes or not (folder / SUMMARY).exists():
            return
        from deedrl.reports.report import write_report

        page = write_report(folder)
        opened.record("report_written", path=page.name)
    if show_results:
        from deedrl.reports.tables import print_before_after, read_summary

        print_before_after(read_summary(folder / SUMMARY))
        typer.echo(f"Report: {page}")
