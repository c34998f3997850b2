"""Critics: values and gradients against plain passes, who is trained when, and exact state."""

from __future__ import annotations

import math
import random

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from deedrl.errors import ModelError
from deedrl.policies.local.model import add_adapter
from deedrl.training import packing
from deedrl.training.backend import LogprobModel
from deedrl.training.critic import ActorCritic, HeadCritic, Rates, adapter_critic, model_critic
from deedrl.training.headed import ValueHead
from deedrl.training.learner import Learner
from deedrl.training.losses import policy_loss, value_loss
from deedrl.training.packing import pack

RATES = Rates(policy=1e-3, critic=1e-2, max_grad_norm=1e9)
COEFFICIENT = 0.3


@pytest.fixture(autouse=True)
def _even_one_token_is_shared(monkeypatch):
    monkeypatch.setattr(packing, "SHORTEST_SHARED", 1)


def objective(batch, logprobs):
    fields = batch.logprobs, batch.advantages, batch.weights[batch.sample_of]
    return policy_loss(logprobs, *fields, clip_low=0.9, clip_high=9.0).loss


def errors(batch, values):
    return value_loss(values, batch.values, batch.returns, batch.weights[batch.sample_of], clip=None).loss


def made(kit, count=4):
    """Samples with a reward signal of some kind at every action token, some of them cut."""
    samples = []
    for i, sample in enumerate(kit.family(count, weight=0.1)):
        noise = random.Random(i)
        columns = {name: tuple(noise.uniform(-1, 1) for _ in sample.ids) for name in ("advantages", "returns")}
        logprobs = tuple(noise.uniform(-8, -4) for _ in sample.ids)
        samples.append(msgspec.structs.replace(sample, cut=i % 2 == 0, logprobs=logprobs, **columns))
    return samples


def adapted(kit, dtype="fp32"):
    loaded = kit.load(trainable=False, dtype=dtype)
    return add_adapter(loaded, rank=4, alpha=8, dropout=0.0, target="all-linear", seed=0)


def with_random_head(critic):
    with torch.no_grad():
        generator = torch.Generator().manual_seed(3)
        critic.head.linear.weight.copy_(torch.randn(critic.head.linear.weight.shape, generator=generator) / 5)
        critic.head.linear.bias.fill_(0.25)
    return critic


def head_critic(loaded):
    return with_random_head(HeadCritic(Learner(loaded), coefficient=COEFFICIENT))


def plain_hidden(plain, ids):
    return plain.model(torch.tensor([ids])).last_hidden_state[0]


def plain_values(plain, head, sample):
    """Values at the states its action tokens were sampled in, and after all its tokens, by a plain pass."""
    values = head(plain_hidden(plain, sample.ids))
    at = [i - 1 for i, action in enumerate(sample.action_mask) if action]
    return values[at], values[len(sample.ids) - 1]


# ------------------------------------------------------------ values


def test_a_fresh_head_says_nothing_of_any_state(kit):
    head = ValueHead(kit.load().model)
    assert head(torch.randn(3, 64)).tolist() == [0, 0, 0]
    assert head(torch.randn(2, 64, dtype=torch.bfloat16)).dtype == torch.float32


@pytest.mark.parametrize("micro_batch_tokens", [1, 60, 10_000])
def test_values_are_those_of_a_plain_pass_before_each_action_and_after_the_end_of_cut_samples(kit, micro_batch_tokens):
    critic, plain, samples = head_critic(kit.load()), kit.plain(), made(kit)
    batches = pack(samples, micro_batch_tokens=micro_batch_tokens)
    seen = 0
    for batch, found in zip(batches, critic.values(batches), strict=True):
        for row, place in enumerate(batch.given_as.tolist()):
            actions, end = plain_values(plain, critic.head, samples[place])
            assert torch.allclose(found.actions[batch.sample_of == row], actions, atol=1e-5)
            ends = found.ends[batch.end_of == row].tolist()
            assert ends == ([pytest.approx(end.item(), abs=1e-5)] if samples[place].cut else [])
            seen += 1
    assert seen == 4
    assert not any(found.actions.requires_grad for found in critic.values(batches))


def test_values_are_float32_on_a_bfloat16_trunk(kit):
    critic = head_critic(adapted(kit, "bf16"))
    batches = pack(made(kit), micro_batch_tokens=10_000)
    [found] = critic.values(batches)
    assert found.actions.dtype == torch.float32
    assert not critic.update(batches, objective, errors, RATES).skipped


# ------------------------------------------------------------ gradients


def plain_losses(plain, head, samples):
    total = value = torch.zeros(())
    for sample in samples:
        at = torch.tensor(sample.action_mask)
        ids = torch.tensor(sample.ids)
        hidden = plain_hidden(plain, sample.ids)[:-1][at[1:]]
        logprobs = plain.lm_head(hidden).log_softmax(-1).gather(1, ids[at][:, None])[:, 0]
        columns = [torch.tensor(column)[at] for column in (sample.logprobs, sample.advantages, sample.returns)]
        weights = torch.full_like(logprobs, sample.weight)
        total = total + policy_loss(logprobs, columns[0], columns[1], weights, clip_low=0.9, clip_high=9.0).loss
        value = value + 0.5 * (weights * (head(hidden) - columns[2]).square()).sum()
    return total, value


@pytest.mark.parametrize("micro_batch_tokens", [1, 60, 10_000])
def test_one_pass_for_both_losses_gives_the_gradient_of_two_plain_ones(kit, monkeypatch, micro_batch_tokens):
    critic, plain, samples = head_critic(kit.load()), kit.plain(), made(kit)
    found = {}
    monkeypatch.setattr(
        "deedrl.training.critic.step_together",
        lambda rates, limit: (
            found.update({n: p.grad.clone() for o, _ in rates for n, p in o.parameters.items()}),
            ([0.0, 0.0], True),
        )[1],
    )
    critic.update(pack(samples, micro_batch_tokens=micro_batch_tokens), objective, errors, RATES)
    policy, value = plain_losses(plain, critic.head, samples)
    (policy + COEFFICIENT * value).backward()
    for name, parameter in plain.named_parameters():
        assert torch.allclose(found[name], parameter.grad, atol=1e-5, rtol=1e-4), name


def test_the_critics_gradient_is_that_of_action_tokens_alone(kit):
    """By hand for the head: the sum of weight · (value - return) · hidden state over action slots."""
    critic, plain = head_critic(kit.load()), kit.plain()
    samples = made(kit, 2)
    masked = kit.sample("masked", [5, 6, 7, 8], returns=(9.0,) * 4, values=(9.0,) * 4)
    by_hand = torch.zeros(64)
    for sample in samples:
        hidden = plain_hidden(plain, sample.ids).detach()
        for i, action in enumerate(sample.action_mask):
            if action:
                error = critic.head(hidden[i - 1]).detach() - sample.returns[i]
                by_hand += sample.weight * error * hidden[i - 1]
    stats = critic.update_alone(pack([*samples, masked], micro_batch_tokens=10_000), errors, RATES)
    bias = sum(
        s.weight * (float(v) - r)
        for s in samples
        for v, r in zip(
            plain_values(plain, with_random_head(HeadCritic(critic.policy, coefficient=1.0)).head, s)[0],
            [r for r, a in zip(s.returns, s.action_mask, strict=True) if a],
            strict=True,
        )
    )
    assert stats.critic_norm == pytest.approx(math.hypot(float(by_hand.norm()), bias), rel=1e-4)


# ------------------------------------------------------------ who is trained when


def state_of(learner):
    return {name: tensor.clone() for name, tensor in learner.tensors().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def own(state, critic):
    return {name: tensor for name, tensor in state.items() if name.startswith("critic.") == critic}


def test_the_head_learns_alone_and_leaves_the_policy_as_it_is(kit):
    critic = HeadCritic(Learner(kit.load()), coefficient=1.0)
    learner, batches = ActorCritic(critic), pack(made(kit), micro_batch_tokens=60)
    before, losses = state_of(learner), []
    for _ in range(40):
        critic.update_alone(batches, errors, RATES)
        losses.append(sum(float(errors(b, v.actions)) for b, v in zip(batches, critic.values(batches), strict=True)))
    assert same(own(before, False), own(state_of(learner), False))
    assert losses[-1] < 0.5 * losses[0]


def test_an_adapter_of_its_own_starts_as_the_policys_and_goes_its_own_way(kit):
    policy = Learner(adapted(kit))
    with torch.no_grad():
        for parameter in policy.parameters.values():
            parameter.add_(0.05)
    batches = pack(made(kit), micro_batch_tokens=60)
    before = policy.logprobs(batches)
    model = policy.loaded.model
    with adapter_critic(policy) as critic:
        learner = ActorCritic(critic)
        start = state_of(learner)
        for name, value in own(start, False).items():
            if name.startswith("parameter."):
                assert torch.equal(value, start[f"critic.{name.replace('.default.', '.critic.')}"])
        for _ in range(3):
            critic.update_alone(batches, errors, RATES)
        assert model.active_adapters == ["default"]
        assert all(parameter.requires_grad for parameter in policy.parameters.values())
        assert same(own(start, False), own(state_of(learner), False))
        assert not same(own(start, True), own(state_of(learner), True))
        for one, other in zip(before, policy.logprobs(batches), strict=True):
            assert torch.equal(one, other), "sampling must not see the critic"
        values = critic.values(batches)
        policy.update(batches, objective, learning_rate=1e-2, max_grad_norm=1.0)
        assert not same(own(start, False), own(state_of(learner), False))
        for one, other in zip(values, critic.values(batches), strict=True):
            assert torch.equal(one.actions, other.actions)
    assert list(model.peft_config) == ["default"]
    assert not any("critic" in name for name, _ in model.named_parameters())
    with adapter_critic(policy):
        pass  # a second stage may have one again


def test_an_adapter_critic_does_not_read_the_policys_adapter(kit):
    policy = Learner(adapted(kit))
    batches = pack(made(kit), micro_batch_tokens=10_000)
    with adapter_critic(policy) as critic:
        with_random_head(critic)
        [before] = critic.values(batches)
        with torch.no_grad():
            for parameter in policy.parameters.values():
                parameter.add_(0.3)
        [after] = critic.values(batches)
        assert torch.equal(before.actions, after.actions)


def test_what_is_saved_beside_a_critic_is_the_policy_alone(kit, tmp_path):
    policy = Learner(adapted(kit))
    with adapter_critic(policy):
        policy.loaded.save(tmp_path / "beside")
    policy.loaded.save(tmp_path / "alone")
    for folder in ("beside", "alone"):
        assert not (tmp_path / folder / "critic").exists()
    one, other = (load_file(tmp_path / f / "adapter_model.safetensors") for f in ("beside", "alone"))
    assert same(one, other)


def test_an_adapter_critic_without_an_adapter_is_refused(kit):
    with pytest.raises(ModelError, match="critic: value_head"), adapter_critic(Learner(kit.load())):
        pass


def test_a_second_model_can_be_the_critic(kit):
    policy = Learner(kit.load())
    critic = with_random_head(model_critic(policy, kit.load()))
    batches, before = pack(made(kit), micro_batch_tokens=10_000), kit.parameters(policy.loaded)
    critic.update_alone(batches, errors, RATES)
    assert torch.equal(kit.parameters(policy.loaded), before)
    critic.update(batches, objective, errors, RATES)
    assert not torch.equal(kit.parameters(policy.loaded), before)


@pytest.mark.parametrize("bad", ["policy", "value"])
def test_if_one_gradient_is_not_finite_neither_policy_nor_head_moves(kit, bad):
    critic = head_critic(kit.load())
    learner, batches = ActorCritic(critic), pack(made(kit), micro_batch_tokens=60)
    critic.update(batches, objective, errors, RATES)
    before = state_of(learner)
    stats = critic.update(
        batches,
        lambda batch, x: objective(batch, x) * (math.nan if bad == "policy" else 1.0),
        lambda batch, x: errors(batch, x) * (math.inf if bad == "value" else 1.0),
        RATES,
    )
    assert stats.skipped
    assert same(before, state_of(learner))
    assert not critic.update(batches, objective, errors, RATES).skipped, "the bad gradient must be gone"


# ------------------------------------------------------------ C17


def run(kit, critic, steps, start=0):
    samples = made(kit, 6)
    for step in range(start, steps):
        batches = pack([samples[step % 6], samples[(step + 1) % 6]], micro_batch_tokens=60)
        critic.update(batches, objective, errors, RATES)


def test_C17_five_updates_saved_loaded_and_five_more_equal_ten_with_a_head(kit, tmp_path):
    straight, first, second = (HeadCritic(Learner(kit.load()), coefficient=0.5) for _ in range(3))
    run(kit, straight, 10)
    run(kit, first, 5)
    save_file(ActorCritic(first).tensors(), tmp_path / "state.safetensors")
    ActorCritic(second).load_tensors(load_file(tmp_path / "state.safetensors"))
    run(kit, second, 10, start=5)
    assert same(ActorCritic(straight).tensors(), ActorCritic(second).tensors())


def test_C17_five_updates_saved_loaded_and_five_more_equal_ten_with_an_adapter(kit, tmp_path):
    learners = [Learner(adapted(kit)) for _ in range(3)]
    with adapter_critic(learners[0]) as straight, adapter_critic(learners[1]) as first:
        run(kit, straight, 10)
        run(kit, first, 5)
        save_file(ActorCritic(first).tensors(), tmp_path / "state.safetensors")
        with adapter_critic(learners[2]) as second:
            ActorCritic(second).load_tensors(load_file(tmp_path / "state.safetensors"))
            run(kit, second, 10, start=5)
            assert same(ActorCritic(straight).tensors(), ActorCritic(second).tensors())


def test_the_pass_of_values_forms_no_logits(kit, monkeypatch):
    monkeypatch.setattr(LogprobModel, "logprobs", lambda *_: pytest.fail("logits where only values were asked for"))
    head_critic(kit.load()).values(pack(made(kit), micro_batch_tokens=60))
