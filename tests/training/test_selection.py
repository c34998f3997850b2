"""Who takes part in an update, and with which advantage."""

from __future__ import annotations

import msgspec
import pytest

from deedrl.errors import ModelError
from deedrl.training.advantages import dr_grpo, grpo
from deedrl.training.credit import Comparison, has_signal
from deedrl.training.selection import group_trajectories, select, whitened_samples
from deedrl.types import Failure, TerminationReason, TrajectoryGroup

ONE_TURN = (((5, 6), (7, 8)),)
TWO_TURNS = (((5, 6), (7, 8)), ((9,), (7, 8)))


def chosen(kit, trajectories, estimator=dr_grpo, **options):
    options = {"threshold": 1e-6, "max_tokens": 99} | options
    comparison = Comparison(estimator, options.pop("threshold"))
    return select(group_trajectories(trajectories), comparison, **options)


def advantage_of(selection):
    return {
        sample.episode_id: {a for a, action in zip(sample.advantages, sample.action_mask, strict=True) if action}
        for sample in selection.samples
    }


def test_advantages_lie_on_action_tokens_only(kit):
    selection = chosen(kit, [kit.trajectory("a", 1.0), kit.trajectory("b", 0.0)])
    assert [sample.advantages for sample in selection.samples] == [(0.0, 0.0, 0.5, 0.5), (0.0, 0.0, -0.5, -0.5)]


def test_C03_unscored_sibling_is_left_out_and_counted(kit):
    rewards = {"a": 1.0, "b": None, "c": 0.0, "d": 1.0}
    selection = chosen(kit, [kit.trajectory(name, reward) for name, reward in rewards.items()])
    assert advantage_of(selection) == {
        "a": {1.0 - 2 / 3},
        "c": {0.0 - 2 / 3},
        "d": {1.0 - 2 / 3},
    }
    assert selection.counts.unscored == 1


def test_C01_group_of_equal_rewards_is_counted_and_left_out(kit):
    selection = chosen(kit, [kit.trajectory(f"e{i}", 0.1) for i in range(8)])
    assert selection.samples == ()
    assert (selection.counts.zero_variance, selection.counts.too_small) == (1, 0)


@pytest.mark.parametrize("rewards", [[0.7], [0.7, None, None, None]])
def test_C02_group_with_one_scored_sibling_is_counted_as_too_small(kit, rewards):
    selection = chosen(kit, [kit.trajectory(f"e{i}", reward) for i, reward in enumerate(rewards)], grpo)
    assert selection.samples == ()
    assert (selection.counts.zero_variance, selection.counts.too_small) == (0, 1)


def test_C14_groups_without_signal_take_part_in_kl_only_if_asked(kit):
    same = [kit.trajectory(f"e{i}", 0.5) for i in range(3)]
    assert chosen(kit, same).samples == ()
    kept = chosen(kit, same, keep_zero_variance=True)
    assert advantage_of(kept) == {"e0": {0.0}, "e1": {0.0}, "e2": {0.0}}
    assert kept.counts.zero_variance == 1


def test_C01_what_groups_without_signal_hold_is_counted_for_the_mean(kit):
    """An unscored sibling is no part of any mean; a kept group is not silent."""
    same = [*(kit.trajectory(f"e{i}", 0.5, turns=TWO_TURNS) for i in range(3)), kit.trajectory("unscored", None)]
    left_out, kept = chosen(kit, same).counts, chosen(kit, same, keep_zero_variance=True).counts
    assert (left_out.silent_episodes, left_out.silent_tokens) == (3, 12)
    assert (kept.silent_episodes, kept.silent_tokens) == (0, 0)
    assert chosen(kit, [kit.trajectory("a", 1.0)]).counts.silent_episodes == 0


def test_C14_zero_variance_threshold_is_a_setting(kit):
    near = [kit.trajectory("a", 0.50), kit.trajectory("b", 0.51)]
    assert chosen(kit, near).counts.zero_variance == 0
    assert chosen(kit, near, threshold=0.02).counts.zero_variance == 1
    [group] = group_trajectories(near)
    assert has_signal(Comparison(grpo, 1e-6).advantages(group))
    assert not has_signal(Comparison(grpo, 0.02).advantages(group))


def test_C20_baseline_is_per_episode_whatever_the_number_of_turns(kit):
    """Successes have two turns, failures one: the baseline is 1/2, not 4/6."""
    episodes = [
        kit.trajectory("a", 1.0, TWO_TURNS),
        kit.trajectory("b", 0.0, ONE_TURN),
        kit.trajectory("c", 1.0, TWO_TURNS),
        kit.trajectory("d", 0.0, ONE_TURN),
    ]
    assert advantage_of(chosen(kit, episodes)) == {"a": {0.5}, "b": {-0.5}, "c": {0.5}, "d": {-0.5}}


def test_C20_episode_split_into_samples_counts_once_in_the_baseline(kit):
    episodes = [
        kit.trajectory("a", 1.0, TWO_TURNS, breaks=(1,)),
        kit.trajectory("b", 0.0, ONE_TURN),
    ]
    selection = chosen(kit, episodes)
    assert [sample.episode_id for sample in selection.samples] == ["a", "a", "b"]
    assert advantage_of(selection) == {"a": {0.5}, "b": {-0.5}}


def test_C19_rewards_stay_with_their_episode_when_others_drop_out(kit):
    """Five siblings, two without usable tokens in front: each of the rest keeps its own advantage."""
    episodes = [
        kit.trajectory("empty", 0.0, [((), ())]),
        kit.trajectory("long", 0.0, [(tuple(range(200)), (1,))]),
        kit.trajectory("a", 1.0),
        kit.trajectory("b", 0.0),
        kit.trajectory("c", 1.0),
    ]
    selection = chosen(kit, episodes)
    assert advantage_of(selection) == {"a": {0.6}, "b": {-0.4}, "c": {0.6}}
    assert (selection.counts.samples.without_tokens, selection.counts.samples.too_long) == (1, 1)


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), float("-inf")])
def test_E07_a_reward_that_is_no_number_is_refused_and_named(kit, reward):
    episodes = [kit.trajectory("a", 1.0), kit.trajectory("b", reward), kit.trajectory("c", 0.0)]
    with pytest.raises(ValueError, match=r"episode 'b': expected a finite reward"):
        chosen(kit, episodes)


def test_B14_sampled_turns_without_logprobs_are_refused_and_named(kit):
    """Absent is not 0.0: a ratio to log-probability 0 would be of another policy."""
    episodes = [kit.trajectory("a", 1.0), kit.trajectory("b", 0.0)]
    [step] = episodes[1].steps
    bare = msgspec.structs.replace(step, completion=msgspec.structs.replace(step.completion, logprobs=()))
    episodes[1] = msgspec.structs.replace(episodes[1], steps=(bare,))
    with pytest.raises(ModelError, match=r"episode 'b', turn 0: expected a log-probability for each of 2 sampled"):
        chosen(kit, episodes)


def test_C19_estimator_that_returns_another_number_of_advantages_is_an_error(kit):
    with pytest.raises(ValueError, match="zip"):
        chosen(kit, [kit.trajectory("a", 1.0), kit.trajectory("b", 0.0)], lambda rewards, _: [*rewards, 0.0])


def test_C19_episode_id_that_comes_twice_is_an_error(kit):
    twice = [
        kit.trajectory("a", 1.0),
        kit.trajectory("b", 0.0),
        kit.trajectory("a", 0.0, task="u"),
        kit.trajectory("c", 1.0, task="u"),
    ]
    with pytest.raises(ValueError, match="'a' came twice"):
        chosen(kit, twice)


def test_episode_with_infrastructure_trouble_is_no_reward_of_zero(kit):
    failure = Failure(kind="OSError", phase="step", message="disk")
    episodes = [kit.trajectory("a", 1.0), kit.trajectory("b", 0.0), kit.trajectory("c", None, failure=failure)]
    assert advantage_of(chosen(kit, episodes)) == {"a": {0.5}, "b": {-0.5}}


def test_guided_episodes_are_no_samples_of_the_policy(kit):
    episodes = [kit.trajectory("a", 1.0), kit.trajectory("b", 0.0), kit.trajectory("c", 1.0, guided=True)]
    selection = chosen(kit, episodes)
    assert advantage_of(selection) == {"a": {0.5}, "b": {-0.5}}
    assert selection.counts.guided == 1


def test_G04_roles_of_one_task_form_groups_of_their_own(kit):
    """Solver rewards 0 … 1, critic rewards 0 … 10: no baseline mixes them."""
    episodes = [
        kit.trajectory("s1", 1.0, role="solver"),
        kit.trajectory("c1", 10.0, role="critic"),
        kit.trajectory("s2", 0.0, role="solver"),
        kit.trajectory("c2", 0.0, role="critic"),
    ]
    assert [group.role for group in group_trajectories(episodes)] == ["solver", "critic"]
    assert advantage_of(chosen(kit, episodes)) == {"s1": {0.5}, "s2": {-0.5}, "c1": {5.0}, "c2": {-5.0}}


def test_G04_mixed_roles_in_one_group_are_refused(kit):
    episodes = (kit.trajectory("s", 1.0, role="solver"), kit.trajectory("c", 10.0, role="critic"))
    with pytest.raises(ValueError, match=r"one role.*group by \(task_id, role\)"):
        TrajectoryGroup(task_id="t", role="solver", trajectories=episodes)


def test_B11_episodes_that_a_limit_cut_are_left_out_where_asked_and_counted(kit):
    """Neither in the baseline nor in the loss, and not silent either."""
    episodes = [
        kit.trajectory("a", 1.0),
        kit.trajectory("b", 0.0),
        kit.trajectory("cut", 0.7, termination=TerminationReason.TOKEN_LIMIT),
    ]
    comparison = Comparison(dr_grpo, left_out=[TerminationReason.TOKEN_LIMIT])
    found = select(group_trajectories(episodes), comparison, max_tokens=99)
    assert advantage_of(found) == {"a": {0.5}, "b": {-0.5}}
    assert found.counts.left_out == 1
    assert chosen(kit, episodes).counts.left_out == 0
    alone = select(group_trajectories(episodes[1:]), comparison, max_tokens=99)
    assert (alone.counts.too_small, alone.counts.silent_episodes) == (1, 0)


def test_whitening_takes_the_steps_tokens_those_of_silent_episodes_included(kit):
    """REINFORCE++-baseline by hand: deviations of 0.5 on two tokens, of -0.5 on two, and four zeros."""
    groups = [kit.trajectory("a", 1.0), kit.trajectory("b", 0.0)]
    samples = chosen(kit, groups).samples
    assert [s.advantages[2:] for s in whitened_samples(samples, 0)] == [(1.0, 1.0), (-1.0, -1.0)]
    spread = [s.advantages for s in whitened_samples(samples, 4)]
    assert spread[0] == pytest.approx((0, 0, 2**0.5, 2**0.5))
    assert whitened_samples([], 3) == []


def test_penalties_tell_nobody_apart_whose_rewards_do_not(kit):
    """KL in the reward must not make a lesson of siblings that earned the same, however small it is."""
    less = {"a": [0.5], "b": [0.0]}
    same = [kit.trajectory("a", 0.5), kit.trajectory("b", 0.5)]
    other = [kit.trajectory("a", 1.0), kit.trajectory("b", 0.0)]
    comparison = Comparison(dr_grpo, penalties=less)
    assert select(group_trajectories(same), comparison, max_tokens=99).samples == ()
    found = advantage_of(select(group_trajectories(other), comparison, max_tokens=99))
    assert found == {"a": {0.25}, "b": {-0.25}}
