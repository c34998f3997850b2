from __future__ import annotations

from deedrl.benchmarks.episodes import LONG, SHORT, made_up_trajectory
from deedrl.store.codec import decode, encode


def test_made_up_episodes_are_the_same_every_time_and_differ_from_each_other() -> None:
    assert made_up_trajectory(3, SHORT) == made_up_trajectory(3, SHORT)
    assert made_up_trajectory(3, SHORT).steps != made_up_trajectory(4, SHORT).steps


def test_made_up_episodes_have_the_shape_asked_for() -> None:
    for shape in (SHORT, LONG):
        trajectory = made_up_trajectory(0, shape)
        assert len(trajectory.steps) == shape.steps
        assert len(trajectory.steps[0].completion.prompt_ids) == shape.prompt_tokens
        assert all(len(s.completion.token_ids) == len(s.completion.logprobs) > 10 for s in trajectory.steps)
        assert all(logprob <= 0 for s in trajectory.steps for logprob in s.completion.logprobs)
        assert decode(encode(trajectory)) == trajectory


def test_their_sizes_are_those_the_settings_speak_of() -> None:
    assert 5_000 < len(encode(made_up_trajectory(0, SHORT))) < 15_000
    assert 150_000 < len(encode(made_up_trajectory(0, LONG))) < 400_000
