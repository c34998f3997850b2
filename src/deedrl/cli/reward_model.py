"""``deedrl reward-model``: train a run's reward model, score episodes with it, go on with what was labelled since."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deedrl.cli.options import PlainOption, QuietOption, progress_from
from deedrl.cli.stage import stage_command

if TYPE_CHECKING:
    from deedrl.pipeline.reward_model_folder import RewardModelInfo
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
) -> None:
    """Score a run's stored episodes, one JSON object a line; with --labels, how far labels agree instead."""
    import msgspec

    from deedrl.pipeline.reward_model_folder import open_version
    from deedrl.pipeline.reward_model_scoring import (
        agreement_with,
        reward_model_of,
        scored_episodes,
        session_of,
    )
    from deedrl.pipeline.reward_model_stage import newest_of

    with session_of(run, progress_from(plain, quiet, False)) as session:
        settings = reward_model_of(session, stage)
        saved = newest_of(session, settings) if model is None else open_version(model)
        if labels:
            typer.echo(_words(agreement_with(session, settings, saved, labels)))
            return
        for episode in scored_episodes(session, settings, saved, store or []):
            typer.echo(msgspec.json.encode(episode).decode())


@reward_model.command("refresh")
def refresh(
    run: RunOption,
    stage: StageOption = None,
    labels: LabelsOption = None,
    plain: PlainOption = False,
    quiet: QuietOption = False,
) -> None:
    """Go on from a run's reward model with episodes and labels that came since; its calibration set is kept."""
    from deedrl.pipeline.reward_model_scoring import reward_model_of, session_of
    from deedrl.pipeline.reward_model_stage import refresh as refreshed

    with session_of(run, progress_from(plain, quiet, False)) as session:
        before, after = refreshed(session, reward_model_of(session, stage), labels or [])
    for line in _compared(before.info, after.info):
        typer.echo(line)
    typer.echo(f"Saved: {after.folder}")


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
