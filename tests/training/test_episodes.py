"""Which episodes a critic learns from, and where their rewards lie."""

from __future__ import annotations

import msgspec
import pytest

from deedrl.errors import ModelError
from deedrl.training.episodes import RewardedEpisode, credited, rewarded_episodes
from deedrl.training.gae import Credit
from deedrl.types import Failure, TerminationReason

TURNS = (((5, 6), (7, 8)), ((9,), (2, 3, 4)))
LIMITS = (TerminationReason.STEP_LIMIT, TerminationReason.TOKEN_LIMIT, TerminationReason.TIMEOUT)


def made(trajectories, **options):
    return rewarded_episodes(trajectories, **{"max_tokens": 99, "step_weight": 1.0, "cut_by": LIMITS} | options)


def paying(trajectory, *rewards):
    steps = (msgspec.structs.replace(s, reward=r) for s, r in zip(trajectory.steps, rewards, strict=True))
    return msgspec.structs.replace(trajectory, steps=tuple(steps))


def test_the_outcome_lies_on_the_last_action_token_and_step_rewards_on_the_last_of_their_step(kit):
    trajectory = paying(kit.trajectory("e", 0.7, TURNS), 0.25, -0.125)
    [episode], counts = made([trajectory])
    assert episode.rewards == (0, 0.25, 0, 0, 0.7 - 0.125)
    assert (counts.episodes, counts.with_step_rewards, counts.cut) == (1, 1, 0)
    [light], _ = made([trajectory], step_weight=0.5)
    assert light.rewards == (0, 0.125, 0, 0, 0.7 - 0.0625)
    [without], counts = made([trajectory], step_weight=0.0)
    assert without.rewards == (0, 0, 0, 0, 0.7)
    assert counts.with_step_rewards == 1, "left out, but not unseen"


def test_what_the_environment_pays_for_the_goal_is_the_outcome_and_counts_once(kit):
    trajectory = paying(kit.trajectory("e", 0.9, TURNS, termination=TerminationReason.GOAL), 0.0, 1.0)
    [episode], counts = made([trajectory])
    assert episode.rewards == (0, 0, 0, 0, 0.9)
    assert counts.with_step_rewards == 0


@pytest.mark.parametrize("reason", TerminationReason)
def test_the_outcome_of_an_episode_that_a_limit_cut_is_left_to_the_critic(kit, reason):
    trajectory = paying(kit.trajectory("e", 0.4, TURNS, termination=reason), 0.25, None)
    [episode], counts = made([trajectory])
    assert episode.cut == (reason in LIMITS) == counts.cut
    assert [sample.cut for sample in episode.samples] == [reason in LIMITS]
    assert episode.rewards == (0, 0.25, 0, 0, 0.0 if episode.cut else 0.4)
    [judged], _ = made([trajectory], cut_by=())
    assert (judged.cut, judged.rewards[-1]) == (False, 0.4)


def test_an_episode_of_several_samples_is_one_chain_and_only_its_last_is_cut(kit):
    trajectory = kit.trajectory("e", 0.7, TURNS, breaks=(1,), termination=TerminationReason.STEP_LIMIT)
    [episode], counts = made([trajectory])
    assert [sample.action_tokens for sample in episode.samples] == [2, 3]
    assert [sample.cut for sample in episode.samples] == [False, True]
    assert counts.samples.split_trajectories == 1
    credit = Credit([1.0, 2.0, 3.0, 4.0, 5.0], [6.0, 7.0, 8.0, 9.0, 10.0])
    first, second = credited(episode, [0.1, 0.2, 0.3, 0.4, 0.5], credit, credit.advantages)
    assert first.advantages == (0, 0, 1, 2)
    assert second.returns == (0, 8, 9, 10)
    assert second.values == (0, 0.3, 0.4, 0.5)


def test_B19_tool_tokens_between_actions_are_credited_with_nothing(kit):
    [episode], _ = made([kit.trajectory("e", 1.0, (((5,), (7,)), ((9,) * 4, (8,)), ((6,) * 2, (3,))))])
    credit = Credit([1.0, 2.0, 3.0], [4.0, 5.0, 6.0])
    [sample] = credited(episode, [7.0, 8.0, 9.0], credit, [0.1, 0.2, 0.3])
    assert sample.advantages == (0, 0.1, 0, 0, 0, 0, 0.2, 0, 0, 0.3)
    assert sample.returns == (0, 4, 0, 0, 0, 0, 5, 0, 0, 6)
    assert sample.values == (0, 7, 0, 0, 0, 0, 8, 0, 0, 9)


def test_C03_unscored_guided_and_failed_episodes_are_left_out_and_counted(kit):
    trajectories = [
        kit.trajectory("a", 1.0),
        kit.trajectory("b", None),
        kit.trajectory("c", 1.0, guided=True),
        kit.trajectory("d", None, failure=Failure(kind="OSError", phase="step", message="no")),
        kit.trajectory("e", 0.0, turns=()),
    ]
    episodes, counts = made(trajectories)
    assert [episode.samples[0].episode_id for episode in episodes] == ["a"]
    assert (counts.episodes, counts.unscored, counts.guided, counts.samples.without_tokens) == (1, 2, 1, 1)


def test_an_episode_with_a_sample_over_the_limit_is_left_out_whole(kit):
    """Without the long sample there would be a hole in the chain, or no outcome."""
    long = kit.trajectory("long", 1.0, (((5,), (7,)), ((5,) * 9, (7,))), breaks=(1,))
    episodes, counts = made([long, kit.trajectory("short", 1.0)], max_tokens=8)
    assert [episode.samples[0].episode_id for episode in episodes] == ["short"]
    assert (counts.samples.too_long, counts.episodes) == (1, 1)


def test_E07_B14_neither_rewards_that_are_no_numbers_nor_missing_logprobs_are_learnt_from(kit):
    with pytest.raises(ValueError, match=r"episode 'a': expected a finite reward"):
        made([kit.trajectory("a", float("nan"))])
    [step] = kit.trajectory("a", 1.0).steps
    bare = msgspec.structs.replace(step, completion=msgspec.structs.replace(step.completion, logprobs=(-1.0,)))
    with pytest.raises(ModelError, match=r"expected a log-probability for each of 2 sampled tokens, got 1"):
        made([msgspec.structs.replace(kit.trajectory("a", 1.0), steps=(bare,))])


def test_C03_a_step_in_which_nothing_was_sampled_costs_no_credit(kit):
    [episode], _ = made([kit.trajectory("a", 1.0, [((5,), (7,)), ((6,), ()), ((8,), (9,))])])
    assert episode.rewards == (0.0, 1.0)
    assert episode.samples[0].ids == (5, 7, 6, 8, 9)


def test_C19_an_episode_that_comes_twice_is_an_error(kit):
    with pytest.raises(ValueError, match="'a' came twice"):
        made([kit.trajectory("a", 1.0), kit.trajectory("a", 0.0)])


def test_C19_a_reward_too_many_is_an_error(kit):
    with pytest.raises(ValueError, match="a reward for each of 2 action tokens of episode e, got 3"):
        RewardedEpisode(task_id="t", samples=(kit.sample("e", [5], [6, 7]),), rewards=(0.0, 0.0, 1.0))
