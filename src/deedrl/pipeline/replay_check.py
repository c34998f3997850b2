"""Before anything is learnt from them, a few episodes are replayed: what does not come again is refused."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from random import Random

from deedrl.environments.environment import Environment
from deedrl.errors import ConfigError, DeedRLError, suggest
from deedrl.pipeline.replay_worker import replay_apart
from deedrl.pipeline.session import Session
from deedrl.rollouts.replay import declared_unreplayable
from deedrl.rollouts.replay_report import ReplayReport
from deedrl.seeding import stream
from deedrl.training import processes
from deedrl.types import Record, Task, Trajectory

SAMPLE = 8
"""Episodes replayed for a stage."""


class Unreplayable(DeedRLError):
    """Episodes to learn from do not come out again as they were recorded."""


class ReplayCheck(Record, frozen=True):
    """What the replay of a stage's sample found; an event of the run."""

    episodes: int
    steps: int
    """Compared."""
    seconds: float
    different: tuple[str, ...] = ()
    """Differences in words."""
    problem: str | None = None
    """Why the stage may not learn from its episodes."""


def check_allowed(session: Session) -> None:
    """Raises `ConfigError` for a name in `allow_unreplayable` that is neither the environment's nor a tool's."""
    settings = session.recipe.environment
    if not settings.allow_unreplayable:
        return
    known = {settings.ref, *(name for cls in _parts(session.environment_class) for name in cls.tools)}
    for name in settings.allow_unreplayable:
        if name not in known:
            raise ConfigError(
                f"environment.allow_unreplayable: expected {settings.ref} or names of its tools, got "
                f"'{name}'{suggest(name, known)}"
            )


def check_replays(session: Session, stage: str, episodes: Iterable[Trajectory]) -> None:
    """Replays a sample of the `episodes` that `stage` is about to learn from, once for each stage and process.

    Raises `Unreplayable` naming environment, tool and versions where one differs, or calls a tool that is declared not
    replayable and not allowed by name. What was found becomes the event ``replay_check``.
    """
    settings = session.recipe.environment
    if stage in session.replay_checked:
        return
    if settings.ref in settings.allow_unreplayable:
        session.replay_checked.add(stage)
        session.run.record("replay_check", stage=stage, episodes=0, allowed=settings.ref)
        return
    found = processes.from_first(lambda: _checked(session, stage, list(episodes)))
    if found.problem is None and not found.episodes:
        return  # nobody has called a tool yet; the stage's next episodes are asked
    session.replay_checked.add(stage)
    fields = {name: getattr(found, name) for name in found.__struct_fields__}
    session.run.record("replay_check", stage=stage, allowed=settings.allow_unreplayable, **fields)
    if found.problem is not None:
        raise Unreplayable(f"{stage}: {found.problem}")


def _checked(session: Session, stage: str, episodes: Sequence[Trajectory]) -> ReplayCheck:
    began = time.monotonic()
    tasks = {task.id: task for task in session.tasks("train")}
    known = {t.episode_id: t for t in episodes if t.task_id in tasks and any(_calls(t))}
    declared = _declared(session, known.values(), tasks)
    if declared is not None:
        return ReplayCheck(episodes=0, steps=0, seconds=time.monotonic() - began, problem=declared)
    rng = stream(session.recipe.seed, stage, "replay")
    sample = covering_sample(list(known.values()), SAMPLE, rng)
    reports = replay_apart(session.recipe, sample, tasks) if sample else []
    different = [report for report in reports if not report.equal]
    return ReplayCheck(
        episodes=len(reports),
        steps=sum(report.compared_steps for report in reports),
        seconds=time.monotonic() - began,
        different=tuple(report.describe() for report in different),
        problem=_problem(session, different, len(reports)) if different else None,
    )


def covering_sample(episodes: Sequence[Trajectory], count: int, rng: Random) -> list[Trajectory]:
    """`count` episodes at random (all if there are fewer), those first that call a tool no earlier one has called."""
    shuffled = rng.sample(episodes, len(episodes))
    seen: set[str] = set()
    covering: list[Trajectory] = []
    others: list[Trajectory] = []
    for trajectory in shuffled:
        new = set(_calls(trajectory)) - seen
        (covering if new else others).append(trajectory)
        seen |= new
    return [*covering, *others][:count]


def _calls(trajectory: Trajectory) -> Iterator[str]:
    return (step.action.tool_name or "" for step in trajectory.steps if step.tool_output is not None)


# ---------------------------------------------------------------- in words


def _declared(session: Session, episodes: Iterable[Trajectory], tasks: dict[str, Task]) -> str | None:
    """Why the stage may not go on where an episode calls a tool that is declared not replayable and not allowed."""
    settings = session.recipe.environment
    for trajectory in episodes:
        tools = session.environment_class.played_by(tasks[trajectory.task_id]).tools
        declared = declared_unreplayable(tools.values()).keys() - set(settings.allow_unreplayable)
        if called := sorted(declared & set(_calls(trajectory))):
            name = called[0]
            return (
                f"episode {trajectory.episode_id} of {settings.ref} calls '{name}' (version {tools[name].version}), "
                f"which is declared not replayable, so that nobody can check what is learnt from it. "
                f"{_remedy(session, name)}"
            )
    return None


def _problem(session: Session, different: Sequence[ReplayReport], count: int) -> str:
    ref, first = session.recipe.environment.ref, different[0]
    assert first.difference is not None
    tool = first.difference.tool
    version = first.replayed_versions.get(tool or "", "unknown")
    place = f"after a call of the tool '{tool}' (version {version})" if tool else "before the first call, after setup"
    return (
        f"{len(different)} of {count} episodes of {ref} do not replay: they come out otherwise than recorded, first "
        f"seen {place}. {first.describe()}. {_remedy(session, tool)}"
    )


def _remedy(session: Session, tool: str | None) -> str:
    name = tool or session.recipe.environment.ref
    return (
        "Let results depend on the state, the parameters and the episode's seed (self.np_random) alone; if tools have "
        "changed since, play the episodes again in a new run folder; if it is meant, allow it with "
        f"'environment.allow_unreplayable=[{name}]' and run the same command again to resume (docs/replay.md)"
    )


def _parts(cls: type[Environment]) -> Iterator[type[Environment]]:
    """The class, and those that a combination is made of."""
    yield cls
    for part in getattr(cls, "parts", {}).values():
        yield from _parts(part)
