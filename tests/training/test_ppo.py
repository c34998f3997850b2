"""Updates of policy and critic: credit by hand, order, figures, and a model that really learns."""

from __future__ import annotations

import asyncio
import math
import random

import msgspec
import pytest
import torch

from deedrl.policies.local.model import add_adapter
from deedrl.policies.local.policy import LocalPolicy
from deedrl.policies.policy import CompletionRequest
from deedrl.training.critic import ActorCritic, HeadCritic, adapter_critic
from deedrl.training.episodes import rewarded_episodes
from deedrl.training.learner import Learner
from deedrl.training.packing import pack
from deedrl.training.policy_gradient import PolicyUpdate
from deedrl.training.ppo import PpoUpdate, credited_samples, recorded_values, update_actor_critic, warm_up_critic
from deedrl.types import Action, Message, RewardBreakdown, SamplingParams, Step, TerminationReason, Trajectory

POLICY = PolicyUpdate(
    learning_rate=1e-3,
    max_grad_norm=1.0,
    micro_batch_tokens=10_000,
    clip_low=0.2,
    clip_high=0.28,
    kl_coefficient=0.0,
    normalisation="token",
    normalisation_tokens=512,
)
SETTINGS = PpoUpdate(
    policy=POLICY, critic_learning_rate=1e-2, gamma=1.0, gae_lambda=1.0, value_clip=0.2, whiten_advantages=True
)
CUTS = (TerminationReason.STEP_LIMIT, TerminationReason.TOKEN_LIMIT, TerminationReason.TIMEOUT)


def settings(**changes):
    policy = {name: changes.pop(name) for name in list(changes) if name in POLICY.__dict__}
    return PpoUpdate(**{**SETTINGS.__dict__, "policy": PolicyUpdate(**{**POLICY.__dict__, **policy}), **changes})


def head_learner(loaded, coefficient=0.5):
    return ActorCritic(HeadCritic(Learner(loaded), coefficient=coefficient))


def episodes_of(trajectories, cut_by=CUTS):
    return rewarded_episodes(trajectories, max_tokens=999, step_weight=1.0, cut_by=cut_by)[0]


def sampled(kit, loaded, count=6, max_tokens=6, step=0, tasks=2, reward=None):
    """Episodes of one turn, really sampled, of `tasks` different prompts; scored 1 if the first token is odd."""
    reward = reward or (lambda task, completion: float(completion.token_ids[0] % 2))

    async def play():
        policy = LocalPolicy(loaded.model, loaded.renderer)
        requests = [
            CompletionRequest(
                episode_id=f"{step}-{i}",
                messages=(
                    Message(role="system", content="Choose."),
                    Message(role="user", content="Say A or B." if i % tasks == 0 else f"Now say {i % tasks}, please."),
                ),
                tools=(),
                sampling=SamplingParams(max_tokens=max_tokens),
                seed=1000 * step + i,
            )
            for i in range(count)
        ]
        return requests, await asyncio.gather(*map(policy.complete, requests))

    requests, completions = asyncio.run(play())
    return [
        Trajectory(
            episode_id=request.episode_id,
            task_id=str(i % tasks),
            steps=(Step(index=0, observation="", completion=completion, action=Action()),),
            breakdown=RewardBreakdown(total=reward(i % tasks, completion)),
        )
        for i, (request, completion) in enumerate(zip(requests, completions, strict=True))
    ]


# ------------------------------------------------------------ credit

TURNS = (((5, 6), (7, 8)), ((9, 9, 9), (2,)))


def with_constant_value(kit, value):
    learner = head_learner(kit.load())
    with torch.no_grad():
        learner.critic.head.linear.bias.fill_(value)
    return learner


def credit_of(learner, trajectory, **changes):
    changes = {"gamma": 0.5, "gae_lambda": 0.5, "whiten_advantages": False} | changes
    [[sample]], _ = credited_samples(learner, episodes_of([trajectory]), settings(**changes))
    return sample


def test_B19_credit_steps_from_action_token_to_action_token_over_what_the_tool_says(kit):
    """Everything is worth 0.4; gamma and lambda 0.5 act once between tokens 8 and 2, not four times."""
    trajectory = kit.trajectory("e", 1.0, TURNS, termination=TerminationReason.TOOL_ENDED)
    sample = credit_of(with_constant_value(kit, 0.4), trajectory)
    last = 1.0 - 0.4
    middle = 0.5 * 0.4 - 0.4 + 0.25 * last
    first = 0.5 * 0.4 - 0.4 + 0.25 * middle
    assert sample.advantages == pytest.approx((0, 0, first, middle, 0, 0, 0, last))
    assert sample.values == pytest.approx((0, 0, 0.4, 0.4, 0, 0, 0, 0.4))
    assert sample.returns == pytest.approx((0, 0, first + 0.4, middle + 0.4, 0, 0, 0, 1.0))


@pytest.mark.parametrize("reason", CUTS)
def test_an_episode_that_a_limit_cut_is_worth_what_the_critic_says_of_its_last_state(kit, reason):
    trajectory = kit.trajectory("e", 0.9, TURNS, termination=reason)
    sample = credit_of(with_constant_value(kit, 0.4), trajectory)
    assert sample.returns[-1] == pytest.approx(0.5 * 0.4), "not the 0.9 of a state in which nothing was over"


@pytest.mark.parametrize("reason", [TerminationReason.GOAL, TerminationReason.PARSE_FAILURES, TerminationReason.LOOP])
def test_an_episode_that_ended_is_worth_its_outcome(kit, reason):
    trajectory = kit.trajectory("e", 0.9, TURNS, termination=reason)
    assert credit_of(with_constant_value(kit, 0.4), trajectory).returns[-1] == pytest.approx(0.9)


def test_the_last_state_is_that_after_all_recorded_tokens(kit):
    """A head that reads the state: what it says of the end is what it says of one more token there."""
    learner = head_learner(kit.load())
    with torch.no_grad():
        learner.critic.head.linear.weight.copy_(torch.randn(1, 64, generator=torch.Generator().manual_seed(0)))
    cut = kit.trajectory("cut", 0.0, TURNS, termination=TerminationReason.STEP_LIMIT)
    longer = kit.trajectory("longer", 0.0, (TURNS[0], (TURNS[1][0], (2, 3))))
    values, ends = recorded_values(learner, episodes_of([cut, longer]), 10_000)
    assert ends == [pytest.approx(values[1][3], abs=1e-5), None]
    assert values[0] == pytest.approx(values[1][:3], abs=1e-5)


def test_values_go_back_to_their_episodes_whatever_the_packing(kit):
    learner = head_learner(kit.load())
    with torch.no_grad():
        learner.critic.head.linear.weight.copy_(torch.randn(1, 64, generator=torch.Generator().manual_seed(0)))
    trajectories = [
        kit.trajectory(f"e{i}", 0.0, ((kit.ids(i, 3 + i), kit.ids(9 + i, 2)), ((5,), (6,))), breaks=(1,) * (i % 2))
        for i in range(5)
    ]
    trajectories[3] = msgspec.structs.replace(trajectories[3], termination=TerminationReason.STEP_LIMIT)
    together = recorded_values(learner, episodes_of(trajectories), 10_000)
    apart = recorded_values(learner, episodes_of(trajectories), 1)
    alone = [recorded_values(learner, episodes_of([trajectory]), 99) for trajectory in trajectories]
    for values, ends in (together, apart):
        for i, ([one], [end]) in enumerate(alone):
            assert values[i] == pytest.approx(one, abs=1e-4)
            assert ends[i] == (None if end is None else pytest.approx(end, abs=1e-4))
    assert [end is None for end in together[1]] == [True, True, True, False, True]


def test_advantages_are_whitened_over_action_tokens_alone(kit):
    learner, trajectories = with_constant_value(kit, 0.4), [kit.trajectory("a", 1.0, TURNS), kit.trajectory("b", 0.0)]
    samples, figures = credited_samples(learner, episodes_of(trajectories), settings())
    flat = [
        x for [sample] in samples for x, action in zip(sample.advantages, sample.action_mask, strict=True) if action
    ]
    assert sum(flat) == pytest.approx(0, abs=1e-6)
    assert sum(x * x for x in flat) / len(flat) == pytest.approx(1)
    assert all(not x for [s] in samples for x, action in zip(s.advantages, s.action_mask, strict=True) if not action)
    assert figures["return_mean"] == pytest.approx(3 / 5)
    assert figures["value_mean"] == pytest.approx(0.4)
    assert figures["explained_variance"] == pytest.approx(0.0, abs=1e-6)


# ------------------------------------------------------------ one step


def test_figures_of_a_first_update_are_those_of_the_policy_that_sampled(kit):
    loaded = kit.load()
    figures = update_actor_critic(
        head_learner(loaded), episodes_of(sampled(kit, loaded)), settings(), None, random.Random(0)
    )
    assert figures["logprob_gap"] < 1e-5
    assert (figures["clip_fraction"], figures["value_clip_fraction"], figures["approx_kl"]) == (0, 0, pytest.approx(0))
    assert figures["action_tokens"] == 36
    assert figures["loss"] == pytest.approx(0, abs=1e-5), "advantages have mean 0"
    assert figures["value_loss"] > 0
    assert "kl" not in figures
    assert all(math.isfinite(value) for value in figures.values())


def test_C05_nothing_to_learn_from_is_flagged_and_changes_nothing(kit):
    loaded = kit.load()
    before = kit.parameters(loaded)
    learner = head_learner(loaded)
    assert update_actor_critic(learner, [], settings(), None, random.Random(0)) == {"empty_batch": 1.0}
    assert warm_up_critic(learner, [], settings(), random.Random(0)) == {"empty_batch": 1.0}
    assert torch.equal(kit.parameters(loaded), before)


@pytest.mark.parametrize("normalisation", ["token", "sequence", "constant"])
def test_C09_update_does_not_depend_on_the_micro_batches(kit, normalisation):
    figures = []
    for size in (1, 10_000):
        loaded = kit.load()
        trajectories = sampled(kit, loaded)
        trajectories[0] = msgspec.structs.replace(trajectories[0], termination=TerminationReason.STEP_LIMIT)
        learner = head_learner(loaded)
        chosen = settings(micro_batch_tokens=size, normalisation=normalisation, kl_coefficient=0.1)
        figures.append(
            update_actor_critic(learner, episodes_of(trajectories), chosen, learner.snapshot(), random.Random(0))
        )
    assert figures[0] == pytest.approx(figures[1], rel=1e-3, abs=1e-5)


def test_warm_up_trains_the_critic_and_not_the_policy(kit):
    loaded = kit.load()
    learner, before = head_learner(loaded), kit.parameters(loaded)
    episodes = episodes_of(sampled(kit, loaded))
    chosen = settings(updates_per_batch=3, mini_batches=2)
    first, second = (warm_up_critic(learner, episodes, chosen, random.Random(0)) for _ in range(2))
    assert torch.equal(kit.parameters(loaded), before)
    assert learner.policy.updates == 0
    assert learner.critic.optimiser.updates == 12
    assert second["value_loss"] < first["value_loss"]
    assert first["value_mean"] == 0.0
    assert second["value_mean"] != 0.0


def test_values_are_clipped_at_those_recorded_before_the_passes(kit):
    """Recorded anew in every pass nothing would ever be beyond the range."""
    loaded = kit.load()
    learner, episodes = head_learner(loaded), episodes_of(sampled(kit, loaded, reward=lambda task, completion: 1.0))
    chosen = settings(value_clip=1e-3, updates_per_batch=8, learning_rate=0.0)
    figures = update_actor_critic(learner, episodes, chosen, None, random.Random(0))
    assert figures["value_clip_fraction"] > 0.7


def test_order_is_that_of_the_seed_and_siblings_stay_together(kit, monkeypatch):
    loaded = kit.load()
    episodes = episodes_of(sampled(kit, loaded, count=12, tasks=4))
    seen = []

    def update(self, batches, policy_loss, value_loss, rates):
        seen.append({int(place) for batch in batches for place in batch.weights})
        return original(self, batches, policy_loss, value_loss, rates)

    original = HeadCritic.update
    monkeypatch.setattr(HeadCritic, "update", update)
    results = []
    for seed in (1, 1, 2):
        fresh = kit.load()
        chosen = settings(mini_batches=4, updates_per_batch=2)
        update_actor_critic(head_learner(fresh), episodes, chosen, None, random.Random(seed))
        results.append(kit.parameters(fresh))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    assert len(seen) == 3 * 8


def test_mini_batches_hold_whole_tasks(kit, monkeypatch):
    loaded = kit.load()
    episodes = episodes_of(sampled(kit, loaded, count=12, tasks=4))
    task_of = {episode.samples[0].episode_id: episode.task_id for episode in episodes}
    pieces = []
    original = pack

    def packed(samples, *, micro_batch_tokens):
        pieces.append([sample.episode_id for sample in samples])
        return original(samples, micro_batch_tokens=micro_batch_tokens)

    monkeypatch.setattr("deedrl.training.policy_gradient.pack", packed)
    update_actor_critic(head_learner(loaded), episodes, settings(mini_batches=4), None, random.Random(5))
    assert sorted(name for piece in pieces for name in piece) == sorted(task_of)
    assert [len({task_of[name] for name in piece}) for piece in pieces] == [1] * 4


def test_C08_kl_to_a_reference_far_away_is_finite(kit):
    loaded = kit.load()
    learner, episodes = head_learner(loaded), episodes_of(sampled(kit, loaded))
    away = [tensor * -30.0 for tensor in learner.snapshot()]
    figures = update_actor_critic(learner, episodes, settings(kl_coefficient=1.0), away, random.Random(0))
    assert figures["kl"] == pytest.approx(9, abs=0.5), "the largest that a clamped difference of 10 can give"
    assert figures["skipped_update"] == 0
    assert all(math.isfinite(value) for value in figures.values())


def test_C12_at_the_reference_kl_is_zero_and_costs_no_pass(kit, monkeypatch):
    loaded = kit.load()
    learner, episodes = head_learner(loaded), episodes_of(sampled(kit, loaded))
    monkeypatch.setattr(Learner, "logprobs", lambda *_: pytest.fail("a pass over the reference"))
    chosen = settings(kl_coefficient=1.0)
    figures = update_actor_critic(learner, episodes, chosen, learner.snapshot(), random.Random(0), at_reference=True)
    assert figures["kl"] == pytest.approx(0, abs=1e-6)


# ------------------------------------------------------------ learning


def test_ppo_raises_the_mean_reward_of_a_one_step_job(kit):
    """A token with an odd id earns 1: about half of them at first, nearly all after 20 steps."""
    loaded = kit.load()
    learner, rewards = head_learner(loaded), []
    for step in range(20):
        trajectories = sampled(kit, loaded, count=24, max_tokens=1, step=step)
        rewards.append(sum(trajectory.reward for trajectory in trajectories) / 24)
        chosen = settings(learning_rate=3e-3, updates_per_batch=2)
        update_actor_critic(learner, episodes_of(trajectories), chosen, None, random.Random(step))
    assert rewards[0] < 0.75
    assert sum(rewards[-3:]) / 3 > 0.9


def test_ppo_with_an_adapter_for_the_critic_learns_the_same_job(kit):
    loaded = add_adapter(kit.load(trainable=False), rank=4, alpha=8, dropout=0.0, target="all-linear", seed=0)
    rewards = []
    with adapter_critic(Learner(loaded)) as critic:
        learner = ActorCritic(critic)
        for step in range(28):
            trajectories = sampled(kit, loaded, count=24, max_tokens=1, step=step)
            rewards.append(sum(trajectory.reward for trajectory in trajectories) / 24)
            chosen = settings(learning_rate=2e-2, updates_per_batch=2)
            update_actor_critic(learner, episodes_of(trajectories), chosen, None, random.Random(step))
    assert rewards[0] < 0.75
    # Of four seeds the worst came to 0.92.
    assert sum(rewards[-6:]) / 6 > 0.85


@pytest.mark.parametrize("built", ["head", "adapter"])
def test_the_critic_learns_to_tell_prompts_apart(kit, built):
    """One prompt always pays, the other never: the variance of returns lies between prompts alone."""
    loaded = add_adapter(kit.load(trainable=False), rank=4, alpha=8, dropout=0.0, target="all-linear", seed=0)
    policy = Learner(loaded)
    episodes = episodes_of(sampled(kit, loaded, count=8, reward=lambda task, completion: float(task)))
    chosen = settings(updates_per_batch=8, value_clip=None, critic_learning_rate=2e-2)
    explained = []
    with adapter_critic(policy) as own:
        learner = ActorCritic(own if built == "adapter" else HeadCritic(policy, coefficient=1.0))
        for step in range(4):
            figures = warm_up_critic(learner, episodes, chosen, random.Random(step))
            explained.append(figures["explained_variance"])
    assert explained[0] == pytest.approx(0, abs=1e-6)
    assert explained[-1] > 0.9
