"""The benchmark of rollouts: the same work whatever the model says, on a tiny model."""

from __future__ import annotations

import pytest

from deedrl.benchmarks import rollouts
from deedrl.benchmarks.long_desk import LongDesk, long_specs, moves
from deedrl.benchmarks.rollouts import RolloutSettings, benchmark_rollouts, play
from deedrl.errors import BenchmarkError, ConfigError
from deedrl.policies.local.model import load_model


@pytest.fixture(scope="module")
def settings(tiny_models, one_thread):
    folder = tiny_models([LongDesk.instructions] * 20).folder(positions=16_384)
    return RolloutSettings(model=str(folder), dtype="fp32", episodes=3, turns=(2, 4), new_tokens=5, repetitions=2)


def test_everything_is_measured_at_every_number_of_turns(settings):
    result = benchmark_rollouts(settings)
    assert result.counts == {"tokens sampled in 2 turns": 30, "tokens sampled in 4 turns": 60}
    found = {one.name: one for one in result.figures}
    for turns, tokens in ((2, 30), (4, 60)):
        seconds = found[f"{turns} turns: whole run (wall)"].values
        assert len(seconds) == 2
        rates = found[f"{turns} turns: sampled tokens (wall)"].values
        assert rates == pytest.approx([tokens / second for second in seconds])
    growth = found["cost of a token, dearest over cheapest number of turns"]
    assert min(growth.values) >= 1
    assert growth.at_most == 1.25
    assert result.settings["precision"] == "float32"


@pytest.mark.parametrize("turns", [2, 3, 9])
def test_every_turn_samples_all_its_tokens_and_the_job_is_done_in_the_last(settings, turns):
    loaded = load_model(settings.model, dtype="fp32")
    for trajectory in play(settings, loaded, turns):
        assert [len(step.completion.token_ids) for step in trajectory.steps] == [5] * turns
        assert all(step.tool_output.ok for step in trajectory.steps)
        assert [step.completion.extends_previous for step in trajectory.steps] == [False, *[True] * (turns - 1)]
        assert trajectory.solved


def test_the_tokens_of_a_turn_stay_in_the_context_of_the_next(settings):
    """What was sampled is what later turns are sampled after, though the environment got something else."""
    loaded = load_model(settings.model, dtype="fp32")
    first, second = (play(settings, loaded, 2) for _ in range(2))
    assert [t.steps for t in first] != [t.steps for t in play_with_other_tokens(settings, loaded)]
    for one, other in zip(first, second, strict=True):
        assert [s.completion.token_ids for s in one.steps] == [s.completion.token_ids for s in other.steps]


def play_with_other_tokens(settings, loaded):
    return play(RolloutSettings(model=settings.model, episodes=3, new_tokens=5, seed=9), loaded, 2)


def test_moves_are_lookups_and_the_decision_last():
    for spec in long_specs(14, new_tokens=4, temperature=1.0, seed=1):
        actions = moves(spec.task, 6)
        assert len(actions) == 6
        desk = LongDesk()
        desk.reset(seed=0, options={"task": spec.task})
        ends = [desk.step(action)[2] for action in actions]
        assert ends == [*[False] * 5, True]
        assert desk.current_verdict().solved
        desk.close()


def test_episodes_that_fail_are_no_measurement(settings, monkeypatch):
    monkeypatch.setattr(rollouts.LongDesk, "max_steps", 1)
    loaded = load_model(settings.model, dtype="fp32")
    with pytest.raises(BenchmarkError, match="expected 3 solved episodes, got 0"):
        play(settings, loaded, 2)


@pytest.mark.parametrize("wrong", [{"episodes": 0}, {"turns": ()}, {"turns": (4, 1)}, {"new_tokens": 0}])
def test_settings_that_measure_nothing_are_refused(wrong):
    with pytest.raises(ConfigError):
        RolloutSettings(**wrong)
