"""``deedrl reward-model``: train a run's reward model, score episodes with it, go on with what was labelled since."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deedrl.cli.options import PlainOption, ProcessesOption, QuietOption, progress_from
from deedrl.cli.run import joined_with
from deedrl.cli.stage import stage_command

if TYPE_CHECKING:
    from deedrl.pipeline.reward_model_folder import RewardModelInfo
    from deedrl.pipeline.session import Session
    from deedrl.training.rank_agreement import RankAgreement

reward_model = typer.Typer(help="Learn from preferences to score episodes.", no_args_is_help=True)

RunOption = Annotated[Path, typer.Option("--run", "-r", help="Run folder.")]
StageOption = Annotated[str | None, typer.Option("--stage", help="Name of one stage, if the recipe has several.")]
LabelsOption = Annotated[
    list[Path] | None,
    typer.Option("--labels", help="JSON lines of people's labels; again for more. See docs/reward-model.md."),
]

_TRAIN = "Train a run's reward models on its stored episodes and on people's labels."
reward_model.command("train", help=_TRAIN)(stage_command(("reward_model",), _TRAIN))


@reward_model.command("score")
def score(
    run: RunOption,
    model: Annotated[
        Path | None, typer.Option("--model", help="Folder of a saved version. Default: the run's newest.")
    ] = None,
    store: Annotated[
        list[str] | None, typer.Option("--store", help="Store to score; again for more. Default: those it learns from.")
    ] = None,
    stage: StageOption = None,
    labels: LabelsOption = None,
    plain: PlainOption = False,
    quiet: QuietOption = False,
    processes: ProcessesOption = None,
) -> None:
    """Score a run's stored episodes, one JSON object a line; with --labels, how far labels agree instead."""
    import msgspec

    from deedrl.pipeline.reward_model_folder import open_version
    from deedrl.pipeline.reward_model_scoring import agreement_with, reward_model_of, scored_episodes
    from deedrl.pipeline.reward_model_stage import newest_of

    with _session(run, plain, quiet, processes) as session:
        settings = reward_model_of(session, stage)
        saved = newest_of(session, settings) if model is None else open_version(model)
        if labels:
            _show(session, [_words(agreement_with(session, settings, saved, labels))])
            return
        episodes = scored_episodes(session, settings, saved, store or [])
        _show(session, (msgspec.json.encode(episode).decode() for episode in episodes))


@reward_model.command("refresh")
def refresh(
    run: RunOption,
    stage: StageOption = None,
    labels: LabelsOption = None,
    plain: PlainOption = False,
    quiet: QuietOption = False,
    processes: ProcessesOption = None,
) -> None:
    """Go on from a run's reward model with episodes and labels that came since; its calibration set is kept."""
    from deedrl.pipeline.reward_model_scoring import reward_model_of
    from deedrl.pipeline.reward_model_stage import refresh as refreshed

    with _session(run, plain, quiet, processes) as session:
        before, after = refreshed(session, reward_model_of(session, stage), labels or [])
        _show(session, [*_compared(before.info, after.info), f"Saved: {after.folder}"])


@contextmanager
def _session(run: Path, plain: bool, quiet: bool, processes: int | None) -> Iterator[Session]:
    """A session in the run of a folder, in each of the processes that a launcher started."""
    from deedrl.pipeline.own_recipe import load_own_recipe
    from deedrl.pipeline.reward_model_scoring import session_of

    progress = progress_from(plain, quiet, False)
    with joined_with(load_own_recipe(run), progress, processes) as own, session_of(run, own) as session:
        yield session


def _show(session: Session, lines: Iterable[str]) -> None:
    """Prints `lines`, which all processes make together, once."""
    for line in lines:
        if session.run.writes:
            typer.echo(line)


def _compared(before: RewardModelInfo, after: RewardModelInfo) -> list[str]:
    """Agreement with each calibration set, before and after."""
    lines = []
    for index, part in enumerate(after.calibration):
        earlier = _words(before.calibration[index].agreement) if index < len(before.calibration) else "not there yet"
        lines.append(f"calibration set {part.version} ({part.hash[:12]}): {earlier} -> {_words(part.agreement)}")
    return lines


def _words(agreement: RankAgreement) -> str:
    if agreement.accuracy is None:
        return "nothing to compare"
    tau = "" if agreement.tau is None else f", Kendall's tau {agreement.tau:.2f} over {agreement.tasks} tasks"
    return f"{agreement.accuracy:.1%} of {agreement.compared} comparisons{tau}"
