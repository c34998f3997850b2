"""``deedrl bench``: what DeedRL's parts cost on this machine. One command a benchmark; nothing is kept on the disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from deedrl.benchmarks.measure import BenchmarkResult, Figure

bench = typer.Typer(help="Measure what DeedRL's parts cost on this machine.", no_args_is_help=True)

JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object on stdout, and nothing else.")]
RepetitionsOption = Annotated[int, typer.Option(min=1, help="How often everything is measured; medians are shown.")]

_MARKS = {True: " [green]met[/]", False: " [red]missed[/]", None: ""}


@bench.command("rollouts")
def rollouts(
    json: JsonOption = False,
    model: Annotated[str, typer.Option(help="embedded, a local folder or a hub id.")] = "embedded",
    dtype: Annotated[str, typer.Option(help="bf16, fp32 or auto.")] = "auto",
    episodes: Annotated[int, typer.Option(min=1, help="Episodes, all at once.")] = 64,
    turns: Annotated[list[int] | None, typer.Option(min=2, help="Turns of an episode; may be given again.")] = None,
    new_tokens: Annotated[int, typer.Option(min=1, help="Tokens sampled in every turn.")] = 32,
    repetitions: RepetitionsOption = 3,
) -> None:
    """The local policy: tokens a second over whole episodes of several turns on the support desk."""
    from deedrl.benchmarks.rollouts import RolloutSettings, benchmark_rollouts

    settings = RolloutSettings(
        model=model,
        dtype=dtype,
        episodes=episodes,
        turns=tuple(turns or (4,)),
        new_tokens=new_tokens,
        repetitions=repetitions,
    )
    show(benchmark_rollouts(settings), json)


@bench.command("update")
def update(
    json: JsonOption = False,
    model: Annotated[str, typer.Option(help="embedded, a local folder or a hub id.")] = "embedded",
    dtype: Annotated[str, typer.Option(help="bf16, fp32 or auto.")] = "auto",
    tasks: Annotated[int, typer.Option(min=1, help="Tasks of the batch.")] = 8,
    siblings: Annotated[int, typer.Option(min=1, help="Episodes of a task.")] = 8,
    shared_tokens: Annotated[int, typer.Option(min=1, help="Tokens that all episodes begin with.")] = 300,
    own_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each episode after them.")] = 200,
    micro_batch_tokens: Annotated[int, typer.Option(min=1, help="Computed at a time.")] = 2048,
    repetitions: RepetitionsOption = 3,
) -> None:
    """One GRPO update of a LoRA adapter: seconds, and the most memory this process held."""
    from deedrl.benchmarks.update import UpdateSettings, benchmark_update

    settings = UpdateSettings(
        model=model,
        dtype=dtype,
        tasks=tasks,
        siblings=siblings,
        shared_tokens=shared_tokens,
        own_tokens=own_tokens,
        micro_batch_tokens=micro_batch_tokens,
        repetitions=repetitions,
    )
    show(benchmark_update(settings), json)


@bench.command("runner")
def runner(
    json: JsonOption = False,
    concurrency: Annotated[int, typer.Option(min=1, help="Episodes in the event loop, all at once.")] = 10_000,
    threaded_concurrency: Annotated[int, typer.Option(min=1, help="Episodes with a thread each, at once.")] = 64,
    tickets: Annotated[int, typer.Option(min=1, help="Tickets of the support desk.")] = 140,
    repetitions: RepetitionsOption = 5,
) -> None:
    """The episode loop: its own cost a step, its parts apart, threads, memory; and the support desk's steps."""
    from deedrl.benchmarks.runner import RunnerSettings, benchmark_runner

    settings = RunnerSettings(
        concurrency=concurrency,
        threaded_concurrency=threaded_concurrency,
        tickets=tickets,
        repetitions=repetitions,
    )
    show(benchmark_runner(settings), json)


@bench.command("store")
def store(
    json: JsonOption = False,
    short_records: Annotated[int, typer.Option(min=1, help="Records like the support desk's.")] = 2000,
    long_records: Annotated[int, typer.Option(min=1, help="Records of long episodes.")] = 100,
    folder: Annotated[Path | None, typer.Option(help="A folder on the disk to measure; default: temporary.")] = None,
    repetitions: RepetitionsOption = 5,
) -> None:
    """The trajectory store: megabytes a second written with crash safety, and read in full."""
    from deedrl.benchmarks.store import StoreSettings, benchmark_store

    settings = StoreSettings(
        short_records=short_records,
        long_records=long_records,
        folder="" if folder is None else str(folder),
        repetitions=repetitions,
    )
    show(benchmark_store(settings), json)


@bench.command("parser")
def parser(
    json: JsonOption = False,
    longest: Annotated[int, typer.Option(min=1, help="Characters of the longest hostile texts.")] = 1_000_000,
    calls: Annotated[int, typer.Option(min=1, help="Of the shortest valid action; longer ones get fewer.")] = 1000,
    repetitions: RepetitionsOption = 3,
) -> None:
    """The action parser: microseconds for valid actions, and how the time of hostile texts grows with their length."""
    from deedrl.benchmarks.parser import ParserSettings, benchmark_parser

    show(benchmark_parser(ParserSettings(longest=longest, calls=calls, repetitions=repetitions)), json)


@bench.command("environments")
def environments(
    refs: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Some of them.")] = None,
    json: JsonOption = False,
    tasks: Annotated[int, typer.Option(min=1, help="Tasks of all difficulties, by their demonstrations.")] = 120,
    repetitions: RepetitionsOption = 3,
) -> None:
    """The environments that come with DeedRL: steps a second in one process and in one a core, by the wall clock."""
    from deedrl.benchmarks.environments import EnvironmentsSettings, benchmark_environments

    show(
        benchmark_environments(EnvironmentsSettings(refs=tuple(refs or ()), tasks=tasks, repetitions=repetitions)), json
    )


# ---------------------------------------------------------------- what is shown


def show(result: BenchmarkResult, json: bool) -> None:
    """Prints `result`: as JSON on one line, or as a table with the machine below it."""
    if json:
        import msgspec

        typer.echo(msgspec.json.encode(result))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=f"deedrl bench {result.benchmark}", title_justify="left")
    table.add_column("measured")
    table.add_column("median", justify="right")
    table.add_column("range", justify="right")
    table.add_column("unit")
    table.add_column("target")
    for one in result.figures:
        spread = f"{number(one.low)} – {number(one.high)}"
        table.add_row(escape(one.name), number(one.median), spread, one.unit, _target(one) + _MARKS[one.met])
    console = Console()
    console.print(table)
    console.print(_machine_line(result), highlight=False, markup=False)


def number(value: float) -> str:
    """Three digits at least, and no exponents."""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"


def _target(one: Figure) -> str:
    if one.at_most is not None:
        return f"≤ {number(one.at_most)}"
    return "" if one.at_least is None else f"≥ {number(one.at_least)}"


def _machine_line(result: BenchmarkResult) -> str:
    machine = result.machine
    load = "" if machine.load is None else f", load {machine.load}"
    counts = ", ".join(f"{name} {count:,}" for name, count in result.counts.items())
    return f"{machine.processor}, {machine.cores} cores, {machine.python}, {machine.date}{load}; {counts}"
