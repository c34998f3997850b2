"""The `deedrl` command. Commands import what they need when they run, so that help appears at once."""

from __future__ import annotations

import errno
import importlib
import importlib.util
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from deedrl.cli import stage
from deedrl.cli.bench import bench
from deedrl.cli.export import export
from deedrl.cli.label import label
from deedrl.cli.plan import plan
from deedrl.cli.profile import profile
from deedrl.cli.replay import replay
from deedrl.cli.report import report
from deedrl.cli.reward_model import reward_model
from deedrl.cli.run import run
from deedrl.errors import DeedRLError

EXIT_ERROR = 2
EXIT_INTERRUPTED = 130
MAX_MESSAGE_CHARS = 6000

_ROOM, _ACCESS = "make room", "give access to it or choose another folder"
# What no program can repair, by errno: what happened, and what to do. Any other OSError is a bug until shown otherwise.
_TROUBLE_OF_THE_MACHINE = {
    errno.ENOSPC: ("no space left on the disk", _ROOM),
    errno.EDQUOT: ("the disk quota is used up", _ROOM),
    errno.EROFS: ("the file system is read-only", _ACCESS),
    errno.EACCES: ("permission denied", _ACCESS),
    errno.EPERM: ("permission denied", _ACCESS),
    errno.ENOTDIR: ("expected a folder and found a file", "choose another folder"),
    errno.ENAMETOOLONG: ("the path is too long", "choose a shorter one"),
    errno.EMFILE: ("too many files are open", "raise `ulimit -n` or lower the recipe's concurrency"),
    errno.EIO: ("the disk reports an error", "check the disk"),
}


class Interrupted(Exception):
    """Ctrl-C or SIGTERM, in a form that typer does not turn into its own message."""


class _Commands(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, typer.Abort):
            raise Interrupted from None


app = typer.Typer(
    name="deedrl",
    cls=_Commands,
    help="From words to deeds: trains a language model into an agent that finishes jobs, and proves it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from deedrl import __version__

        typer.echo(f"deedrl {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def _register() -> None:
    app.command("run")(run)
    for name, (kinds, help_text) in stage.COMMANDS.items():
        app.command(name, help=help_text)(stage.stage_command(kinds, help_text))
    app.command("profile")(profile)
    app.command("plan")(plan)
    app.command("report")(report)
    app.command("replay")(replay)
    app.command("export")(export)
    app.command("label")(label)
    app.add_typer(reward_model, name="reward-model")
    app.add_typer(bench, name="bench")
    for name, module, help_text in _DEFERRED:
        if importlib.util.find_spec(module):
            app.command(name, help=help_text, context_settings=_PASS_ON)(_deferred(name, module))


# Commands whose files import more than help should wait for: name, file, help.
_DEFERRED = (
    ("check-env", "deedrl.cli.check_env", "Check that an environment keeps its contract."),
    ("envs", "deedrl.cli.envs", "List the environments that come with DeedRL, and what simple policies score in them."),
    ("parse", "deedrl.cli.parse", "Show what the action parser makes of completions."),
)
_PASS_ON: dict[str, Any] = {"ignore_unknown_options": True, "help_option_names": []}


def _deferred(name: str, module: str) -> Callable[..., None]:
    """A command that loads its file when it runs and hands its arguments over; the function is named like the file."""

    def command(arguments: Annotated[list[str] | None, typer.Argument()] = None) -> None:
        real = getattr(importlib.import_module(module), module.rpartition(".")[2])
        inner = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        inner.command(name)(real)
        code = inner(args=arguments or [], prog_name=f"deedrl {name}", standalone_mode=False)
        if code:
            raise typer.Exit(code)

    return command


_register()


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits: 0 done, 1 bug, 2 something the user can fix, 130 interrupted."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        app(args=arguments, standalone_mode=True)
    except DeedRLError as error:
        sys.exit(_fail(str(error), EXIT_ERROR))
    except (KeyboardInterrupt, Interrupted):
        again = "run the same command again to resume; nothing reported is lost"
        sys.exit(_fail(f"interrupted: {again}", EXIT_INTERRUPTED))
    except OSError as error:
        if error.errno not in _TROUBLE_OF_THE_MACHINE:
            raise
        place = f" for {error.filename}" if error.filename else ""
        what, remedy = _TROUBLE_OF_THE_MACHINE[error.errno]
        again = f"what was written before is intact; {remedy} and run the same command again to resume"
        sys.exit(_fail(f"{what}{place}: {again}", EXIT_ERROR))


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _fail(message: str, code: int) -> int:
    from deedrl.redaction import loggable

    message = loggable(message)  # before it is cut: half a key has no longer the shape of one
    if len(message) > MAX_MESSAGE_CHARS:  # an author's exception may hold a whole file
        message = f"{message[: MAX_MESSAGE_CHARS // 2]} … {message[-MAX_MESSAGE_CHARS // 2 :]}"
    from deedrl.training.processes import name

    who = f"deedrl, {name()}" if name() else "deedrl"
    print(f"{who}: {message}", file=sys.stderr, flush=True)
    return code
