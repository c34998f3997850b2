"""What an author's methods must give, and how long they may take: everything else is told as the author's error."""

from __future__ import annotations

import inspect
import math
import signal
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from deedrl.environments.fixtures import Fixture
from deedrl.errors import ConfigError, DeedRLError, EnvironmentAuthorError
from deedrl.rewards.rubric import Rubric
from deedrl.tools.limits import alarm
from deedrl.types import Action, Split, Task, Verdict

if TYPE_CHECKING:
    from deedrl.environments.environment import Environment

GENERATE_LIMIT_S = 600.0
"""For one call of `generate_tasks`: thousands of tasks take seconds, a loop without end takes for ever."""
DEMONSTRATE_LIMIT_S = 10.0


class OutOfTime(BaseException):
    """Raised inside an author's method at its limit; neither the author's ``except`` nor a tool's may stop it."""


@contextmanager
def contained(limit_s: float, what: str) -> Iterator[None]:
    """Raises `EnvironmentAuthorError` naming `what` and the place if the body takes longer or exits the process.

    Only the main thread of a POSIX process can be interrupted; elsewhere there is no limit.
    """
    interruptible = threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer")
    try:
        with alarm(limit_s, OutOfTime) if interruptible else nullcontext():
            yield
    except SystemExit as error:
        raise EnvironmentAuthorError(
            f"{what} tried to exit the process (code {error.code}){place_of(error)}; raise an exception instead"
        ) from error
    except OutOfTime as error:
        # The last frame is the alarm's own.
        frames = traceback.extract_tb(error.__traceback__)[:-1]
        place = f" ({frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name})" if frames else ""
        raise EnvironmentAuthorError(
            f"{what} did not finish within {limit_s:g} s{place}; look for a loop or a wait without end there"
        ) from None


def checked_verdict(given: Any, author: str) -> Verdict:
    """`given` as a `Verdict`; whatever breaks the contract raises `EnvironmentAuthorError` naming `author`."""
    if isinstance(given, bool | np.bool_):
        return Verdict(solved=bool(given), progress=float(given))
    if not isinstance(given, Verdict):
        raise EnvironmentAuthorError(f"{author}.verify: expected bool or Verdict, got {given!r}")
    if not isinstance(given.solved, bool | np.bool_):
        raise EnvironmentAuthorError(f"{author}.verify: expected solved to be True or False, got {given.solved!r}")
    progress = given.progress
    if isinstance(progress, bool) or not isinstance(progress, int | float | np.floating) or not math.isfinite(progress):
        raise EnvironmentAuthorError(f"{author}.verify: expected progress to be a finite number, got {progress!r}")
    if not 0.0 <= progress <= 1.0:
        raise EnvironmentAuthorError(f"{author}.verify: expected progress from 0 to 1, got {progress!r}")
    if (progress == 1.0) != bool(given.solved):
        raise EnvironmentAuthorError(
            f"{author}.verify: expected progress 1.0 exactly when solved, got solved={given.solved} with "
            f"progress={progress!r}"
        )
    verdict = msgspec.structs.replace(given, solved=bool(given.solved), progress=float(progress))
    try:
        msgspec.convert(msgspec.to_builtins(verdict), Verdict)
    except (TypeError, msgspec.ValidationError) as error:
        # It would be written to the store and could not be read back.
        raise EnvironmentAuthorError(
            f"{author}.verify: expected milestones as {{name: bool}} and violations as texts, got {given!r}: {error}"
        ) from error
    return verdict


def checked_state_hash(given: Any, author: str) -> str | None:
    """`given` if it is a text or None; anything else raises `EnvironmentAuthorError` naming `author`."""
    if given is None or isinstance(given, str):
        return given
    raise EnvironmentAuthorError(f"{author}.state_hash: expected a text or None, got {given!r}; make a text of it")


def checked_tasks(cls: type[Environment], split: Split, count: int, seed: int, **wanted: Any) -> list[Task]:
    """The tasks that `cls` generates, `wanted` handed on (families, difficulties).

    Whatever breaks the contract, not coming to an end included, raises `EnvironmentAuthorError` naming the class; a
    `wanted` that it does not take is a `ConfigError`.
    """
    author = f"{cls.__name__}.generate_tasks"
    parameters = inspect.signature(cls.generate_tasks).parameters.values()
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        for name in sorted(wanted.keys() - {parameter.name for parameter in parameters}):
            raise ConfigError(
                f"environment.{name}: {author} cannot choose tasks by {name}; take the setting out of the recipe or "
                f"give the method a parameter '{name}'"
            )
    try:
        with contained(GENERATE_LIMIT_S, author):
            tasks = list(cls.generate_tasks(split, count, seed, **wanted) or ())
    except DeedRLError:
        raise
    except Exception as error:
        raise EnvironmentAuthorError(
            f"{author} raised {type(error).__name__}: {error}{place_of(error)}; expected a list of {count} tasks"
        ) from error
    for task in tasks:
        if not isinstance(task, Task):
            raise EnvironmentAuthorError(f"{author}: expected tasks, got {task!r}; build them with Task.create")
        try:
            msgspec.convert(msgspec.to_builtins(task, str_keys=True), Task)
        except (TypeError, msgspec.ValidationError) as error:
            raise EnvironmentAuthorError(
                f"{author}: expected tasks whose fields have the types of Task, got {task!r}: {error}"
            ) from error
        if task.split != split:
            raise EnvironmentAuthorError(
                f"{author}: expected tasks of the split '{split}', got task {task.id} of '{task.split}'; pass "
                "split=split to Task.create"
            )
    return tasks


def demonstration(environment: Environment, task: Task) -> tuple[Action, ...]:
    """What a started environment demonstrates for `task`; `EnvironmentAuthorError` if it raises or is no solution."""
    author = f"{type(environment).__name__}.demonstrate"
    try:
        with contained(DEMONSTRATE_LIMIT_S, author):
            return checked_actions(environment.demonstrate(task), author)
    except DeedRLError:
        raise
    except Exception as error:
        raise EnvironmentAuthorError(
            f"{author} raised {type(error).__name__}: {error}{place_of(error)}; expected a list of Action"
        ) from error


def checked_actions(given: Any, author: str) -> tuple[Action, ...]:
    """`given` if it is a sequence of actions (None: no actions); else `EnvironmentAuthorError` naming `author`."""
    if given is None:
        return ()
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise EnvironmentAuthorError(f"{author}: expected a list of Action, got {given!r}; return [] if there is none")
    for action in given:
        if not isinstance(action, Action):
            raise EnvironmentAuthorError(
                f"{author}: expected a list of Action, got {action!r} in it; write Action(tool_name=..., "
                "parameters={...})"
            )
    return tuple(given)


def own_fixtures(cls: type[Environment], task: Task) -> tuple[Fixture, ...]:
    """The fixtures that `cls` brings for `task`; `EnvironmentAuthorError` naming the class for anything else."""
    given = tuple(cls.fixtures(task) or ())
    for fixture in given:
        if not isinstance(fixture, Fixture):
            raise EnvironmentAuthorError(f"{cls.__name__}.fixtures: expected a list of Fixture, got {fixture!r} in it")
    return given


def own_rubric(cls: type[Environment]) -> Rubric | None:
    """The rubric that `cls` brings; `EnvironmentAuthorError` naming the class if it raises or is none."""
    author = f"{cls.__name__}.rubric"
    try:
        with contained(DEMONSTRATE_LIMIT_S, author):
            rubric = cls.rubric()
    except DeedRLError:
        raise
    except Exception as error:
        raise EnvironmentAuthorError(
            f"{author} raised {type(error).__name__}: {error}{place_of(error)}; expected a Rubric or None"
        ) from error
    if rubric is None or isinstance(rubric, Rubric):
        return rubric
    raise EnvironmentAuthorError(f"{author}: expected a Rubric or None, got {rubric!r}")


def place_of(error: BaseException) -> str:
    """Where `error` was raised, as `` (file:line in function)``; of a `ToolCrash`, where the tool's own was."""
    original = getattr(error, "original", error)
    frames = traceback.extract_tb(original.__traceback__)
    return f" ({frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name})" if frames else ""
