"""Proves that an environment keeps its contract and reports what each check saw and what to do."""

from __future__ import annotations

from collections.abc import Callable

from deedrl.environments import checks
from deedrl.environments.checks import DoesNotApply, Failed, Subject
from deedrl.environments.contract import checked_tasks, contained, place_of
from deedrl.environments.environment import Environment
from deedrl.errors import DeedRLError, EnvironmentAuthorError
from deedrl.tools.tool import ToolCrash
from deedrl.types import Record, Task


class CheckResult(Record, frozen=True):
    """Outcome of one check."""

    name: str
    ok: bool | None
    """None when the check does not apply, e.g. demonstrations where the environment ships none."""
    seen: str
    todo: str = ""
    """What to do about a failure."""


class CheckReport(Record, frozen=True):
    """Outcomes of all checks of one environment."""

    environment: str
    results: tuple[CheckResult, ...]

    @property
    def ok(self) -> bool:
        return all(result.ok is not False for result in self.results)


START_LIMIT_S = 30.0
CHECK_LIMIT_S = 120.0
"""For one check over all its tasks; an environment that is only slow is checked on fewer."""

CHECKS: dict[str, Callable[[Subject], str]] = {
    "gymnasium": checks.check_gymnasium,
    "determinism": checks.check_determinism,
    "isolation": checks.check_isolation,
    "leftovers": checks.check_leftovers,
    "json round trip": checks.check_round_trip,
    "no-op score": checks.check_noop,
    "verifier reads only": checks.check_verifier_reads_only,
    "demonstrations": checks.check_demonstrations,
    "fixtures": checks.check_fixtures,
    "wrong parameters": checks.check_wrong_parameters,
    "global random state": checks.check_global_random,
    "rubric": checks.check_rubric,
    "leaks": checks.check_leaks,
    "splits": checks.check_splits,
}
"""All checks in the order of the report."""


def check_environment(cls: type[Environment], *, tasks: int = 20, seed: int = 0) -> CheckReport:
    """Runs all checks on `tasks` generated training tasks, or on one blank task if `cls` generates none.

    An environment that cannot be built or reset raises `EnvironmentAuthorError` with the author's exception and
    its place; every other fault is a failed check in the report.
    """
    subject = Subject(cls, _tasks_of(cls, tasks, seed), seed)
    return CheckReport(
        environment=cls.__qualname__,
        results=tuple(_run(name, check, subject) for name, check in CHECKS.items()),
    )


def _run(name: str, check: Callable[[Subject], str], subject: Subject) -> CheckResult:
    try:
        with contained(CHECK_LIMIT_S, f"the check '{name}'"):
            return CheckResult(name=name, ok=True, seen=check(subject))
    except DoesNotApply as reason:
        return CheckResult(name=name, ok=None, seen=str(reason))
    except Failed as failed:
        return CheckResult(name=name, ok=False, seen=failed.seen, todo=failed.todo)
    except Exception as error:  # noqa: BLE001 - the author's exception is the finding
        if isinstance(error, EnvironmentAuthorError) and not isinstance(error, ToolCrash):
            # Raised by DeedRL: it names the author's class and method, and its own place tells nothing.
            return CheckResult(name=name, ok=False, seen=str(error), todo="do what the message says")
        seen = f"{type(error).__name__}: {error}{place_of(error)}"
        return CheckResult(name=name, ok=False, seen=seen, todo="fix the exception")


def _tasks_of(cls: type[Environment], count: int, seed: int) -> list[Task]:
    tasks = checked_tasks(cls, "train", count, seed) or [Task.create(prompt="")]
    try:
        with contained(START_LIMIT_S, f"{cls.__name__}.reset"):
            environment = cls()
            try:
                environment.reset(seed=seed, options={"task": tasks[0]})
            finally:
                environment.close()
    except DeedRLError:
        raise
    except Exception as error:
        raise EnvironmentAuthorError(
            f"{cls.__name__} cannot start an episode: {type(error).__name__}: {error}{place_of(error)}"
        ) from error
    return tasks
