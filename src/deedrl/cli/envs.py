"""The command ``deedrl envs``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from deedrl.benchmarks.scores import EnvironmentScores, Overview


def envs(
    environments: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Some of them.")] = None,
    measure: Annotated[bool, typer.Option("--measure", help="Play, and keep the scores in the package.")] = False,
    tasks: Annotated[int, typer.Option(min=1, help="Test tasks to play with each policy.")] = 120,
    base: Annotated[bool, typer.Option("--base", help="Also with the embedded model, untrained.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout, and nothing else.")] = False,
) -> None:
    """List the environments that come with DeedRL, and what simple policies score in them."""
    from deedrl.benchmarks.scores import keep_scores, measure_scores, overview, shipped_scores
    from deedrl.environments.suite import ENTRY_POINTS
    from deedrl.errors import ConfigError, suggest

    chosen = environments or list(ENTRY_POINTS)
    for ref in chosen:
        if ref not in ENTRY_POINTS:
            raise ConfigError(f"no environment '{ref}' comes with DeedRL{suggest(ref, ENTRY_POINTS)}")
    notes = Console(stderr=True)
    if measure:
        for ref in chosen:
            notes.print(f"{ref}: {tasks} tasks with each policy")
            keep_scores(measure_scores(ref, tasks, base=base))
    kept = shipped_scores()
    shown = [(overview(ref), kept.get(ref)) for ref in chosen]
    if json:
        import msgspec

        rows = [{"environment": one, "scores": scores} for one, scores in shown]
        typer.echo(msgspec.json.encode(rows))
        return
    Console().print(_table(shown))


def _table(shown: list[tuple[Overview, EnvironmentScores | None]]) -> Table:
    table = Table(title="Environments", title_justify="left", show_lines=True)
    for name in ("environment", "families", "shortest solutions", "completion (and progress) on test tasks"):
        table.add_column(name)
    for one, scores in shown:
        steps = [f"{level}: {low} to {high}, mean {mean:.1f}" for level, (low, mean, high) in one.steps.items()]
        splits = ", ".join(split for split, count in one.splits.items() if count)
        families = f"{', '.join(one.families)}\n[dim]{splits}[/]"
        table.add_row(f"[bold]{one.ref}[/]\n{one.summary}", families, "\n".join(steps) or "not known", _scores(scores))
    return table


def _scores(measured: EnvironmentScores | None) -> str:
    if measured is None:
        return "not measured; --measure does"
    lines = []
    for score in measured.scores:
        low, high = score.interval
        spread = f"[dim]\\[{100 * low:.1f}, {100 * high:.1f}][/]"
        lines.append(f"{score.policy}: {100 * score.completion:.1f} % {spread} ({score.mean_progress:.2f})")
    count = max(score.episodes for score in measured.scores)
    return "\n".join([*lines, f"[dim]{count} tasks, {measured.machine.date}[/]"])
