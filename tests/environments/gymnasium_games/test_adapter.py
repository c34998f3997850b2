"""Gymnasium's games as environments: what ends them, what counts as solved, which tasks there are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gymnasium
import pytest
from gymnasium import spaces

from deedrl.environments.checker import check_environment
from deedrl.environments.gymnasium_adapter import (
    Outcome,
    adapt,
    adapted,
    paid_at_the_end,
    return_of_at_least,
    shortest_solution,
)
from deedrl.environments.isolation import ProcessEnvironment
from deedrl.environments.loading import load_environment
from deedrl.errors import ConfigError
from deedrl.rollouts.demonstration import demonstration_policy
from deedrl.rollouts.episode import EpisodeSpec
from deedrl.rollouts.replay import replay_actions
from deedrl.rollouts.runner import run_episodes_sync
from deedrl.types import Task, TerminationReason

EXAMPLES = Path(__file__).parents[3] / "examples" / "gymnasium_games.py"
KNOWN = ("gymnasium:FrozenLake-v1", "gymnasium:CliffWalking-v1", "gymnasium:Blackjack-v1", f"{EXAMPLES}:FrozenLake")


class Ladder(gymnasium.Env):
    """Climb with 1, jump off with 0; three rungs up pays 2."""

    observation_space = spaces.Dict({"rung": spaces.Discrete(4), "word": spaces.Text(5)})
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.rung = 0
        return {"rung": 0, "word": "start"}, {}

    def step(self, action):
        self.rung += int(action)
        done = self.rung == 3 or not action
        return {"rung": self.rung, "word": "rung"}, 2.0 if self.rung == 3 else 0.0, done, False, {}


@pytest.fixture
def ladder() -> Iterator[str]:
    gymnasium.register("test/Ladder-v0", entry_point=Ladder, max_episode_steps=5)
    yield "test/Ladder-v0"
    del gymnasium.registry["test/Ladder-v0"]


def moves(environment, *actions):
    return [environment.step({"tool_name": "act", "parameters": {"action": action}}) for action in actions]


def started(cls, seed=3):
    environment = cls()
    environment.reset(seed=0, options={"task": Task.create("go", initial_state={"seed": seed})})
    return environment


@pytest.mark.parametrize("ref", KNOWN)
def test_known_games_pass_check_env(ref):
    report = check_environment(load_environment(ref), tasks=6)
    assert [result.name for result in report.results if result.ok is False] == []


def test_a_game_needs_nothing_but_its_id(ladder):
    cls = adapt(ladder)
    assert cls.__name__ == "Ladderv0"
    assert cls.max_steps == 5
    assert "rung: a number from 0 to 3; word: a text" in cls.instructions
    (task,) = cls.generate_tasks("train", 1, 0)
    assert task.prompt == "Play the game to a good end.\nState: rung: 0; word: start."
    environment = started(cls)
    *_, (text, reward, terminated, truncated, info) = moves(environment, 1, 1, 1)
    assert text == "State: rung: 3; word: rung. Reward: 2. The game is over."
    assert (reward, terminated, truncated, info["verdict"].solved) == (1.0, True, False, True)


def test_a_lost_game_ends_the_episode_unsolved(ladder):
    environment = started(adapt(ladder))
    ((text, reward, terminated, truncated, info),) = moves(environment, 0)
    assert text.endswith("The game is over.")
    assert (reward, terminated, truncated) == (0.0, True, False)
    assert (info["ended_by"], info["verdict"].solved, info["verdict"].progress) == ("act", False, 0.0)
    with pytest.raises(gymnasium.error.ResetNeeded):
        moves(environment, 1)


def test_the_games_own_time_limit_truncates():
    cls = adapt("FrozenLake-v1", options=lambda _: {"is_slippery": False, "max_episode_steps": 2}, max_steps=9)
    *_, (_, _, terminated, truncated, info) = moves(started(cls), 0, 0)
    assert (terminated, truncated, "verdict" in info) == (False, True, False)


def test_progress_is_the_authors_and_zero_before_a_move(ladder):
    environment = started(adapt(ladder, progress=lambda outcome: outcome.moves / 4))
    assert environment.current_verdict().progress == 0.0
    moves(environment, 1)
    assert environment.current_verdict().progress == 0.25


def test_what_counts_as_solved():
    assert paid_at_the_end(Outcome(moves=2, total=0.0, reward=1.0, terminated=True))
    assert not paid_at_the_end(Outcome(moves=2, total=5.0, reward=0.0, terminated=True))
    assert not paid_at_the_end(Outcome(moves=2, total=5.0, reward=1.0, truncated=True))
    assert return_of_at_least(5.0)(Outcome(moves=9, total=5.0, truncated=True))
    assert not return_of_at_least(5.0)(Outcome(moves=9, total=9.0))


def test_a_game_with_a_threshold_of_its_own_is_solved_by_that_return():
    environment = started(adapted("CartPole-v1"))  # every move is paid, the one that drops the pole too
    *_, (text, reward, terminated, _, _) = moves(environment, *[0] * 9)
    assert text.endswith("Reward: 1. The game is over.")
    assert (reward, terminated) == (0.0, True)


def test_named_moves_are_the_schema():
    cls = adapted("FrozenLake-v1")
    assert cls.tools["act"].schema.parameters["properties"]["action"]["enum"] == ["down", "left", "right", "up"]
    answer, *_, info = moves(started(cls), "fly")[0]
    assert info["ok"] is False
    assert "action" in answer


def test_a_walk_over_the_lake_by_hand():
    cls = adapt("FrozenLake-v1", actions=("left", "down", "right", "up"), options=lambda _: {"is_slippery": False})
    environment = started(cls)
    *_, (_, reward, terminated, _, _) = moves(environment, "down", "down", "right", "right", "down", "right")
    assert (reward, terminated) == (1.0, True)


def test_falling_off_the_cliff_is_no_success():
    environment = started(adapted("CliffWalking-v1"))
    text = moves(environment, "right")[0][0]
    assert text == "You are in row 3, column 0. Reward: -100."
    *_, (_, reward, terminated, _, info) = moves(environment, "up", *["right"] * 11, "down")
    assert (reward, terminated, info["verdict"].solved) == (0.0, True, False)


def test_equal_seeds_give_equal_games_and_others_others():
    cls = adapted("Blackjack-v1")

    def hands(seed):
        return [answer[0] for answer in moves(started(cls, seed), "hit")]

    assert hands(5) == hands(5)
    assert len({str(hands(seed)) for seed in range(20)}) > 10


def test_no_seed_is_in_two_splits():
    cls = adapted("Blackjack-v1")
    splits = ("train", "validation", "test", "test_unseen")
    seeds = [task.initial_state["seed"] for split in splits for task in cls.generate_tasks(split, 40, 1)]
    assert len(set(seeds)) == 160


def test_the_seed_is_not_told():
    (task,) = adapted("Blackjack-v1").generate_tasks("train", 1, 0)
    assert str(task.initial_state["seed"]) not in task.prompt


def test_the_search_finds_the_shortest_way_and_none_where_there_is_none(ladder):
    assert shortest_solution(adapt(ladder).game, 0, 5) == (1, 1, 1)
    assert shortest_solution(adapt(ladder).game, 0, 2) == ()


def test_demonstrations_are_played_and_replayed():
    cls = load_environment(f"{EXAMPLES}:FrozenLake")
    tasks = cls.generate_tasks("train", 6, 0)
    specs = [EpisodeSpec(task=task, episode_id=task.id) for task in tasks]
    played = run_episodes_sync(specs, environment=cls, policy=demonstration_policy(specs, cls), rubric=None)
    assert {t.termination for t in played} == {TerminationReason.GOAL}
    assert all(replay_actions(t, task, cls).equal for t, task in zip(played, tasks, strict=True))
    assert len({task.prompt for task in tasks}) == 6


def test_games_of_chance_are_not_demonstrated():
    assert started(adapted("Blackjack-v1")).demonstrate(Task.create("go")) == ()


def test_a_reference_to_no_game_says_so():
    with pytest.raises(ConfigError, match="Gymnasium cannot make 'FrozenLike-v1'"):
        load_environment("gymnasium:FrozenLike-v1")


def test_a_game_may_live_in_a_process_of_its_own():
    environment = ProcessEnvironment("gymnasium:CliffWalking-v1")
    try:
        environment.reset(seed=0, options={"task": Task.create("go", initial_state={"seed": 1})})
        assert moves(environment, "up")[0][0] == "You are in row 2, column 0. Reward: -1."
    finally:
        environment.close()
