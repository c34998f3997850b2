"""Updates of the policy, what they report, and a model that really learns."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
import torch

from deedrl.policies.local.model import add_adapter, load_adapter
from deedrl.policies.local.policy import LocalPolicy
from deedrl.policies.policy import CompletionRequest
from deedrl.training.advantages import grpo
from deedrl.training.backend import LogprobModel
from deedrl.training.credit import Comparison
from deedrl.training.kl_reward import turn_divergences
from deedrl.training.learner import Learner
from deedrl.training.losses import Silent
from deedrl.training.objectives import k1
from deedrl.training.policy_gradient import PolicyUpdate, mini_batches, update_policy
from deedrl.training.samples import samples_from
from deedrl.training.selection import select
from deedrl.training.sft import batch_order, sft_update
from deedrl.types import Action, Message, RewardBreakdown, SamplingParams, Step, Trajectory

SETTINGS = PolicyUpdate(
    learning_rate=1e-3,
    max_grad_norm=1.0,
    micro_batch_tokens=10_000,
    clip_low=0.2,
    clip_high=0.28,
    kl_coefficient=0.0,
    normalisation="token",
    normalisation_tokens=512,
)


def settings(**changes):
    return PolicyUpdate(**{**SETTINGS.__dict__, **changes})


def sampled(kit, loaded, count=4, max_tokens=6, step=0):
    """Episodes of one turn, really sampled; scored 1 if the first token is odd."""

    async def play():
        policy = LocalPolicy(loaded.model, loaded.renderer)
        messages = (Message(role="system", content="Choose."), Message(role="user", content="Say A or B."))
        requests = [
            CompletionRequest(
                episode_id=f"{step}-{i}",
                messages=messages,
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
            task_id="t",
            steps=(Step(index=0, observation="", completion=completion, action=Action()),),
            breakdown=RewardBreakdown(total=float(completion.token_ids[0] % 2)),
        )
        for request, completion in zip(requests, completions, strict=True)
    ]


def with_advantage(sample, value):
    return msgspec.structs.replace(sample, advantages=tuple(value * action for action in sample.action_mask))


def on_policy(kit, loaded, advantage=1.0, **options):
    return [with_advantage(s, advantage) for t in sampled(kit, loaded, **options) for s in samples_from(t)]


# ------------------------------------------------------------ figures


def test_B14_on_policy_nothing_is_clipped_and_the_gap_is_rounding(kit):
    loaded = kit.load()
    figures = update_policy(Learner(loaded), on_policy(kit, loaded), SETTINGS, None)
    assert (figures["clip_fraction"], figures["clamped_fraction"]) == (0.0, 0.0)
    assert figures["logprob_gap"] < 1e-5
    assert figures["action_tokens"] == 24
    assert "kl" not in figures


def test_B17_gap_between_sampler_and_trainer_stays_flat_at_learning_rate_zero(kit):
    loaded = kit.load()
    learner, samples = Learner(loaded), on_policy(kit, loaded)
    gaps = [update_policy(learner, samples, settings(learning_rate=0.0), None)["logprob_gap"] for _ in range(20)]
    assert max(gaps) < 1e-5
    assert max(gaps) - min(gaps) < 1e-7


def test_B17_gap_grows_when_the_weights_move(kit):
    loaded = kit.load()
    learner, samples = Learner(loaded), on_policy(kit, loaded)
    gaps = [update_policy(learner, samples, SETTINGS, None)["logprob_gap"] for _ in range(3)]
    assert gaps[0] < 1e-5 < gaps[1] < gaps[2]


def test_B17_gap_of_several_passes_is_that_of_the_first(kit):
    loaded = kit.load()
    figures = update_policy(Learner(loaded), on_policy(kit, loaded), settings(updates_per_batch=4), None)
    assert figures["logprob_gap"] < 1e-5


def test_mini_batches_keep_episodes_whole_and_the_order(kit):
    samples = [kit.sample(episode, [5], [6, 7]) for episode in "aabcddde"] + [kit.sample("masked", [5, 6, 7])]
    cut = [[sample.episode_id for sample in piece] for piece in mini_batches(samples, 3)]
    assert cut == [["a", "a", "b"], ["c"], ["d", "d", "d", "e"]]
    assert [len(piece) for piece in mini_batches(samples, 1)] == [8]
    assert [len(piece) for piece in mini_batches(samples, 99)] == [2, 1, 1, 3, 1]


def test_each_mini_batch_is_an_update_with_a_normalisation_of_its_own(kit):
    whole, apart = Learner(kit.load()), Learner(kit.load())
    samples = on_policy(kit, whole.loaded, advantage=1.0)
    chosen = settings(mini_batches=3, updates_per_batch=2, kl_coefficient=0.1)
    figures = update_policy(whole, samples, chosen, whole.snapshot())
    reference, alone = apart.snapshot(), []
    for _ in range(2):
        for piece in mini_batches(samples, 3):
            alone.append(update_policy(apart, piece, settings(kl_coefficient=0.1), reference))
    assert whole.updates == apart.updates == 6
    assert torch.equal(kit.parameters(whole.loaded), kit.parameters(apart.loaded))
    assert figures["loss"] == pytest.approx(sum(one["loss"] for one in alone) / 6, abs=1e-6)
    assert figures["logprob_gap"] == pytest.approx(alone[0]["logprob_gap"], abs=1e-7)
    assert figures["action_tokens"] == sum(one["action_tokens"] for one in alone) / 2
    assert figures["kl"] > 0


@pytest.mark.parametrize("normalisation", ["token", "sequence", "constant"])
def test_C01_gradient_is_that_of_an_update_that_computes_silent_episodes_too(kit, normalisation):
    rows = [with_advantage(s, a) for s, a in zip(kit.family(4), (1.0, -1.0, 0.0, 0.0), strict=True)]
    silent = Silent(episodes=2, action_tokens=sum(row.action_tokens for row in rows[2:]))
    chosen = settings(normalisation=normalisation)
    whole = update_policy(Learner(kit.load()), rows, chosen, None)
    short = update_policy(Learner(kit.load()), rows[:2], chosen, None, silent)
    assert short["grad_norm"] == pytest.approx(whole["grad_norm"], rel=1e-4)
    assert short["loss"] == pytest.approx(whole["loss"], abs=1e-6)


def test_update_raises_what_was_good_and_lowers_what_was_bad(kit):
    loaded = kit.load()
    learner = Learner(loaded)
    good, bad = on_policy(kit, loaded)[:2]
    samples = [with_advantage(good, 1.0), with_advantage(bad, -1.0)]
    batches = [kit.one_batch([sample]) for sample in samples]
    module = LogprobModel(loaded.model)
    before = [float(module(batch)[0].sum().detach()) for batch in batches]
    update_policy(learner, samples, SETTINGS, None)
    after = [float(module(batch)[0].sum().detach()) for batch in batches]
    assert after[0] > before[0]
    assert after[1] < before[1]


@pytest.mark.parametrize("normalisation", ["token", "sequence", "constant"])
def test_C09_update_does_not_depend_on_the_micro_batches(kit, normalisation):
    figures = []
    for size in (1, 10_000):
        loaded = kit.load()
        samples = [with_advantage(s, a) for s, a in zip(kit.family(4), (1.0, -1.0, 0.5, -0.5), strict=True)]
        chosen = settings(micro_batch_tokens=size, normalisation=normalisation, kl_coefficient=0.1)
        learner = Learner(loaded)
        figures.append(update_policy(learner, samples, chosen, learner.snapshot()))
    assert figures[0] == pytest.approx(figures[1], rel=1e-4, abs=1e-6)


def test_B11_masked_row_changes_neither_loss_nor_gradient(kit):
    """Two rows of ten tokens, one cut and masked: the result is that of the finished row alone."""
    finished = with_advantage(kit.sample("a", kit.ids(1, 4), kit.ids(2, 10)), 1.0)
    masked = kit.sample("b", kit.ids(1, 4) + kit.ids(3, 10), advantages=(1.0,) * 14)
    figures = [update_policy(Learner(kit.load()), rows, SETTINGS, None) for rows in ([finished], [finished, masked])]
    assert figures[0]["loss"] == pytest.approx(figures[1]["loss"], abs=1e-6)
    assert figures[0]["grad_norm"] == pytest.approx(figures[1]["grad_norm"], rel=1e-5)
    assert figures[1]["action_tokens"] == 10


@pytest.mark.parametrize("masked", [0, 2])
def test_C05_update_without_action_tokens_is_flagged_and_changes_nothing(kit, masked):
    loaded = kit.load()
    learner = Learner(loaded)
    before = kit.parameters(loaded)
    samples = [kit.sample(f"e{i}", [5, 6, 7]) for i in range(masked)]
    figures = update_policy(learner, samples, settings(kl_coefficient=0.1), learner.snapshot())
    assert figures["empty_batch"] == 1.0
    assert torch.equal(kit.parameters(loaded), before)
    assert learner.updates == 0


# ------------------------------------------------------------ the reference


def test_C12_kl_to_the_policy_after_sft_is_zero_at_step_zero(kit, tmp_path):
    """Base, then an SFT adapter, saved and loaded: the reference is the SFT policy and not the base."""
    tuned = add_adapter(kit.load(trainable=False), rank=4, alpha=8, dropout=0.0, target="all-linear", seed=0)
    learner = Learner(tuned)
    for _ in range(5):
        sft_update(learner, kit.family(), learning_rate=1e-2, max_grad_norm=1.0, micro_batch_tokens=9999)
    tuned.model.save_pretrained(tmp_path)
    loaded = load_adapter(kit.load(trainable=False), tmp_path)
    learner = Learner(loaded)
    reference = learner.snapshot()
    samples = on_policy(kit, loaded)
    steps = [update_policy(learner, samples, settings(kl_coefficient=0.1), reference) for _ in range(2)]
    assert steps[0]["kl"] == pytest.approx(0.0, abs=1e-6)
    assert steps[1]["kl"] > 1e-5
    base = [torch.zeros_like(tensor) for tensor in reference]
    assert update_policy(learner, samples, settings(kl_coefficient=0.1), base)["kl"] > 1e-2


def test_C12_at_the_reference_the_samples_own_logprobs_stand_for_a_pass_over_it(kit):
    learners = [Learner(kit.load()) for _ in range(2)]
    start = kit.parameters(learners[0].loaded).clone()
    samples = on_policy(kit, learners[0].loaded, advantage=1.0)
    chosen = settings(kl_coefficient=0.1, updates_per_batch=3)
    passed, saved = (
        update_policy(learner, samples, chosen, learner.snapshot(), at_reference=known)
        for learner, known in zip(learners, (False, True), strict=True)
    )
    assert saved == pytest.approx(passed, rel=1e-4, abs=1e-7)
    assert saved["kl"] > 1e-5
    one, other = (kit.parameters(learner.loaded) for learner in learners)
    assert float((one - other).norm()) < 0.01 * float(
        (one - start).norm()
    )  # AdamW enlarges rounding of small gradients
    away = [tensor + 0.1 for tensor in learners[0].snapshot()]
    assert update_policy(learners[0], samples, chosen, away)["kl"] > 2 * saved["kl"]


def test_C12_measuring_against_the_reference_leaves_the_policy_as_it_is(kit):
    loaded = kit.load()
    learner = Learner(loaded)
    samples = on_policy(kit, loaded)
    away = [tensor + 0.1 for tensor in learner.snapshot()]
    before = kit.parameters(loaded)
    update_policy(learner, samples, settings(learning_rate=0.0, kl_coefficient=0.1), away)
    assert torch.equal(kit.parameters(loaded), before)


def test_C14_without_a_reward_signal_kl_pulls_towards_the_reference(kit):
    loaded = kit.load()
    learner = Learner(loaded)
    reference = learner.snapshot()
    samples = on_policy(kit, loaded, advantage=0.0)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(0)
        for parameter in learner.parameters.values():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    kl = [update_policy(learner, samples, settings(kl_coefficient=1.0), reference)["kl"] for _ in range(15)]
    assert kl[-1] < 0.7 * kl[0]


def test_C14_without_signal_and_without_kl_there_is_no_gradient(kit):
    loaded = kit.load()
    figures = update_policy(Learner(loaded), on_policy(kit, loaded, advantage=0.0), SETTINGS, None)
    assert (figures["loss"], figures["grad_norm"]) == (0.0, 0.0)


# ------------------------------------------------------------ another sampler


def logprobs_now(kit, learner, samples):
    """Of each sample's action tokens, one sample at a time."""
    return [learner.logprobs([kit.one_batch([sample])])[0] for sample in samples]


@pytest.mark.parametrize("pieces", [1, 2])
def test_B17_correction_weighs_by_the_trainers_own_logprobs_before_the_first_update(kit, pieces):
    """The sampler said half a nat less than the trainer does, and of one token three nats more."""
    loaded = kit.load()
    learner, samples = Learner(loaded), []
    for sample in on_policy(kit, loaded):
        shift = [-0.5 if action else 0.0 for action in sample.action_mask]
        shift[sample.action_mask.index(True)] = 3.0
        samples.append(
            msgspec.structs.replace(sample, logprobs=tuple(a + b for a, b in zip(sample.logprobs, shift, strict=True)))
        )
    chosen = settings(mini_batches=pieces, updates_per_batch=2, sampler_cap=1.5, sampler_band=(0.1, 5.0))
    figures = update_policy(learner, samples, chosen, None)
    # Five of six tokens exp(0.5) = 1.65, capped; the sixth exp(-3) = 0.05, outside the band.
    assert figures["sampler_weight"] == pytest.approx(5 / 6 * 1.5, abs=1e-4)
    assert figures["sampler_masked_fraction"] == pytest.approx(1 / 6)
    assert figures["logprob_gap"] == pytest.approx((5 * 0.5 + 3) / 6, abs=1e-3), "still that to the sampler"


def test_correction_of_a_sampler_that_is_the_trainer_changes_nothing(kit):
    learners = [Learner(kit.load()) for _ in range(2)]
    samples = on_policy(kit, learners[0].loaded)
    figures = [
        update_policy(learner, samples, settings(mini_batches=2, updates_per_batch=2, sampler_cap=cap), None)
        for learner, cap in zip(learners, (None, 2.0), strict=True)
    ]
    assert figures[1]["grad_norm"] == pytest.approx(figures[0]["grad_norm"], rel=1e-3)
    assert figures[1]["sampler_weight"] == pytest.approx(1.0, abs=1e-4)
    assert "sampler_weight" not in figures[0]


def test_kl_by_turn_is_that_of_its_tokens_however_episodes_are_split_and_packed(kit):
    """Against one sample at a time: episodes of two turns, one of them split, one turn of a kind without tokens."""
    learner = Learner(kit.load())
    turns = [(kit.ids(1, 5), kit.ids(2, 3)), (kit.ids(3, 2), kit.ids(4, 2))]
    episodes = [
        kit.trajectory("whole", 1.0, turns),
        kit.trajectory("split", 1.0, turns, breaks=(1,)),
        kit.trajectory("short", 0.0, turns[:1]),
        kit.trajectory("none", 0.0, [((), ())]),
    ]
    away = [tensor + 0.1 for tensor in learner.snapshot()]
    before = kit.parameters(learner.loaded)
    options = {"max_tokens": 99, "micro_batch_tokens": 12}
    found = turn_divergences(learner, episodes, away, k1, **options)
    assert torch.equal(kit.parameters(learner.loaded), before)
    learner.restore(away)
    for episode in episodes:
        tokens = torch.cat([torch.zeros(0), *logprobs_now(kit, learner, samples_from(episode))])
        each = iter((-1.0 - tokens).tolist())
        expected = [sum(next(each) for _ in step.completion.token_ids) for step in episode.steps]
        assert found[episode.episode_id] == pytest.approx(expected, abs=1e-5)
    assert found["none"] == [0.0]


# ------------------------------------------------------------ learning


def test_sft_learns_a_handful_of_samples_by_heart(kit):
    loaded = kit.load()
    learner = Learner(loaded)
    samples = kit.family(5)
    losses = []
    for indices in batch_order(len(samples), 5, 60, seed=0):
        batch = [samples[index] for index in indices]
        stats = sft_update(learner, batch, learning_rate=1e-2, max_grad_norm=1.0, micro_batch_tokens=9999)
        losses.append(stats.loss)
    assert losses[0] > 4
    assert losses[-1] < 0.1


def test_grpo_raises_the_mean_reward_of_a_one_step_job(kit):
    """A token with an odd id earns 1: about half of them at first, nearly all after 20 updates."""
    loaded = kit.load()
    learner = Learner(loaded)
    rewards = []
    for step in range(20):
        episodes = sampled(kit, loaded, count=24, max_tokens=1, step=step)
        rewards.append(sum(episode.reward for episode in episodes) / len(episodes))
        selection = select([kit.group(episodes)], Comparison(grpo), max_tokens=999)
        update_policy(learner, selection.samples, settings(learning_rate=3e-3), None)
    assert rewards[0] < 0.75
    assert sum(rewards[-3:]) / 3 > 0.9


def test_batch_order_passes_over_all_samples_before_any_comes_again():
    order = list(batch_order(5, 2, 5, seed=1))
    flat = [index for batch in order for index in batch]
    assert [len(batch) for batch in order] == [2] * 5
    assert sorted(flat[:5]) == sorted(flat[5:]) == [0, 1, 2, 3, 4]
    assert list(batch_order(5, 2, 5, seed=1)) == order
    assert list(batch_order(5, 2, 5, seed=2)) != order


def test_batch_larger_than_the_data_takes_samples_again():
    assert sorted(next(batch_order(2, 4, 1, seed=0))) == [0, 0, 1, 1]
