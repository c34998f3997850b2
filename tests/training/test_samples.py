"""Trajectories to samples: recorded ids only, split where a prompt was no extension, nothing cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deedrl.training.samples import TrainingSample, collect_samples, samples_from

turns = st.lists(
    st.tuples(st.lists(st.integers(0, 99), max_size=4), st.lists(st.integers(0, 99), max_size=4)),
    min_size=1,
    max_size=5,
)


def test_B01_toy_vocabulary_sampled_pieces_stay_pieces(kit):
    """he=1, llo=2, hello=3: [1, 2] was sampled, and 3 appears nowhere."""
    [sample] = samples_from(kit.trajectory("e", 1.0, [((7, 8), (1, 2)), ((9,), (1, 2))]))
    assert sample.ids == (7, 8, 1, 2, 9, 1, 2)
    assert sample.action_mask == (False, False, True, True, False, True, True)
    assert sample.logprobs == (0.0, 0.0, -1.0, -1.0, 0.0, -1.0, -1.0)


def test_B05_prompt_that_extends_nothing_starts_a_sample_of_its_own(kit):
    trajectory = kit.trajectory("e", 1.0, [((7, 8), (1,)), ((7, 9, 1), (2,)), ((4,), (3,))], breaks=(1,))
    first, second = samples_from(trajectory)
    assert first.ids == (7, 8, 1)
    assert second.ids == (7, 9, 1, 2, 4, 3)
    assert second.action_mask == (False, False, False, True, False, True)
    assert collect_samples([trajectory], max_tokens=99)[1].split_trajectories == 1


def test_B05_a_turn_in_which_nothing_was_sampled_stays_context(kit):
    """Its prompt was read by the turns that extend it; a row without it holds a prompt that the policy never saw."""
    [sample] = samples_from(kit.trajectory("e", 1.0, [((7, 8), (1,)), ((5, 6), ()), ((9,), (2,))]))
    assert sample.ids == (7, 8, 1, 5, 6, 9, 2)
    assert sample.action_mask == (False, False, True, False, False, False, True)
    assert sample.turns == ((0, 1), (1, 0), (2, 1))
    [first] = samples_from(kit.trajectory("e", 1.0, [((7, 8), ()), ((9,), (2,))]))
    assert first.ids == (7, 8, 9, 2)
    assert samples_from(kit.trajectory("e", 1.0, [((7, 8), ())])) == []


@given(turns=turns)
def test_every_sampled_token_is_trained_once_and_no_other(kit, turns):
    samples = samples_from(kit.trajectory("e", 1.0, turns))
    trained = [t for s in samples for t, action in zip(s.ids, s.action_mask, strict=True) if action]
    assert trained == [token for _, sampled in turns for token in sampled]
    assert sum(len(s.ids) for s in samples) == (sum(len(c) + len(s) for c, s in turns) if trained else 0)


def test_B09_merged_row_over_the_limit_is_left_out_whole_and_counted(kit):
    """Turns of 6, 4 and 6 tokens make 16; a limit of 8 excludes the row, a limit of 16 keeps all of it."""
    trajectory = kit.trajectory("e", 1.0, [((1, 2, 3), (4, 5, 6)), ((7, 7, 7, 7), (1, 2, 3, 4, 5, 6))])
    [[kept]], counts = collect_samples([trajectory], max_tokens=16)
    assert len(kept.ids) == 16
    assert kept.ids[-6:] == (1, 2, 3, 4, 5, 6)
    assert counts.too_long == 0
    [none], counts = collect_samples([trajectory], max_tokens=8)
    assert none == []
    assert (counts.too_long, counts.samples, counts.trajectories) == (1, 0, 1)


def test_trajectories_without_tokens_are_counted(kit):
    scripted = kit.trajectory("e", 1.0, [((), ())])
    samples, counts = collect_samples([scripted, kit.trajectory("f", 1.0)], max_tokens=99)
    assert [len(found) for found in samples] == [0, 1]
    assert counts.without_tokens == 1


def test_fields_of_unequal_length_are_refused():
    with pytest.raises(ValueError, match="sample e differ in length"):
        TrainingSample(episode_id="e", ids=(1, 2), action_mask=(False, True), logprobs=(0.0,))
