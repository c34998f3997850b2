"""An environment is one of Gymnasium's: its checker, wrappers, vectors and spaces."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import pytest
from counting import THREE, Counter, add
from gymnasium import wrappers
from gymnasium.utils.env_checker import check_env


@pytest.fixture
def registered() -> Any:
    gymnasium.register("deedrl-test/Counter-v0", entry_point=Counter)
    yield "deedrl-test/Counter-v0"
    del gymnasium.registry["deedrl-test/Counter-v0"]


def test_gymnasiums_checker_passes_without_warnings(registered: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(registered).unwrapped)


def test_works_in_gymnasiums_wrappers(registered: str) -> None:
    class Shout(gymnasium.ObservationWrapper[str, Any, str]):
        def observation(self, observation: str) -> str:
            return observation.upper()

    environment = wrappers.RecordEpisodeStatistics(wrappers.TimeLimit(Shout(gymnasium.make(registered)), 2))
    observation, _ = environment.reset(seed=3, options={"task": THREE})
    assert observation == "COUNT TO 3"
    environment.step(add(1))
    *_, truncated, info = environment.step(add(1))
    assert truncated is True
    assert info["episode"]["l"] == 2
    environment.reset(options={"task": THREE})
    *_, info = environment.step(add(3))
    assert info["episode"]["r"] == 1.0


def test_order_enforcing_wrapper_refuses_a_step_before_reset(registered: str) -> None:
    environment = gymnasium.make(registered)
    with pytest.raises(gymnasium.error.ResetNeeded):
        environment.step(add(1))


def test_works_in_a_vector_environment(registered: str) -> None:
    vector = gymnasium.make_vec(registered, num_envs=2, vectorization_mode="sync")
    prompts, _ = vector.reset(seed=5)
    assert len(set(prompts)) == 2
    vector.close()


def test_copies_have_spaces_of_their_own() -> None:
    one, other = Counter(), Counter()
    one.action_space.seed(1)
    other.action_space.seed(1)
    one.action_space.sample()
    expected = Counter().action_space
    expected.seed(1)
    assert other.action_space.sample() == expected.sample()
