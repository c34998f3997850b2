"""The base class of all environments: an author writes tools, `setup` and `verify`; the rest is here."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import gymnasium
import msgspec

from deedrl.environments.contract import checked_verdict
from deedrl.environments.copies import private_copy
from deedrl.environments.spaces import AnyText
from deedrl.errors import EnvironmentAuthorError, TaskError, ToolError
from deedrl.tools.limits import ToolInterrupted, ToolTimeout
from deedrl.tools.text import to_text
from deedrl.tools.tool import Tool
from deedrl.tools.toolbox import Toolbox
from deedrl.types import Action, Split, Task, ToolSchema, Verdict

if TYPE_CHECKING:
    from deedrl.environments.fixtures import Fixture
    from deedrl.rewards.rubric import Rubric


class Environment(gymnasium.Env[str, Any]):
    """A job to be done with tools, as a Gymnasium environment whose observations and actions are text.

    A subclass marks methods with `@tool`, builds the state in `setup` and judges it in `verify`. Each episode
    starts clean: attributes that did not exist at the first `reset` are dropped at the next one, those that
    `__init__` made get back the object they had, lists, dicts and sets of the class body are copied anew, and
    `workspace` is a new empty folder.

    An episode ends (`terminated`) when a tool with ``ends_episode=True`` succeeds. If the current task allows no
    such tool, it ends as soon as `verify` says solved. After `max_steps` steps it is `truncated`.
    """

    instructions: ClassVar[str] = ""
    """What the job is, for the system prompt."""
    max_steps: ClassVar[int] = 8
    blocking: ClassVar[bool] = True
    """False: every call takes microseconds, so the runner may make it in its event loop (no time limit there)."""
    tools: ClassVar[Toolbox] = Toolbox()
    """All tools of the class, unbound, in the order they are written; filled in for each subclass."""

    metadata: dict[str, Any] = {"render_modes": []}
    task: Task
    """The current task, a private copy."""

    _class_values: ClassVar[Mapping[str, Any]] = {}
    _made_by_init: Mapping[str, Any] | None = None
    _episode: _Episode | None = None

    def __new__(cls, *_args: Any, **_kwargs: Any) -> Self:
        """Gives each copy its own spaces (they hold random state), also where ``__init__`` forgets its parent's."""
        made = super().__new__(cls)
        made.observation_space, made.action_space = AnyText(), AnyText()
        return made

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "tools" in vars(cls):
            raise EnvironmentAuthorError(
                f"{cls.__name__}: 'tools' is filled in from the class; expected each tool as an attribute of its own, "
                "e.g. calculator = calculator"
            )
        _check_class_values(cls)
        cls.tools = Toolbox(_collect_tools(cls))
        _check_plain_text(cls)
        try:
            cls._class_values = copy.deepcopy(mutable_class_values(cls))
        except TypeError as error:
            raise EnvironmentAuthorError(
                f"{cls.__name__}: a list, dict or set of the class body cannot be copied for each episode ({error}); "
                "make it in setup()"
            ) from error

    # ------------------------------------------------------------ for the author to write

    def setup(self, task: Task) -> None:
        """Builds the state of a new episode from ``task.initial_state``; may set attributes freely."""

    def verify(self, task: Task) -> Verdict | bool:
        """Whether the state now is what ``task.goal_state`` asks for; reads the state only, never what was said."""
        raise EnvironmentAuthorError(f"{type(self).__name__} has no verify(task); write one that reads the state")

    def teardown(self) -> None:
        """Releases what `setup` opened. Runs once per episode, at the next `reset` or `close`, also after errors."""

    def demonstrate(self, task: Task) -> Sequence[Action]:
        """The shortest correct solution as actions with reasoning, called after `reset`; empty if there is none."""
        return ()

    def state_hash(self) -> str | None:
        """A short text that is equal if and only if the state is equal; None if the environment offers none."""
        return None

    @classmethod
    def generate_tasks(cls, split: Split, count: int, seed: int) -> list[Task]:
        """`count` tasks of `split`, equal for equal seeds; empty if this environment's tasks come from elsewhere."""
        return []

    @classmethod
    def gold_strings(cls, task: Task) -> list[str]:
        """What must be found out and not be told: `deedrl check-env` looks for it where it should not show up.

        By default all strings of 6 or more characters in the goal state.
        """
        return [value for value in leaves(task.goal_state) if isinstance(value, str) and len(value) >= 6]

    @classmethod
    def played_by(cls, task: Task) -> type[Environment]:
        """The class whose instructions and tools an episode of `task` has; another one in a combination only."""
        return cls

    @classmethod
    def fixtures(cls, task: Task) -> Sequence[Fixture]:
        """Right, wrong and cheating ways through `task` with the verdict each must get: the tests of `verify`.

        `deedrl check-env` plays all of them.
        """
        return ()

    @classmethod
    def rubric(cls) -> Rubric | None:
        """How trajectories of this environment are scored; None means the default rubric."""
        return None

    # ------------------------------------------------------------ provided

    @property
    def toolbox(self) -> Toolbox:
        """The tools the current task allows, bound to this environment; before the first `reset`, all tools."""
        return self.tools.bind(self) if self._episode is None else self._episode.toolbox

    @property
    def workspace(self) -> Path:
        """An empty folder of this episode's own, made on first use and removed when the episode is cleaned up."""
        episode = self._running("workspace")
        if episode.folder is None:
            episode.folder = tempfile.TemporaryDirectory(prefix="deedrl-", ignore_cleanup_errors=True)
        return Path(episode.folder.name)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Starts an episode of ``options["task"]`` (a `Task` or a dict); the observation is the task's prompt.

        Without a task one is generated from this environment's own random stream (or is blank, if it generates
        none). An exception from `setup` passes through after `teardown` has run.
        """
        super().reset(seed=seed)
        self._clean_up()
        if self._made_by_init is None:
            self._made_by_init = {key: value for key, value in vars(self).items() if key not in _KEPT}
        task = self._choose_task(dict(options or {}))
        self._episode = _Episode(task, self.tools.restricted(task.tools).bind(self))
        self.task = private_copy(task)
        fresh = copy.deepcopy(self._class_values)
        vars(self).update({name: value for name, value in fresh.items() if name not in self._made_by_init})
        try:
            self.setup(private_copy(task))
        except BaseException as error:
            self._clean_up_after(error)
            raise
        return task.prompt, {"task_id": task.id}

    def step(self, action: Action | Mapping[str, Any] | str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Runs one action: an `Action`, a dict like one, or the text of a completion.

        What the model did wrong (no action, unknown tool, wrong parameter, `ToolError`) becomes the observation
        with ``info["ok"]`` False and still counts as a step; so does a call that was interrupted at its limit. The
        reward is 1.0 when the episode terminates solved, else 0.0. ``info["ended_by"]`` names the tool that ended
        the episode; ``info["verdict"]`` is there only when terminated, and ``info["interrupted"]`` when a limit of
        time ended the call. Any other exception from a tool passes
        through as `ToolCrash`.
        """
        episode = self._running("step()")
        if episode.over:
            raise gymnasium.error.ResetNeeded("step() after the end of the episode; call reset() first")
        episode.steps += 1
        observation, used, interrupted = _run_action(read_action(action, episode.toolbox.schemas()), episode.toolbox)
        info: dict[str, Any] = {"ok": used is not None, "ended_by": None}
        if interrupted:
            info["interrupted"] = True
        verdict = None
        if used is not None and used.ends_episode:
            info["ended_by"], verdict = used.name, self.current_verdict()
        elif not any(entry.ends_episode for entry in episode.toolbox.values()):
            now = self.current_verdict()
            verdict = now if now.solved else None
        terminated = verdict is not None
        truncated = not terminated and episode.steps >= self.max_steps
        episode.over = terminated or truncated
        if verdict is not None:
            info["verdict"] = verdict
        return observation, float(verdict is not None and verdict.solved), terminated, truncated, info

    def current_verdict(self) -> Verdict:
        """What `verify` says now, as a checked `Verdict`; progress is finite, in [0, 1], and 1 only when solved."""
        task = private_copy(self._running("current_verdict()").task)
        return checked_verdict(self.verify(task), type(self).__name__)

    def close(self) -> None:
        """Runs `teardown` and removes the workspace; may be called more than once."""
        self._clean_up()
        super().close()

    # ------------------------------------------------------------ inside

    def _running(self, what: str) -> _Episode:
        if self._episode is None:
            raise gymnasium.error.ResetNeeded(f"{what} before reset(); call reset() first")
        return self._episode

    def _choose_task(self, options: dict[str, Any]) -> Task:
        given = options.pop("task", None)
        if options:
            raise TaskError(f"reset() knows the option 'task' only, got {sorted(options)}")
        if given is not None:
            return read_task(given)
        generated = self.generate_tasks("train", 1, int(self.np_random.integers(2**62)))
        return private_copy(generated[0]) if generated else Task.create(prompt="")

    def _clean_up(self) -> None:
        """Ends the episode: `teardown`, then the attributes and the folder, whatever `teardown` does."""
        episode, self._episode = self._episode, None
        if episode is None:
            return
        try:
            self.teardown()
        finally:
            if episode.folder is not None:
                episode.folder.cleanup()
            made = self._made_by_init or {}
            for key in [key for key in vars(self) if key not in made and key not in _KEPT]:
                delattr(self, key)
            vars(self).update(made)

    def _clean_up_after(self, error: BaseException) -> None:
        try:
            self._clean_up()
        except Exception as second:  # noqa: BLE001 - the first error is the one to report
            error.add_note(f"teardown() after this error raised {type(second).__name__}: {second}")


class _Episode:
    """What belongs to one episode and not to the author."""

    def __init__(self, task: Task, toolbox: Toolbox) -> None:
        self.task = task
        self.toolbox = toolbox
        self.steps = 0
        self.over = False
        self.folder: tempfile.TemporaryDirectory[str] | None = None


_KEPT = frozenset({"_np_random", "_np_random_seed", "_episode", "_made_by_init", "_cached_spec"})
"""Attributes that live longer than an episode: Gymnasium's random stream and our own."""


def read_action(given: Action | Mapping[str, Any] | str, schemas: Sequence[ToolSchema]) -> Action:
    """An `Action` from what was given to `step`; never raises for what a model could have written."""
    if isinstance(given, Action):
        return given
    if isinstance(given, str):
        from deedrl.parsing.parser import parse_action

        return parse_action(given, schemas)
    try:
        return msgspec.convert(given, Action)
    except msgspec.ValidationError as error:
        return Action(tier="reject", error=f"expected an object with tool_name and parameters: {error}")


def read_task(given: Task | Mapping[str, Any]) -> Task:
    """A private copy of a task given as a `Task` or as its JSON object; a missing id is computed."""
    if isinstance(given, Task):
        return private_copy(given)
    try:
        if "id" in given:
            return msgspec.convert(copy.deepcopy(given), Task)
        fields = msgspec.convert({"id": "", **copy.deepcopy(given)}, Task)
    except (msgspec.ValidationError, TypeError) as error:
        raise TaskError(f"expected a task with at least a prompt, got {given!r}: {error}") from error
    return Task.create(**{key: getattr(fields, key) for key in fields.__struct_fields__ if key != "id"})


def leaves(value: Any) -> list[Any]:
    """All values inside nested dicts and lists that are neither, keys left out."""
    if isinstance(value, Mapping):
        return [leaf for entry in value.values() for leaf in leaves(entry)]
    if isinstance(value, list | tuple):
        return [leaf for entry in value for leaf in leaves(entry)]
    return [value]


def _run_action(action: Action, toolbox: Toolbox) -> tuple[str, Tool | None, bool]:
    """The observation, the tool if it ran and succeeded, and whether a limit of time ended the call."""
    if action.error is not None or action.tool_name is None:
        return to_text(action.error or "no tool was called; expected tool_name and parameters"), None, False
    try:
        used = toolbox.find(action.tool_name)
        return used.call(action.parameters), used, False
    except ToolError as error:
        return to_text(str(error) or f"{action.tool_name} refused the call"), None, isinstance(error, ToolTimeout)
    except ToolInterrupted:
        return f"{action.tool_name} did not finish in time and was stopped", None, True


def _check_class_values(cls: type[Environment]) -> None:
    """Raises `EnvironmentAuthorError` if the class body gives `instructions` or `max_steps` another type."""
    instructions, max_steps = vars(cls).get("instructions", ""), vars(cls).get("max_steps", 1)
    if not isinstance(instructions, str | property):
        raise EnvironmentAuthorError(f"{cls.__name__}.instructions: expected a text, got {instructions!r}")
    number = isinstance(max_steps, int | float) and not isinstance(max_steps, bool) and max_steps >= 1
    if not number and not isinstance(max_steps, property):
        raise EnvironmentAuthorError(f"{cls.__name__}.max_steps: expected a number of at least 1, got {max_steps!r}")


def _check_plain_text(cls: type[Environment]) -> None:
    """Raises `EnvironmentAuthorError` if a tool takes completions as they stand and is not the only one."""
    plain = [name for name, entry in cls.tools.items() if entry.schema.plain_text is not None]
    if plain and len(cls.tools) > 1:
        raise EnvironmentAuthorError(
            f"{cls.__name__}: the tool '{plain[0]}' takes whatever the model writes (plain_text=True), so that no "
            f"other could be called; expected it alone, got {', '.join(cls.tools)}"
        )


def mutable_class_values(cls: type[Environment]) -> dict[str, Any]:
    """Lists, dicts and sets in the bodies of `cls` and its bases below `Environment`: what copies would share."""
    return {
        name: value
        for base in reversed(cls.__mro__)
        if issubclass(base, Environment) and base is not Environment
        for name, value in vars(base).items()
        if isinstance(value, list | dict | set) and not name.startswith("__") and name != "_class_values"
    }


def _collect_tools(cls: type[Environment]) -> list[Tool]:
    """Tools of `cls` and its bases in the order they were written; an attribute overridden by a non-tool is gone."""
    found: dict[str, Tool] = {}
    for base in reversed(cls.__mro__):
        for key, value in vars(base).items():
            if not isinstance(value, Tool):
                found.pop(key, None)
                continue
            if hasattr(Environment, key) or key in Environment.__annotations__:
                raise EnvironmentAuthorError(
                    f"{cls.__name__}: the tool '{value.name}' is written as '{key}', which every environment already "
                    f"has; give the method another name and keep the tool's with @tool(name='{value.name}')"
                )
            found[key] = value
    return list(found.values())
