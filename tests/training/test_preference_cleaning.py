"""Cleaning, step by step, with pairs written down by hand."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deedrl.training.preference_cleaning import (
    at_most_per_task,
    clean,
    length_report,
    split_by_task,
    within_length_band,
    without_contradictions,
    without_duplicates,
    without_equal_rewards,
    without_equal_sequences,
    without_small_margins,
)
from deedrl.training.preferences import Candidate, PreferencePair
from deedrl.training.samples import TrainingSample


def pair(chosen="a", rejected="b", margin=0.5, lengths=(3, 4), task="t", kind="outcome"):
    return PreferencePair(
        kind=kind,
        task_id=task,
        chosen=chosen,
        rejected=rejected,
        margin=margin,
        chosen_tokens=lengths[0],
        rejected_tokens=lengths[1],
    )


def episodes(**actions):
    """Episodes by name with the tokens they sampled, after a prompt of two tokens."""
    return {
        name: Candidate(
            episode_id=name,
            task_id="t",
            role="agent",
            samples=(
                TrainingSample(
                    episode_id=name,
                    ids=(1, 2, *tokens),
                    action_mask=(False, False, *(True for _ in tokens)),
                    logprobs=(0.0,) * (2 + len(tokens)),
                ),
            ),
            solved=True,
            reward=1.0,
            steps=1,
            action_tokens=len(tokens),
        )
        for name, tokens in actions.items()
    }


DISTINCT = episodes(a=(5,), b=(6,), c=(7,), d=(8,))


def test_C07_pairs_that_are_equal_token_for_token_or_in_reward_are_not_used_and_the_number_is_reported():
    known = episodes(a=(5, 6), b=(5, 6), c=(5, 7))
    same, alike, fine = pair("a", "b"), pair("a", "c", margin=0.0), pair("b", "c", margin=0.2)
    assert without_equal_sequences([same, alike, fine], known) == [alike, fine]
    assert without_equal_rewards([same, alike, fine]) == [same, fine]
    cleaned = clean([same, alike, fine], known, min_margin=0.0, pairs_per_task=9, length_band=(0.0, 1.0), seed=0)
    assert cleaned.pairs == (fine,)
    assert cleaned.dropped["equal_sequences"] == cleaned.dropped["equal_rewards"] == 1


def test_C07_what_a_tool_answered_does_not_make_two_sides_different():
    """The policy sampled the same; chance in the environment decided."""
    one, other = episodes(a=(5, 6), b=(5, 6)).values()
    lucky = msgspec.structs.replace(other.samples[0], ids=(1, 3, 5, 6))
    known = {"a": one, "b": msgspec.structs.replace(other, samples=(lucky,))}
    assert without_equal_sequences([pair()], known) == []


def test_margins_below_the_threshold_and_negative_ones_are_dropped():
    assert without_small_margins([pair(margin=m) for m in (-0.5, 0.05, 0.1, 0.3)], 0.1) == [
        pair(margin=0.1),
        pair(margin=0.3),
    ]
    assert without_small_margins([pair(margin=-0.1), pair(margin=0.1)], 0.0) == [pair(margin=0.1)]


def test_contradictions_go_in_both_directions_also_between_equal_sequences_of_other_names():
    known = DISTINCT | episodes(a2=(5,), b2=(6,))
    there, back, fine = pair("a", "b"), pair("b2", "a2"), pair("a", "c")
    assert without_contradictions([there, back, fine], known) == [fine]
    assert without_contradictions([there, fine], known) == [there, fine]


def test_duplicates_are_told_by_their_tokens_and_the_first_stays():
    known = DISTINCT | episodes(a2=(5,))
    first, again, reversed_ = pair("a", "b", kind="triple"), pair("a2", "b"), pair("b", "a")
    assert without_duplicates([first, again, reversed_, first], known) == [first, reversed_]


def test_the_limit_of_a_task_is_spread_over_kinds_and_the_same_for_the_same_seed():
    many = [pair(f"a{i}", "b", kind="outcome") for i in range(20)]
    few = [pair(f"a{i}", "c", kind="efficiency") for i in range(2)]
    other = [pair("x", "y", task="u")]
    kept = at_most_per_task([*many, *few, *other], 5, seed=1)
    assert [p.kind for p in kept if p.task_id == "t"].count("efficiency") == 2
    assert [p.task_id for p in kept].count("t") == 5
    assert other[0] in kept
    assert kept == at_most_per_task([*many, *few, *other], 5, seed=1)
    assert kept != at_most_per_task([*many, *few, *other], 5, seed=2)
    alone = at_most_per_task([*many, *few], 5, seed=1)
    assert alone == [p for p in kept if p.task_id == "t"], "other tasks have no say"


# ---------------------------------------------------------------- length


def test_length_report_by_hand_and_its_correlation_by_numpy():
    pairs = [pair(lengths=(9, 4)), pair(lengths=(5, 5)), pair(lengths=(2, 8)), pair(lengths=(7, 1))]
    report = length_report(pairs)
    assert (report.chosen_longer, report.chosen_shorter, report.equal) == (2, 1, 1)
    assert report.share_longer == pytest.approx(2 / 3)
    lengths = [p.chosen_tokens for p in pairs] + [p.rejected_tokens for p in pairs]
    assert report.correlation == pytest.approx(float(np.corrcoef([1] * 4 + [0] * 4, lengths)[0, 1]))


def test_length_report_of_nothing_and_of_equal_lengths_has_no_share_and_no_correlation():
    for report in (length_report([]), length_report([pair(lengths=(4, 4))])):
        assert report.share_longer is None
        assert report.correlation is None


def test_the_most_extreme_go_first_until_the_share_is_in_the_band():
    longer = [pair(f"l{i}", lengths=(10 + i, 10)) for i in range(1, 7)]
    shorter = [pair(f"s{i}", lengths=(10, 10 + i)) for i in range(1, 3)]
    equal = [pair("e", lengths=(4, 4))]
    kept = within_length_band([*longer, *shorter, *equal], 0.0, 0.6)
    assert [p.chosen for p in kept] == ["l1", "l2", "l3", "s1", "s2", "e"]
    kept = within_length_band([*longer, *shorter], 0.8, 1.0)
    assert [p.chosen for p in kept] == ["l1", "l2", "l3", "l4", "l5", "l6", "s1"]
    assert within_length_band([*longer, *shorter], 0.2, 0.8) == [*longer, *shorter]


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=40),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_the_band_is_met_whatever_the_pairs_and_no_pair_goes_that_need_not(lengths, one, other):
    low, high = sorted((one, other))
    pairs = [pair(f"a{i}", lengths=both) for i, both in enumerate(lengths)]
    kept = within_length_band(pairs, low, high)
    share = length_report(kept).share_longer
    before = length_report(pairs).share_longer
    if before is not None and before > high and share is not None:
        assert share <= high + 1e-9
    if before is not None and before < low and share is not None:
        assert share >= low - 1e-9
    dropped = [p for p in pairs if p not in kept]
    if dropped:
        mildest = min(dropped, key=lambda p: abs(p.chosen_tokens - p.rejected_tokens))
        with_it = length_report([*kept, mildest]).share_longer
        assert with_it is not None
        assert not low <= with_it <= high


# ---------------------------------------------------------------- held out, and all of it


@pytest.mark.parametrize(("share", "tasks"), [(0.0, 0), (0.01, 1), (0.3, 3), (0.9, 9)])
def test_held_out_pairs_are_those_of_whole_tasks(share, tasks):
    pairs = [pair(f"a{i}", "b", task=f"t{i % 10}") for i in range(30)]
    trained, held = split_by_task(pairs, share, seed=4)
    assert len({p.task_id for p in held}) == tasks
    assert len(held) == 3 * tasks
    assert {p.task_id for p in trained}.isdisjoint({p.task_id for p in held})
    assert split_by_task(pairs, share, seed=4) == (trained, held)


def test_the_only_task_is_not_held_out():
    assert split_by_task([pair()], 0.9, seed=0) == ([pair()], [])


def test_every_step_is_counted_in_order():
    known = DISTINCT | episodes(a2=(5,))
    pairs = [
        pair("a", "a2"),
        pair("a", "b", margin=0.0),
        pair("a", "b", margin=0.01),
        pair("c", "d"),
        pair("d", "c"),
        pair("a", "c", lengths=(1, 9)),
        pair("a2", "c"),
        pair("b", "c", lengths=(5, 9)),
        pair("b", "d", lengths=(9, 5)),
    ]
    cleaned = clean(pairs, known, min_margin=0.1, pairs_per_task=9, length_band=(0.5, 1.0), seed=0)
    assert cleaned.dropped == {
        "equal_sequences": 1,
        "equal_rewards": 1,
        "small_margins": 1,
        "contradictions": 2,
        "duplicates": 1,
        "pairs_per_task": 0,
        "length_band": 1,
    }
    assert [(p.chosen, p.rejected) for p in cleaned.pairs] == [("b", "c"), ("b", "d")]
