"""Several environments as one, so that one recipe trains on all of their jobs at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import gymnasium
import msgspec

from deedrl.environments.contract import checked_tasks, own_rubric
from deedrl.environments.copies import private_copy
from deedrl.environments.environment import Environment
from deedrl.environments.fixtures import Fixture
from deedrl.errors import ConfigError, EnvironmentAuthorError, TaskError, suggest
from deedrl.rewards.rubric import Rubric
from deedrl.tools.tool import Tool
from deedrl.tools.toolbox import Toolbox
from deedrl.types import Action, Split, Task, Verdict, content_hash


class Combined(Environment):
    """Plays each task in the part that it belongs to; the model sees that part's instructions and tools alone.

    A subclass names its `parts`. A task's family is ``part/family``. Tasks of the parts take turns.
    """

    parts: ClassVar[Mapping[str, type[Environment]]] = MappingProxyType({})
    """Environment classes by the name that their tasks' families begin with."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not cls.parts or any("/" in name for name in cls.parts):
            raise EnvironmentAuthorError(
                f"{cls.__name__}.parts: expected environment classes by names without '/', got {dict(cls.parts)}"
            )
        # What reports ask by name (is this tool a look?) is answered by the first part that has such a tool.
        tools: dict[str, Tool] = {}
        for part in cls.parts.values():
            for name, entry in part.tools.items():
                tools.setdefault(name, entry)
        cls.tools = Toolbox(tools.values())
        cls.blocking = any(part.blocking for part in cls.parts.values())

    def __init__(self) -> None:
        self._copies: dict[str, Environment] = {}
        self._part: Environment | None = None
        self._inner: Task | None = None

    # ------------------------------------------------------------ tasks

    @classmethod
    def generate_tasks(
        cls,
        split: Split,
        count: int,
        seed: int,
        families: Sequence[str] | None = None,
        difficulties: Sequence[str] | None = None,
    ) -> list[Task]:
        """`count` tasks of the parts in turn; `families` names parts (``ops``) or their families (``ops/leak``)."""
        chosen = cls._chosen(families)
        per_part = [len(range(index, count, len(chosen))) for index in range(len(chosen))]
        decks = []
        for (name, named), wanted in zip(chosen.items(), per_part, strict=True):
            given = {"families": named, "difficulties": difficulties}
            choices = {key: values for key, values in given.items() if values}
            made = checked_tasks(cls.parts[name], split, wanted, seed, **choices)[:wanted]
            if len(made) < wanted:
                raise TaskError(f"{cls.__name__}: the part '{name}' made {len(made)} tasks of {wanted}; ask for fewer")
            decks.append([_renamed(task, f"{name}/{task.family}") for task in made])
        return [decks[index % len(decks)][index // len(decks)] for index in range(count)]

    @classmethod
    def _chosen(cls, families: Sequence[str] | None) -> dict[str, list[str]]:
        """Families by part, in the parts' order; none named means all of the part."""
        named: dict[str, list[str]] = {}
        for family in families or cls.parts:
            name, _, inner = family.partition("/")
            if name not in cls.parts:
                raise TaskError(f"{cls.__name__} has no part '{name}'{suggest(name, cls.parts)}")
            named.setdefault(name, []).extend([inner] if inner else [])
        return {name: named[name] for name in cls.parts if name in named}

    @classmethod
    def _split_up(cls, task: Task) -> tuple[type[Environment], str, Task]:
        """The part's class and name, and the task as that part made it."""
        name, _, family = task.family.partition("/")
        if name not in cls.parts:
            raise TaskError(
                f"task {task.id}: expected a family that begins with one of {', '.join(cls.parts)} and '/', "
                f"got '{task.family}'"
            )
        return cls.parts[name], name, _renamed(task, family)

    @classmethod
    def played_by(cls, task: Task) -> type[Environment]:
        part, _, inner = cls._split_up(task)
        return part.played_by(inner)

    @classmethod
    def gold_strings(cls, task: Task) -> list[str]:
        part, _, inner = cls._split_up(task)
        return part.gold_strings(inner)

    @classmethod
    def fixtures(cls, task: Task) -> Sequence[Fixture]:
        part, _, inner = cls._split_up(task)
        return part.fixtures(inner)

    @classmethod
    def rubric(cls) -> Rubric | None:
        """The parts' common rubric; parts with different ones cannot be compared and raise `ConfigError`."""
        rubrics = [own_rubric(part) for part in cls.parts.values()]
        if any(rubric != rubrics[0] for rubric in rubrics):
            raise ConfigError(f"{cls.__name__}: its parts bring different rubrics; write rubric() in {cls.__name__}")
        return rubrics[0]

    # ------------------------------------------------------------ an episode, which is the part's

    @property
    def instructions(self) -> str:  # type: ignore[override]
        return self._playing.instructions

    @property
    def max_steps(self) -> int:  # type: ignore[override]
        return self._playing.max_steps

    @property
    def toolbox(self) -> Toolbox:
        return self.tools if self._part is None else self._part.toolbox

    @property
    def workspace(self) -> Path:
        return self._playing.workspace

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        gymnasium.Env.reset(self, seed=seed)
        task = self._choose_task(dict(options or {}))
        part, name, inner = self._split_up(task)
        if name not in self._copies:
            self._copies[name] = part()
        self._part, self._inner = self._copies[name], inner
        inner_seed = int(self.np_random.integers(2**62)) if seed is None else seed
        observation, _ = self._part.reset(seed=inner_seed, options={"task": inner})
        self.task = private_copy(task)
        return observation, {"task_id": task.id}

    def step(self, action: Action | Mapping[str, Any] | str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return self._playing.step(action)

    def current_verdict(self) -> Verdict:
        return self._playing.current_verdict()

    def verify(self, task: Task) -> Verdict | bool:
        return self._playing.verify(self._split_up(task)[2])

    def demonstrate(self, task: Task) -> Sequence[Action]:
        return self._playing.demonstrate(self._split_up(task)[2])

    def state_hash(self) -> str | None:
        return self._playing.state_hash()

    def close(self) -> None:
        copies, self._copies, self._part = self._copies, {}, None
        for copy in copies.values():
            copy.close()
        super().close()

    @property
    def _playing(self) -> Environment:
        if self._part is None:
            raise gymnasium.error.ResetNeeded("no episode yet; call reset() first")
        return self._part


def _renamed(task: Task, family: str) -> Task:
    renamed = msgspec.structs.replace(task, family=family)
    return msgspec.structs.replace(renamed, id=content_hash(renamed))
