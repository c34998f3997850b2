"""TextWorld's text adventures as an environment; needs the extra ``textworld``."""

from __future__ import annotations

import hashlib
import importlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from deedrl.environments.environment import Environment
from deedrl.errors import ConfigError, ToolError
from deedrl.tools.tool import tool
from deedrl.types import Action, Split, Task, Verdict

_COMMAND = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ,'-]{0,79}")
_ABOUT_THE_PROGRAM = frozenset({"q", "quit", "restart", "restore", "save", "script", "transcript", "undo", "unscript"})
_END_OF_GAME = "The game is over."


class TextWorldGames(Environment):
    """Plays the games (``.z8``, with the ``.json`` that TextWorld writes beside each) in ``games/SPLIT/``.

    A subclass says where they are: ``class Castle(TextWorldGames): games = Path("castle")``. A game's split is the name
    of its folder, and its progress is the score over the highest score.
    """

    games: ClassVar[Path] = Path("games")
    instructions = "You play a text adventure: type one command a turn with the tool type_command."
    max_steps = 30

    def setup(self, task: Task) -> None:
        path = self.games / str(task.initial_state.get("game", ""))
        if not path.is_file():
            raise ConfigError(f"no game {path}; expected the file that the task was made from")
        if file_hash(path) != task.initial_state.get("sha256"):
            raise ConfigError(f"the game {path} is another than the task was made from; generate the tasks again")
        self.playing = open_game(path)
        _, self.infos = self.playing.reset()
        self.score, self.over = 0, False
        self.commands: list[str] = []

    def teardown(self) -> None:
        if "playing" in vars(self):
            self.playing.close()

    @tool
    def type_command(self, command: str) -> str:
        """Types a command of the game, e.g. 'go east', 'take key' or 'look'.

        Args:
            command: words the game understands
        """
        # The interpreter, which is written in C, never comes back from a line of other letters or a very long one.
        if _COMMAND.fullmatch(command) is None:
            raise ToolError("expected one command of at most 80 plain letters, digits and spaces, e.g. 'go east'")
        if command.split()[0].lower() in _ABOUT_THE_PROGRAM:
            raise ToolError(f"'{command}' is for the program and not for the game; play on, e.g. with 'look'")
        answer, self.score, self.over, self.infos = self.playing.step(command)
        self.commands.append(command)
        text = " ".join(answer.partition("\n>")[0].split())
        return f"{text} {_END_OF_GAME}" if self.over else text

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        if self.over and not terminated:
            self._running("step()").over = True
            terminated, truncated = True, False
            info |= {"ended_by": "type_command", "verdict": self.current_verdict()}
        return observation, reward, terminated, truncated, info

    def verify(self, task: Task) -> Verdict:
        won = bool(self.infos["won"])
        share = self.score / max(self.infos["max_score"] or 1, 1)
        return Verdict(solved=won, progress=1.0 if won else min(max(share, 0.0), 0.99))

    def state_hash(self) -> str:
        """The commands so far: games answer equal commands equally."""
        return f"{self.task.id}: {' / '.join(self.commands)}"

    def demonstrate(self, task: Task) -> Sequence[Action]:
        return [
            Action(
                tool_name="type_command", parameters={"command": command}, reasoning="This command leads to the goal."
            )
            for command in self.infos["policy_commands"] or ()
        ]

    @classmethod
    def generate_tasks(cls, split: Split, count: int, seed: int) -> list[Task]:
        """The first `count` games in the split's folder, by name; `seed` changes nothing."""
        return [cls._task(path, split) for path in sorted((cls.games / split).glob("*.z8"))[:count]]

    @classmethod
    def _task(cls, path: Path, split: Split) -> Task:
        playing = open_game(path)
        try:
            _, infos = playing.reset()
        finally:
            playing.close()
        prompt = " ".join(str(infos["objective"]).split()) or "Find out what there is to do and do it."
        where = path.relative_to(cls.games).as_posix()
        state = {"game": where, "sha256": file_hash(path)}
        shortest = len(infos["policy_commands"] or ()) or None
        return Task.create(prompt, initial_state=state, family="textworld", split=split, shortest_steps=shortest)


def open_game(path: Path) -> Any:
    """TextWorld's own environment of a game file; `ConfigError` where the package is missing."""
    try:
        textworld = importlib.import_module("textworld")
        games = importlib.import_module("textworld.gym")
    except ImportError as error:
        raise ConfigError(f"{path}: needs the package textworld ({error}); pip install 'deedrl[textworld]'") from error
    wanted = textworld.EnvInfos(won=True, max_score=True, policy_commands=True, objective=True)
    # Without a limit of its own: the episode's counts.
    return games.make(games.register_game(str(path), wanted, max_episode_steps=10**6))


def file_hash(path: Path) -> str:
    """SHA-256 of a file, 64 hex digits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
