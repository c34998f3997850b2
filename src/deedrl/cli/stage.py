"""``deedrl eval``, ``collect``, ``sft``, ``train``, ``ppo``, ``dpo``, ``mine``: single stages in a run folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

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

# command → (value of the key `stage` in a recipe, help)
COMMANDS: dict[str, tuple[tuple[str, ...], str]] = {
    "eval": (("baseline", "evaluate"), "Evaluate a model or a run's current policy on held-out tasks."),
    "collect": (("cold_start",), "Sample trajectories and keep the stable, efficient successes."),
    "sft": (("sft",), "Fine-tune on the kept trajectories of a run."),
    "train": (("grpo",), "Improve the policy of a run online with GRPO."),
    "ppo": (("ppo",), "Improve the policy of a run online with PPO and a critic."),
    "dpo": (("dpo",), "Improve the policy of a run on pairs of its stored episodes with DPO."),
    "mine": (("mine",), "Find the tasks a run's policy still fails at and train on them."),
}


def stage_command(kinds: tuple[str, ...], help_text: str) -> Callable[..., None]:
    """A command that runs the recipe's stages of these kinds, in the recipe's order, in one run folder."""

    def command(
        recipe: Annotated[
            Path | None, typer.Argument(metavar="[RECIPE]", help="Recipe in YAML; default: the run's own.")
        ] = None,
        overrides: OverridesArgument = None,
        run: Annotated[
            Path | None, typer.Option("--run", "-r", help="Run folder, new or existing. Default: runs/<name>.")
        ] = None,
        stage: Annotated[
            str | None, typer.Option("--stage", help="Name of one stage, if the recipe has several.")
        ] = None,
        adapter: Annotated[
            Path | None, typer.Option("--adapter", help="Start from this PEFT adapter (model.start_adapter).")
        ] = None,
        plain: PlainOption = False,
        quiet: QuietOption = False,
        json: JsonOption = False,
        processes: ProcessesOption = None,
    ) -> None:
        import msgspec

        from deedrl.errors import ConfigError
        from deedrl.pipeline.own_recipe import load_own_recipe
        from deedrl.pipeline.recipe import load_recipe, select_stages

        settings_list = list(overrides or [])
        if recipe is not None and "=" in str(recipe) and not recipe.exists():
            settings_list.insert(0, str(recipe))
            recipe = None
        if recipe is None and run is None:
            raise ConfigError("expected a recipe or --run with the folder of a run, got neither")
        if adapter is not None:
            # In quotes: a folder may be called 7 or no.
            settings_list.append(f"model.start_adapter={msgspec.json.encode(str(adapter)).decode()}")
        if recipe is not None:
            settings = load_recipe(recipe, settings_list)
        else:
            assert run is not None  # one of them was given, see above
            settings = load_own_recipe(run, settings_list)
        names = select_stages(settings, kinds, stage)
        folder = run or Path("runs") / settings.name
        execute(settings, folder, progress_from(plain, quiet, json), only=names, processes=processes)

    command.__doc__ = help_text
    return command
