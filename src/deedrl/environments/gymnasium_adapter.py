"""Any Gymnasium environment as a DeedRL environment: spaces in words, moves as calls of the tool ``act``."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from types import new_class
from typing import Any, ClassVar, cast

import gymnasium
from gymnasium import spaces

from deedrl.environments.dealing import deal_tasks
from deedrl.environments.environment import Environment
from deedrl.environments.gymnasium_spaces import check_describable, in_words, parameters_of, to_sample, value_in_words
from deedrl.errors import ConfigError, EnvironmentAuthorError
from deedrl.tools.tool import Tool, tool
from deedrl.types import Action, Split, Task, Verdict

UNSEEN_FROM = 10**9
"""Seeds of ``test_unseen`` begin here; those of all other splits end before."""
MOST_STEPS = 50
"""Of a game without a time limit of its own."""
MOST_POSITIONS = 2000
"""Positions that a search for a demonstration looks at."""

GymnasiumEnv = gymnasium.Env[Any, Any]


@dataclass(frozen=True)
class Outcome:
    """How a game stands."""

    moves: int = 0
    total: float = 0.0
    """Sum of the rewards."""
    reward: float = 0.0
    """Of the last move."""
    terminated: bool = False
    truncated: bool = False

    @property
    def over(self) -> bool:
        return self.terminated or self.truncated

    def after(self, reward: float, terminated: bool, truncated: bool) -> Outcome:
        """How it stands one move later."""
        return Outcome(self.moves + 1, self.total + reward, reward, terminated, truncated)


def paid_at_the_end(outcome: Outcome) -> bool:
    """The game came to its end, and the last move was rewarded."""
    return outcome.terminated and outcome.reward > 0


def reached_the_end(outcome: Outcome) -> bool:
    """The game came to its end and not to its time limit; for games that end at their goal only."""
    return outcome.terminated


def return_of_at_least(threshold: float) -> Callable[[Outcome], bool]:
    """The game is over and its rewards sum to `threshold` or more."""
    return lambda outcome: outcome.over and outcome.total >= threshold


@dataclass(frozen=True)
class Game:
    """What there is to say of a Gymnasium environment beyond what its spaces say."""

    id: str
    """As `gymnasium.make` takes it."""
    goal: str = "Play the game to a good end."
    """First line of every task's prompt."""
    actions: tuple[str, ...] = ()
    """Names of a `Discrete` action space's values, in their order."""
    options: Callable[[int], Mapping[str, Any]] = lambda _seed: {}
    """From a task's seed to keyword arguments of `gymnasium.make`."""
    describe: Callable[[Any, GymnasiumEnv], str] | None = None
    """An observation in words; the second argument is the game itself, without wrappers."""
    solved_when: Callable[[Outcome], bool] | None = None
    """What counts as solved; None: a return of the game's own `reward_threshold`, else `paid_at_the_end`."""
    progress: Callable[[Outcome], float] = lambda _outcome: 0.0
    """Share of the job done, in [0, 1), while it is not solved."""
    max_steps: int | None = None
    """Moves of an episode; None: the game's own time limit, or `MOST_STEPS`."""
    searched: bool = False
    """`demonstrate` searches for the shortest solution; for `Discrete` actions. Leave it out where moves or cards are
    drawn: the search knows the seed and would teach what only luck makes right."""

    def make(self, seed: int) -> GymnasiumEnv:
        """The game of a task with this seed, not yet reset; `ConfigError` if there is none of that id."""
        try:
            return gymnasium.make(self.id, disable_env_checker=True, **self.options(seed))
        except gymnasium.error.Error as error:
            raise ConfigError(f"Gymnasium cannot make '{self.id}': {error}") from error


def rule_of(game: Game, playing: GymnasiumEnv) -> Callable[[Outcome], bool]:
    """What counts as solved in `game`."""
    if game.solved_when is not None:
        return game.solved_when
    threshold = playing.spec.reward_threshold if playing.spec is not None else None
    return paid_at_the_end if threshold is None else return_of_at_least(threshold)


class GymnasiumGame(Environment):
    """A game that is played with the tool ``act``; subclasses say which: ``class Lake(GymnasiumGame, game=Game(…))``.

    A task is a seed. The model wins where `Game.solved_when` says so, whatever it says itself; an episode ends with the
    game.
    """

    game: ClassVar[Game]

    def __init_subclass__(cls, game: Game | None = None, **kwargs: Any) -> None:
        if game is not None:
            sample = game.make(0)
            if game.describe is None:
                check_describable(sample.observation_space, game.id)
            cls.game = game
            own_limit = sample.spec.max_episode_steps if sample.spec is not None else None
            cls.max_steps = game.max_steps or own_limit or MOST_STEPS
            cls.instructions = _instructions(game, sample)
            # A tool must be there before the class is looked through for tools.
            cls.act = _act(sample.action_space, game.actions)  # type: ignore[attr-defined]
            sample.close()
        super().__init_subclass__(**kwargs)

    def setup(self, task: Task) -> None:
        self.outcome = Outcome()
        self.moves: list[str] = []
        self.playing = self.game.make(_seed(task))
        self.playing.reset(seed=_seed(task))

    def teardown(self) -> None:
        if "playing" in vars(self):
            self.playing.close()

    def move(self, action: Any) -> str:
        """Makes a move; what comes of it in words."""
        observation, reward, terminated, truncated, _ = self.playing.step(action)
        self.outcome = self.outcome.after(float(reward), bool(terminated), bool(truncated))
        self.moves.append(str(action))
        paid = f" Reward: {self.outcome.reward:g}." if self.outcome.reward else ""
        over = " The game is over." if self.outcome.over else ""
        return _described(self.game, self.playing, observation) + paid + over

    def step(self, action: Action | Mapping[str, Any] | str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        if self.outcome.over and not terminated:
            # The base class ends an episode that is solved; a game that is lost is over too.
            self._running("step()").over = True
            truncated, terminated = self.outcome.truncated and not self.outcome.terminated, self.outcome.terminated
            if terminated:
                info |= {"ended_by": "act", "verdict": self.current_verdict()}
        return observation, reward, terminated, truncated, info

    def verify(self, task: Task) -> Verdict:
        solved = self.outcome.moves > 0 and bool(rule_of(self.game, self.playing)(self.outcome))
        progress = self.game.progress(self.outcome) if self.outcome.moves and not solved else float(solved)
        return Verdict(solved=solved, progress=progress)

    def state_hash(self) -> str:
        """The moves so far: games that are reset with equal seeds and moved equally are in equal states."""
        return f"{_seed(self.task)}: {' '.join(self.moves)}"

    def demonstrate(self, task: Task) -> Sequence[Action]:
        if not self.game.searched:
            return ()
        found = shortest_solution(self.game, _seed(task), self.max_steps)
        space = cast(spaces.Discrete, self.playing.action_space)
        names = self.game.actions
        return [
            Action(
                tool_name="act",
                parameters={"action": names[index] if names else int(space.start) + index},
                reasoning="This is a move of the shortest way to the goal.",
            )
            for index in found
        ]

    @classmethod
    def generate_tasks(cls, split: Split, count: int, seed: int) -> list[Task]:
        """Seeds whose content hash belongs to `split`; no seed is in two splits."""
        outcomes = {"game": {"easy": ("seed",)}}
        return deal_tasks(f"gymnasium:{cls.game.id}", outcomes, cls._draw, split, count, seed, difficulties=["easy"])

    @classmethod
    def _draw(cls, family: str, difficulty: str, _outcome: str, split: Split, rng: Random) -> Task:
        seed = rng.randrange(UNSEEN_FROM) + (UNSEEN_FROM if split == "test_unseen" else 0)
        playing = cls.game.make(seed)
        observation, _ = playing.reset(seed=seed)
        prompt = f"{cls.game.goal}\n{_described(cls.game, playing, observation)}"
        playing.close()
        return Task.create(prompt, initial_state={"seed": seed}, family=family, difficulty=difficulty, split=split)


def adapt(game_id: str, **about: Any) -> type[GymnasiumGame]:
    """The environment class of a Gymnasium id; `about` are fields of `Game`."""
    name = "".join(letter for letter in game_id.rpartition("/")[2] if letter.isalnum())
    return new_class(name, (GymnasiumGame,), {"game": Game(game_id, **about)})


@cache
def adapted(game_id: str) -> type[GymnasiumGame]:
    """The class behind the reference ``gymnasium:ID``: with names and words for the games that we know."""
    from deedrl.environments.gymnasium_presets import PRESETS

    return adapt(game_id, **PRESETS.get(game_id, {}))


def shortest_solution(game: Game, seed: int, most_moves: int) -> tuple[int, ...]:
    """Numbers (from 0) of the actions that solve the game soonest, found breadth first; none if none was found.

    Each way is played from the beginning. Ways to an observation that was seen before are not followed, which may miss
    solutions of games that hide a part of their state.
    """
    playing = game.make(seed)
    space = playing.action_space
    if not isinstance(space, spaces.Discrete):
        raise EnvironmentAuthorError(f"{game.id}: searched=True goes with a Discrete action space, got {space}")
    solved = rule_of(game, playing)
    seen, waiting = {str(playing.reset(seed=seed)[0])}, deque[tuple[int, ...]]([()])
    try:
        for _ in range(MOST_POSITIONS):
            if not waiting or len(waiting[0]) >= most_moves:
                break
            before = waiting.popleft()
            for index in range(int(space.n)):
                way = (*before, index)
                observation, outcome = _replayed(playing, seed, [int(space.start) + move for move in way])
                if solved(outcome):
                    return way
                if not outcome.over and str(observation) not in seen:
                    seen.add(str(observation))
                    waiting.append(way)
    finally:
        playing.close()
    return ()


def _replayed(playing: GymnasiumEnv, seed: int, moves: Sequence[int]) -> tuple[Any, Outcome]:
    observation, _ = playing.reset(seed=seed)
    outcome = Outcome()
    for move in moves:
        observation, reward, terminated, truncated, _ = playing.step(move)
        outcome = outcome.after(float(reward), bool(terminated), bool(truncated))
    return observation, outcome


def _instructions(game: Game, sample: GymnasiumEnv) -> str:
    moves = f"A move is {in_words(sample.action_space, game.actions)}."
    seen = "" if game.describe else f" After each you are told the state: {in_words(sample.observation_space)}."
    return f"You play a game with the tool act, one move a turn. {moves}{seen}"


def _act(space: gymnasium.Space[Any], names: Sequence[str]) -> Tool:
    """The tool with a parameter for each part of the action space."""

    def act(self: GymnasiumGame, **given: Any) -> str:
        return self.move(to_sample(space, given, names))

    first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    others = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=hint)
        for name, hint in parameters_of(space, names).items()
    ]
    act.__signature__ = inspect.Signature([first, *others])  # type: ignore[attr-defined]
    act.__doc__ = f"Makes a move: {in_words(space, names)}."
    return tool(act)


def _described(game: Game, playing: GymnasiumEnv, observation: Any) -> str:
    if game.describe is not None:
        return game.describe(observation, playing.unwrapped)
    return f"State: {value_in_words(playing.observation_space, observation)}."


def _seed(task: Task) -> int:
    return int(task.initial_state.get("seed", 0))
