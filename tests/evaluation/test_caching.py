from __future__ import annotations

from deedrl.evaluation.caching import cache_hit_share
from deedrl.types import Action, Completion, Step, Trajectory


def episode(*turns: tuple[int, int, int | None, bool]) -> Trajectory:
    """From tokens of the prompt, sampled and cached ones, and whether the prompt extends what came before."""
    steps = [
        Step(
            index=index,
            observation="",
            action=Action(),
            completion=Completion(
                text="",
                prompt_ids=(1,) * prompt,
                token_ids=(2,) * sampled,
                cached_tokens=cached,
                extends_previous=extends,
            ),
        )
        for index, (prompt, sampled, cached, extends) in enumerate(turns)
    ]
    return Trajectory(episode_id="e", task_id="t", steps=tuple(steps))


def test_I09_share_is_of_the_whole_context_of_every_turn():
    # Contexts of 10 and 10 + 5 + 3 tokens.
    figure = cache_hit_share([episode((10, 5, 4, False), (3, 2, 14, True))])
    assert (figure.numerator, figure.denominator, figure.value) == (18, 28, 18 / 28)


def test_I09_a_prompt_that_does_not_extend_is_a_context_of_its_own():
    assert cache_hit_share([episode((10, 5, 0, False), (18, 2, 0, False))]).denominator == 28


def test_turns_of_policies_that_do_not_say_count_nowhere_but_lengthen_contexts():
    figure = cache_hit_share([episode((10, 5, None, False), (3, 2, 9, True)), episode((7, 1, None, False))])
    assert (figure.numerator, figure.denominator) == (9, 18)


def test_nothing_is_known_of_scripted_policies():
    assert cache_hit_share([episode((10, 5, None, False))]).value is None
