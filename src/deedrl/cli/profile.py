"""``deedrl profile``: how often a policy solves each training task, of any recipe and of any run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deedrl.cli.options import (
    JsonOption,
    OverridesArgument,
    PlainOption,
    ProcessesOption,
    QuietOption,
    progress_from,
)
from deedrl.cli.run import execute

if TYPE_CHECKING:
    from deedrl.pipeline.recipe import Recipe

OWN = "stages.profile."


def profile(
    recipe: Annotated[
        Path | None, typer.Argument(metavar="[RECIPE]", help="Recipe in YAML; default: the run's own.")
    ] = None,
    overrides: OverridesArgument = None,
    run: Annotated[
        Path | None, typer.Option("--run", "-r", help="Run folder, new or existing. Default: runs/<name>.")
    ] = None,
    stage: Annotated[str | None, typer.Option("--stage", help="Name of one stage, if the recipe has several.")] = None,
    adapter: Annotated[
        Path | None, typer.Option("--adapter", help="Start from this PEFT adapter (model.start_adapter).")
    ] = None,
    plain: PlainOption = False,
    quiet: QuietOption = False,
    json: JsonOption = False,
    processes: ProcessesOption = None,
) -> None:
    """Measure how often a policy solves each of its training tasks.

    A recipe with profile stages runs these, in its run folder. Of one without, its tasks are played by the policy that
    the run has trained so far, in a folder of its own beside the run, named after that policy.
    """
    import msgspec

    from deedrl.errors import ConfigError
    from deedrl.pipeline.own_recipe import load_own_recipe
    from deedrl.pipeline.recipe import load_recipe, select_stages

    given = list(overrides or [])
    if recipe is not None and "=" in str(recipe) and not recipe.exists():
        given.insert(0, str(recipe))
        recipe = None
    if adapter is not None:
        given.append(f"model.start_adapter={msgspec.json.encode(str(adapter)).decode()}")
    source = recipe or run
    if source is None:
        raise ConfigError("expected a recipe or --run with the folder of a run, got neither")

    def loaded(settings: list[str]) -> Recipe:
        return load_recipe(source, settings) if recipe is not None else load_own_recipe(source, settings)

    has_stage = any(one.kind == "profile" for one in loaded([]).stages)
    settings = loaded(given if has_stage else [text for text in given if not text.startswith(OWN)])
    folder = run or Path("runs") / settings.name
    if has_stage:
        names = select_stages(settings, ("profile",), stage)
    else:
        own = [text for text in given if text.startswith(OWN)]
        settings, folder = profile_alone(settings, folder, own, of_run=adapter is None)
        names = None
    execute(settings, folder, progress_from(plain, quiet, json), only=names, processes=processes)
    typer.echo(f"Profile: {folder}")


def profile_alone(recipe: Recipe, folder: Path, overrides: list[str], *, of_run: bool) -> tuple[Recipe, Path]:
    """A recipe of a profile alone and its folder; `of_run` takes the policy that the run in `folder` has, if any."""
    from deedrl.config import to_plain
    from deedrl.pipeline.recipe import recipe_from
    from deedrl.pipeline.run import EVENTS, finished_stages, latest_adapter, read_events

    data = to_plain(recipe) | {"stages": [{"stage": "profile"}]}
    trained = latest_adapter(folder) if of_run and folder.exists() else None
    version = "base"
    if trained is not None:
        place = "path" if recipe.model.adapter is None else "start_adapter"
        data["model"] = data["model"] | {place: str(trained.resolve())}
        events, _ = read_events(folder / EVENTS)
        versions = [result.metrics.get("policy_version") for result in finished_stages(events).values()]
        version = str(versions[-1]).replace(":", "-") if versions else "trained"
    return recipe_from(data, overrides), folder.with_name(f"{folder.name}-profile-{version}")
