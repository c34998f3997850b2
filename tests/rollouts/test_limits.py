"""Limits, token budget and loop detection as values."""

import pytest

from deedrl.errors import ConfigError
from deedrl.rollouts.limits import Limits, LoopDetector, TokenBudget
from deedrl.types import Action, Completion, SamplingParams


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_steps": 0},
        {"call_timeout_s": -1.0},
        {"episode_timeout_s": float("nan")},
        {"max_parse_failures": 0},
        {"loop_warn": 5, "loop_end": 5},
    ],
)
def test_senseless_limits_are_refused(wrong):
    with pytest.raises(ConfigError):
        Limits(**wrong)


def test_budget_without_limits_is_never_exhausted():
    budget = TokenBudget(Limits())
    budget.add(Completion(text="", token_ids=(1,) * 10_000, prompt_ids=(1,) * 10_000))
    assert not budget.exhausted
    assert budget.offer(SamplingParams(max_tokens=7)).max_tokens == 7


def test_budget_offers_what_is_left():
    budget = TokenBudget(Limits(max_tokens_per_episode=10))
    budget.add(Completion(text="", token_ids=(1,) * 7))
    assert budget.offer(SamplingParams(max_tokens=96)).max_tokens == 3
    assert not budget.exhausted
    budget.add(Completion(text="", token_ids=(1,) * 3))
    assert budget.exhausted


def test_context_starts_again_when_a_prompt_does_not_extend_the_last():
    budget = TokenBudget(Limits())
    budget.add(Completion(text="", prompt_ids=(1,) * 5, token_ids=(1, 1)))
    budget.add(Completion(text="", prompt_ids=(1,) * 3, token_ids=(1,), extends_previous=True))
    assert budget.context == 11
    budget.add(Completion(text="", prompt_ids=(1,) * 9, token_ids=(1,)))
    assert budget.context == 10
    assert budget.sampled == 4


def look(page: int = 0) -> Action:
    return Action(tool_name="look", parameters={"page": page})


def test_D16_same_call_with_the_same_result_is_counted():
    loops = LoopDetector()
    assert [loops.add(look(), "nothing") for _ in range(4)] == [1, 2, 3, 4]


def test_D16_new_result_is_progress():
    loops = LoopDetector()
    assert [loops.add(look(), f"line {index}") for index in range(4)] == [1, 1, 1, 1]


def test_D16_other_call_in_between_is_progress_once():
    loops = LoopDetector()
    assert [loops.add(look(page), "nothing") for page in (0, 0, 1, 0, 0)] == [1, 2, 1, 2, 3]


def test_D16_circle_of_two_calls_is_a_loop():
    loops = LoopDetector()
    assert [loops.add(look(page), "nothing") for page in (0, 1, 0, 1, 0, 1)] == [1, 1, 2, 3, 4, 5]
