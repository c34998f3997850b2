"""``deedrl replay``: a run's stored episodes again, and whether they come out as recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, get_args

import typer

from deedrl.cli.options import RunArgument, progress_from
from deedrl.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from deedrl.pipeline.run_replay import Mode, RunReplay

SHOWN_DIFFERENCES = 10


def replay(
    run: RunArgument,
    env: Annotated[bool, typer.Option("--env", help="Recorded actions in a fresh environment (the default).")] = False,
    frozen: Annotated[
        bool, typer.Option("--frozen", help="Recorded completions and tool outputs; no tool runs.")
    ] = False,
    policy: Annotated[
        bool, typer.Option("--policy", help="Recorded completions through the episode loop and the environment.")
    ] = False,
    stage: Annotated[str | None, typer.Option("--stage", help="Only episodes of this stage or store.")] = None,
    episode: Annotated[str | None, typer.Option("--episode", help="Only the episode with this id.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most so many episodes.")] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Processes.")] = 1,
    plain: Annotated[bool, typer.Option("--plain", help="Plain lines instead of bars.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Warnings and results only.")] = False,
    json: Annotated[bool, typer.Option("--json", help="The result as one JSON object on stdout.")] = False,
) -> None:
    """Replay stored episodes of a run and name the first differences; exit code 1 if there are any."""
    from deedrl.pipeline.run_replay import replay_run

    asked: tuple[tuple[Mode, bool], ...] = (("env", env), ("frozen", frozen), ("policy", policy))
    chosen = [mode for mode, wanted in asked if wanted]
    if len(chosen) > 1:
        raise ConfigError(f"expected one of --env, --frozen and --policy, got --{' and --'.join(chosen)}")
    progress = progress_from(plain, quiet or json, False)
    mode = chosen[0] if chosen else "env"
    found = replay_run(run, mode, progress, stage=stage, episode=episode, limit=limit, jobs=jobs)
    _print_json(found) if json else _print(found)
    if found.different:
        raise typer.Exit(code=1)


def _print_json(found: RunReplay) -> None:
    import msgspec

    from deedrl.redaction import redact

    plain = msgspec.to_builtins(found)
    described = [report.describe() for report in found.differences]
    whole = plain | {"different": found.different, "described": described}
    typer.echo(msgspec.json.encode(redact(whole)).decode())


def _print(found: RunReplay) -> None:
    from rich.console import Console

    from deedrl.reports.progress import clean

    console = Console()
    console.print(as_table(found))
    for reason, count in found.reasons.items():
        typer.echo(f"not compared to the end, {count} episodes: {clean(reason)}")
    for report in found.differences[:SHOWN_DIFFERENCES]:
        typer.echo(clean(report.describe()))
    if found.different > SHOWN_DIFFERENCES:
        typer.echo(f"… and {found.different - SHOWN_DIFFERENCES} more")


def as_table(found: RunReplay) -> Table:
    """One row a store, and one for all of them."""
    from rich.table import Table

    from deedrl.rollouts.replay_report import Outcome

    table = Table(title=f"Replay ({found.mode})", title_justify="left")
    outcomes = get_args(Outcome)
    table.add_column("store", overflow="fold")
    for name in ("episodes", "steps", *outcomes):
        table.add_column(name, justify="right")
    rows = {**found.stores, "all": found.total} if len(found.stores) > 1 else found.stores
    for store, counts in rows.items():
        numbers = [counts.episodes, counts.steps, *(counts.outcomes.get(outcome, 0) for outcome in outcomes)]
        table.add_row(store, *map(str, numbers))
    return table
