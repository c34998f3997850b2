"""Credit of turns: by hand, against slow loops, and which states count as the same."""

from __future__ import annotations

import random
import statistics
from functools import partial

import msgspec
import pytest

from deedrl.training.advantages import dr_grpo, grpo, rloo
from deedrl.training.credit import (
    Comparison,
    anchor_credit,
    anchored_turns,
    anchors,
    compared,
    has_signal,
    outcome_credit,
    return_credit,
)
from deedrl.training.losses import sample_weights
from deedrl.training.selection import select
from deedrl.training.turn_rewards import discounted, has_step_rewards, turn_rewards
from deedrl.types import TerminationReason

RETURNS = partial(return_credit, gamma=1.0)
ANCHORS = partial(anchor_credit, gamma=1.0, anchor_weight=1.0)
CREDITS = [outcome_credit, RETURNS, ANCHORS]
TURN = ((9,), (7, 8))


def episode(kit, name, reward, states="a", pays=None, shown=None, **fields):
    """One turn for each letter of `states`, the state it is sampled in; a space stands for no hash."""
    made = kit.trajectory(name, reward, [TURN] * len(states), **fields)
    steps = [
        msgspec.structs.replace(
            step,
            state_hash=None if state == " " else state,
            reward=(pays or [0.0] * len(states))[step.index],
            observation=(shown or [""] * len(states))[step.index],
        )
        for step, state in zip(made.steps, states, strict=True)
    ]
    return msgspec.structs.replace(made, steps=tuple(steps))


def advantages(kit, episodes, estimator=rloo, credit=outcome_credit, step_weight=0.0):
    rewards = partial(turn_rewards, step_weight=step_weight)
    return Comparison(estimator, credit=credit, rewards=rewards).advantages(kit.group(episodes))


# ------------------------------------------------------------ rewards and returns


def test_rewards_by_turn_are_what_steps_paid_and_the_outcome_at_the_end(kit):
    played = episode(kit, "e", 0.5, "abc", pays=[0.25, None, 1.0])
    assert turn_rewards(played) == [0.0, 0.0, 0.5]
    assert turn_rewards(played, step_weight=2.0) == [0.5, 0.0, 2.5]
    at_goal = msgspec.structs.replace(played, termination=TerminationReason.GOAL)
    assert turn_rewards(at_goal, step_weight=2.0) == [0.5, 0.0, 0.5], "the outcome holds what reaching the goal paid"
    assert has_step_rewards(played)


def test_returns_by_hand():
    assert discounted([1.0, 0.0, 4.0], 0.5) == [1 + 0.5 * 2, 2.0, 4.0]
    assert discounted([0.0, 0.0, 1.0], 1.0) == [1.0, 1.0, 1.0]


# ------------------------------------------------------------ turns against siblings


def test_a_turn_is_compared_with_the_means_of_the_others():
    rows = [[4.0, 2.0], [1.0], [0.0, 0.0, 3.0]]
    found = compared(rows, rloo)
    assert found == [
        pytest.approx([4 - 1.0, 2 - 1.0]),
        pytest.approx([1 - 2.0]),
        pytest.approx([0 - 2.0, 0 - 2.0, 3 - 2.0]),
    ]
    assert compared(rows, grpo)[1] == pytest.approx([grpo([3.0, 1.0, 1.0])[1]])


def test_rewards_of_single_steps_reach_the_turns_before_them_and_no_other(kit):
    """Equal outcomes: the siblings differ only in what the second turn of the first one paid."""
    episodes = [episode(kit, "x", 1.0, "abc", pays=[0.0, 0.6, 0.0]), episode(kit, "y", 1.0, "abc")]
    assert not has_signal(advantages(kit, episodes, credit=RETURNS)), "with weight 0 they do not count"
    first, second = advantages(kit, episodes, credit=RETURNS, step_weight=0.5)
    # Returns 1.3, 1.3, 1.0 with a mean of 1.2, against 1, 1, 1.
    assert first == pytest.approx([0.3, 0.3, 0.0])
    assert second == pytest.approx([-0.2, -0.2, -0.2])
    assert advantages(kit, episodes, step_weight=0.5)[0] == pytest.approx([0.3, 0.3, 0.3])


@pytest.mark.parametrize("estimator", [grpo, dr_grpo, rloo])
def test_without_step_rewards_and_discount_returns_are_outcomes(kit, estimator):
    episodes = [episode(kit, "x", 1.0, "abc"), episode(kit, "y", 0.0, "ab"), episode(kit, "z", 0.3, "abcd")]
    by_outcome = advantages(kit, episodes, estimator)
    for row, expected in zip(advantages(kit, episodes, estimator, RETURNS), by_outcome, strict=True):
        assert row == pytest.approx(expected)


@pytest.mark.parametrize("credit", CREDITS)
def test_C20_a_rollout_counts_once_whatever_its_number_of_turns(kit, credit):
    """Successes have two turns, failures one: the baseline is 1/2 and not 4/6, and all four weigh the same."""
    outcomes = [(1.0, "ab"), (0.0, "x"), (1.0, "cd"), (0.0, "y")]  # no state twice
    episodes = [episode(kit, f"e{i}", *each) for i, each in enumerate(outcomes)]
    found = advantages(kit, episodes, dr_grpo, credit)
    assert found == [pytest.approx([0.5, 0.5]), [-0.5], pytest.approx([0.5, 0.5]), [-0.5]]
    chosen = select([kit.group(episodes)], Comparison(dr_grpo, credit=credit), max_tokens=99).samples
    weights = sample_weights(chosen, "sequence")
    assert [w * s.action_tokens for w, s in zip(weights, chosen, strict=True)] == pytest.approx([0.25] * 4)


def test_C20_a_rollout_that_comes_back_to_a_state_counts_once_there(kit):
    """Three visits of one sibling against one of each other: the baseline is the mean of rollouts, not of visits."""
    episodes = [episode(kit, "x", 1.0, "ssss"), episode(kit, "y", 0.0, "s"), episode(kit, "z", 0.0, "s")]
    found = advantages(kit, episodes, dr_grpo, partial(anchor_credit, gamma=1.0, anchor_weight=3.0))
    assert found[1] == pytest.approx([-1 / 3 + 3 * (-1 / 3)])
    assert found[0] == pytest.approx([2 / 3 + 3 * (2 / 3)] * 4)


@pytest.mark.parametrize("credit", CREDITS)
def test_C03_who_is_not_compared_is_in_no_baseline_and_no_state(kit, credit):
    episodes = [
        episode(kit, "x", 1.0, "ab"),
        episode(kit, "unscored", None, "ab"),
        episode(kit, "y", 0.0, "ab"),
        episode(kit, "guided", 1.0, "ab", guided=True),
    ]
    found = advantages(kit, episodes, rloo, credit)
    assert [found[1], found[3]] == [None, None]
    assert [found[0], found[2]] == advantages(kit, [episodes[0], episodes[2]], rloo, credit)


@pytest.mark.parametrize("credit", CREDITS)
@pytest.mark.parametrize("count", [0, 1, 2])
def test_C01_C02_nothing_to_compare_gives_zeros(kit, credit, count):
    episodes = [episode(kit, f"e{i}", 0.7, "ab") for i in range(count)]
    group = msgspec.structs.replace(kit.group([episode(kit, "e", 0.7)]), trajectories=tuple(episodes))
    assert Comparison(grpo, credit=credit).advantages(group) == [[0.0, 0.0]] * count


@pytest.mark.parametrize("credit", CREDITS)
def test_an_episode_that_ended_before_its_first_turn_is_compared_by_its_outcome(kit, credit):
    found = advantages(kit, [episode(kit, "x", 1.0, "ab"), episode(kit, "mute", 0.0, "")], rloo, credit)
    assert found[0] == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize("credit", CREDITS)
def test_advantages_lie_on_the_tokens_of_their_turn_in_split_episodes_too(kit, credit):
    episodes = [episode(kit, "x", 1.0, "abc", pays=[1.0, 0.0, 0.0], breaks=(2,)), episode(kit, "y", 0.0, "abd")]
    chosen = Comparison(rloo, credit=credit, rewards=partial(turn_rewards, step_weight=1.0))
    of_turns = chosen.advantages(kit.group(episodes))[0]
    one, other, _ = select([kit.group(episodes)], chosen, max_tokens=99).samples
    a, b, c = of_turns
    assert one.advantages == (0, a, a, 0, b, b)
    assert other.advantages == (0, c, c)
    # The longer samples are left out: what is kept has its own turn's.
    [kept] = select([kit.group(episodes)], chosen, max_tokens=5).samples
    assert kept.advantages == (0, c, c)


# ------------------------------------------------------------ states


def test_anchors_compare_what_followed_in_the_same_state(kit):
    """By hand, with weight 2: in state a all three were, in b the first two, in c one."""
    episodes = [episode(kit, "x", 1.0, "ab"), episode(kit, "y", 0.0, "ab"), episode(kit, "z", 0.5, "ac")]
    found = advantages(kit, episodes, rloo, partial(anchor_credit, gamma=1.0, anchor_weight=2.0))
    whole = [1 - 0.25, 0 - 0.75, 0.0]
    assert found[0] == pytest.approx([whole[0] + 2 * 0.75, whole[0] + 2 * 1.0])
    assert found[1] == pytest.approx([whole[1] - 2 * 0.75, whole[1] - 2 * 1.0])
    assert found[2] == pytest.approx([0.0, 0.0])


def test_a_state_in_which_all_fail_alike_blames_nobody_for_what_went_before(kit):
    """The wrong turn was the first; what is done after it is not its fault."""
    episodes = [episode(kit, "x", 1.0, "ab"), episode(kit, "y", 0.0, "aw"), episode(kit, "z", 0.0, "aw")]
    step_part = partial(anchor_credit, gamma=1.0, anchor_weight=1.0)
    found = advantages(kit, episodes, dr_grpo, step_part)
    assert found[1] == pytest.approx([-2 / 3, -1 / 3]), "the second turn has the episode's part alone"


def test_anchors_equal_their_slow_loop(kit):
    rng = random.Random(0)
    for _ in range(30):
        episodes = [
            episode(kit, f"e{i}", rng.random(), "".join(rng.choices("abcd", k=rng.randint(1, 5)))) for i in range(4)
        ]
        found = advantages(kit, episodes, rloo, partial(anchor_credit, gamma=0.9, anchor_weight=0.7))
        for i, one in enumerate(episodes):
            others = [e for e in episodes if e is not one]
            for turn, step in enumerate(one.steps):
                expected = one.reward - statistics.fmean(e.reward for e in others)
                there = [
                    statistics.fmean(
                        e.reward * 0.9 ** (len(e.steps) - 1 - s.index)
                        for s in e.steps
                        if s.state_hash == step.state_hash
                    )
                    for e in others
                    if any(s.state_hash == step.state_hash for s in e.steps)
                ]
                if there:
                    expected += 0.7 * (one.reward * 0.9 ** (len(one.steps) - 1 - turn) - statistics.fmean(there))
                assert found[i][turn] == pytest.approx(expected)


def test_a_state_is_the_environments_and_what_the_policy_has_been_shown(kit):
    one = episode(kit, "x", 1.0, "aaab", shown=["task", "paid: 5", "sent: no", "done"])
    other = episode(kit, "y", 0.0, "aaab", shown=["task", "sent: no", "paid: 5", "done"])
    states = [anchors(one), anchors(other)]
    assert states[0][0] == states[1][0], "the task alone"
    assert states[0][1] != states[1][1], "the same books, but one knows the price and the other the post"
    assert states[0][2:] == states[1][2:], "the order in which they learnt it does not matter"
    assert len(set(states[0])) == 4


def test_without_a_hash_a_state_is_what_was_shown_in_its_order(kit):
    one = episode(kit, "x", 1.0, "   ", shown=["task", "ok", "ok"])
    other = episode(kit, "y", 1.0, "   ", shown=["task", "ok", "no"])
    assert len(set(anchors(one))) == 3, "the same answer twice is not the state after it came once"
    assert [a == b for a, b in zip(anchors(one), anchors(other), strict=True)] == [True, True, False]


def test_turns_with_company_are_counted_without_the_first(kit):
    episodes = [episode(kit, "x", 1.0, "abc"), episode(kit, "y", 0.0, "abd"), episode(kit, "z", 0.0, "aee")]
    found = anchored_turns([kit.group(episodes)])
    assert (found.turns, found.shared, found.share) == (6, 2, pytest.approx(1 / 3))
    alone = anchored_turns([kit.group([episode(kit, "x", 1.0, "a")])])
    assert (alone.turns, alone.share) == (0, 0.0)
    back = anchored_turns([kit.group([episode(kit, "x", 1.0, "aba"), episode(kit, "y", 0.0, "ac")])])
    assert (back.turns, back.shared) == (3, 1), "the first state met again"
