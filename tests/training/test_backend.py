"""Log-probabilities and gradients against a plain pass row by row, and what is never put in memory."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from deedrl.policies.local.model import add_adapter
from deedrl.training import backend, packing
from deedrl.training.backend import LogprobModel, frozen_at
from deedrl.training.chosen_logprob import chosen_logprobs
from deedrl.training.losses import policy_loss, sample_weights, sft_loss
from deedrl.training.packing import pack
from deedrl.training.weighting import weighted


def plain_logprobs(plain, sample, temperature=1.0):
    """Log-probabilities of the sample's action tokens by transformers alone, one row, no cache, no sharing."""
    at = [i for i, action in enumerate(sample.action_mask) if action]
    logits = plain(torch.tensor([sample.ids])).logits[0].float() / temperature
    return torch.stack([logits[i - 1].log_softmax(-1)[sample.ids[i]] for i in at])


def relative(found, expected):
    return float((found - expected).norm() / expected.norm())


@pytest.fixture(autouse=True)
def _even_one_token_is_shared(monkeypatch):
    monkeypatch.setattr(packing, "SHORTEST_SHARED", 1)


def by_sample(batch, logprobs):
    return [logprobs[batch.sample_of == row] for row in range(len(batch.weights))]


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_of_rows_that_share_a_prefix_equal_a_plain_pass_row_by_sample(kit, temperature):
    samples, plain = kit.family(), kit.plain()
    batch = kit.one_batch(samples)
    assert batch.prefix_ids.numel() == 9
    found, _ = LogprobModel(kit.load().model, temperature=temperature)(batch)
    for row, sample in zip(by_sample(batch, found), sorted(samples, key=lambda s: len(s.ids)), strict=True):
        assert torch.allclose(row, plain_logprobs(plain, sample, temperature), atol=1e-5)


def test_gradient_through_a_shared_prefix_equals_that_of_plain_rows(kit):
    samples, plain, loaded = kit.family(), kit.plain(), kit.load()
    batch = kit.one_batch(samples)
    found = kit.gradient(loaded.model, LogprobModel(loaded.model)(batch)[0].sum())
    expected = kit.gradient(plain, sum(plain_logprobs(plain, sample).sum() for sample in samples))
    assert relative(found, expected) < 1e-5


def test_rows_without_anything_in_common_give_the_same_as_plain_rows(kit):
    samples = [kit.sample(f"e{i}", kit.ids(i, 3 + i), kit.ids(i + 50, 4)) for i in range(3)]
    plain, loaded = kit.plain(), kit.load()
    batch = kit.one_batch(samples)
    assert batch.prefix_ids.numel() == 0
    found = kit.gradient(loaded.model, LogprobModel(loaded.model)(batch)[0].sum())
    expected = kit.gradient(plain, sum(plain_logprobs(plain, sample).sum() for sample in samples))
    assert relative(found, expected) < 1e-5


def siblings(kit):
    """Two tasks with three siblings each and one sample alone, under one system prompt."""
    head = kit.ids(1, 7)
    prompts = [[*head, *kit.ids(2, 5)], [*head, *kit.ids(3, 8)], [*head, *kit.ids(4, 4)]]
    return [
        kit.sample(f"e{i}", prompts[i // 3], kit.ids(40 + i, 2 + i), kit.ids(50 + i, 3), kit.ids(60 + i, 4))
        for i in range(7)
    ]


@pytest.mark.parametrize("micro_batch_tokens", [1_000_000, 60, 40])
def test_gradient_through_prompts_of_siblings_and_one_prefix_of_all_batches_equals_plain_rows(kit, micro_batch_tokens):
    samples, plain, loaded = siblings(kit), kit.plain(), kit.load()
    batches = pack(samples, micro_batch_tokens=micro_batch_tokens)
    assert any(batch.shared_ids.shape[1] for batch in batches)
    module = LogprobModel(loaded.model)
    prefix = module.shared_prefix(batches[0].prefix_ids)
    for batch in batches:
        module(batch, prefix)[0].sum().backward()
    prefix.backward()
    found = torch.cat([p.grad.flatten() for p in loaded.model.parameters()])
    expected = kit.gradient(plain, sum(plain_logprobs(plain, sample).sum() for sample in samples))
    assert relative(found, expected) < 1e-5


def relatives(kit):
    """Four siblings with one first action (two identical, one a beginning of these), two without it, and one alone.

    Every sample has old log-probabilities, advantages and a weight of its own.
    """
    head = kit.ids(1, 7)
    prompt, action, observation, last = [*head, *kit.ids(2, 5)], kit.ids(3, 6), kit.ids(4, 4), kit.ids(5, 5)
    turns = [
        (prompt, action, observation, last),
        (prompt, action, observation, last),
        (prompt, action, observation, last[:2]),
        (prompt, action, observation, kit.ids(6, 9)),
        (prompt, kit.ids(7, 5), kit.ids(8, 3), kit.ids(9, 4)),
        (prompt, kit.ids(10, 7)),
        ([*head, *kit.ids(11, 4)], kit.ids(12, 5)),
    ]
    samples = []
    for i, parts in enumerate(turns):
        count = sum(map(len, parts))
        noise = torch.randn(2, count, generator=torch.Generator().manual_seed(i))
        fields = {"logprobs": tuple((noise[0] - 7).tolist()), "advantages": tuple((noise[1] + i - 3).tolist())}
        samples.append(kit.sample(f"e{i}", *parts, weight=0.1 + i / 7, **fields))
    return samples


def clipped_loss(logprobs, sampled, advantages, weights):
    return policy_loss(logprobs, sampled, advantages, weights, clip_low=0.9, clip_high=9.0).loss


@pytest.mark.parametrize("micro_batch_tokens", [1_000_000, 60, 30, 1])
def test_policy_gradient_of_siblings_that_share_actions_equals_that_of_plain_rows(kit, micro_batch_tokens):
    samples, plain, loaded = relatives(kit), kit.plain(), kit.load()
    batches = pack(samples, micro_batch_tokens=micro_batch_tokens)
    if micro_batch_tokens == 1_000_000:
        assert sum(len(batch.targets) for batch in batches) < sum(sample.action_tokens for sample in samples)
    module = LogprobModel(loaded.model)
    prefix = module.shared_prefix(batches[0].prefix_ids)
    total = 0.0
    for batch in batches:
        loss = clipped_loss(module(batch, prefix)[0], batch.logprobs, batch.advantages, batch.weights[batch.sample_of])
        loss.backward()
        total += float(loss.detach())
    prefix.backward()
    found = torch.cat([p.grad.flatten() for p in loaded.model.parameters()])

    def plain_loss(sample):
        at = torch.tensor(sample.action_mask)
        fields = torch.tensor(sample.logprobs)[at], torch.tensor(sample.advantages)[at]
        return clipped_loss(plain_logprobs(plain, sample), *fields, torch.tensor(sample.weight))

    expected = sum(plain_loss(sample) for sample in samples)
    assert total == pytest.approx(float(expected.detach()), rel=1e-5)
    assert relative(found, kit.gradient(plain, expected)) < 1e-5


def test_logprobs_of_samples_that_share_actions_equal_a_plain_pass(kit):
    samples, plain = relatives(kit), kit.plain()
    batch = kit.one_batch(samples)
    found = by_sample(batch, LogprobModel(kit.load().model)(batch)[0])
    by_weight = {round(sample.weight, 6): plain_logprobs(plain, sample) for sample in samples}
    for weight, values in zip(batch.weights.tolist(), found, strict=True):
        assert torch.allclose(values, by_weight[round(weight, 6)], atol=1e-5)


def test_the_prefix_of_another_update_is_refused(kit):
    first, second = kit.one_batch(kit.family()), kit.one_batch(kit.family())
    module = LogprobModel(kit.load().model)
    with pytest.raises(ValueError, match="shared prefix"):
        module(second, module.shared_prefix(first.prefix_ids))


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_logprobs_under_a_head_and_their_gradients_equal_autograd(temperature, trained):
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(7, 16, generator=generator, requires_grad=True)
    weight = (torch.randn(50, 16, generator=generator) * 3).requires_grad_(trained)
    targets = torch.tensor([0, 49, 3, 3, 17, 8, 25])
    upstream = torch.randn(7, generator=generator)
    found = chosen_logprobs(hidden, weight, targets, temperature)
    inputs = [hidden, weight] if trained else [hidden]
    gradients = torch.autograd.grad(found, inputs, upstream)
    expected = (hidden @ weight.T / temperature).log_softmax(-1)[torch.arange(7), targets]
    slow = torch.autograd.grad(expected, inputs, upstream)
    assert torch.allclose(found, expected, atol=1e-5)
    assert all(relative(gradient, by_autograd) < 1e-5 for gradient, by_autograd in zip(gradients, slow, strict=True))


def test_an_adapter_on_a_bf16_model_computes_in_bf16_and_keeps_float32_gradients(kit):
    batch = kit.one_batch(siblings(kit))

    def gradient(dtype):
        base = kit.load(dtype=dtype)
        loaded = add_adapter(base, rank=4, alpha=8.0, dropout=0.0, target="all-linear", seed=1)
        for name, parameter in loaded.model.named_parameters():
            if "lora_B" in name:
                parameter.data.normal_(0, 0.05, generator=torch.Generator().manual_seed(len(name)))
        parameters = [p for p in loaded.model.parameters() if p.requires_grad]
        LogprobModel(loaded.model)(batch)[0].sum().backward()
        assert {p.grad.dtype for p in parameters} == {torch.float32}
        return torch.cat([p.grad.flatten() for p in parameters])

    assert relative(gradient("bf16"), gradient("fp32")) < 0.05


def test_B12_gradient_reaches_the_prediction_of_both_response_tokens(kit):
    """Prompt of 3, response of 2; the loss on each response token alone has a gradient of its own."""
    loaded, plain = kit.load(), kit.plain()
    sample = kit.sample("e", [5, 6, 7], [8, 9])
    logprobs, _ = LogprobModel(loaded.model)(kit.one_batch([sample]))
    for index in (0, 1):
        found = kit.gradient(loaded.model, LogprobModel(loaded.model)(kit.one_batch([sample]))[0][index])
        expected = kit.gradient(plain, plain_logprobs(plain, sample)[index])
        assert float(found.norm()) > 0.1
        assert relative(found, expected) < 1e-5
    assert len(logprobs) == 2


@pytest.mark.parametrize("normalisation", ["token", "sequence"])
def test_C09_micro_batches_of_any_size_add_up_to_the_same_gradient(kit, normalisation):
    samples, loaded = kit.family(5), kit.load()
    scaled = weighted(samples, sample_weights(samples, normalisation))
    module = LogprobModel(loaded.model)

    def gradient(micro_batch_tokens):
        batches = pack(scaled, micro_batch_tokens=micro_batch_tokens)
        losses = [sft_loss(module(batch)[0], batch.weights[batch.sample_of]) for batch in batches]
        return len(batches), kit.gradient(loaded.model, sum(losses))

    (one, whole), (some, halves), (many, single) = gradient(10_000), gradient(60), gradient(1)
    assert (one, many) == (1, 5)
    assert 1 < some < 5
    assert torch.allclose(halves, whole, atol=1e-6)
    assert torch.allclose(single, whole, atol=1e-6)


def test_C09_ten_tokens_as_one_batch_or_as_two_and_eight(kit):
    samples = [kit.sample("a", [5], [6, 7]), kit.sample("b", [5], [8] * 8)]
    loaded = kit.load()
    scaled = weighted(samples, sample_weights(samples, "token"))
    module = LogprobModel(loaded.model)
    loss = {
        size: sum(sft_loss(module(b)[0], b.weights[b.sample_of]) for b in pack(scaled, micro_batch_tokens=size))
        for size in (1, 100)
    }
    assert torch.allclose(kit.gradient(loaded.model, loss[1]), kit.gradient(loaded.model, loss[100]), atol=1e-6)
    logprobs = torch.cat([plain_logprobs(kit.plain(), sample) for sample in samples])
    assert float(loss[1].detach()) == pytest.approx(-float(logprobs.mean().detach()), abs=1e-5)


def test_contexts_after_an_action_do_not_reach_back(kit):
    """Changing what follows an action leaves its log-probability alone, right padding included."""
    one = kit.sample("a", [5, 6], [7, 8], [9, 9, 9], [4])
    other = kit.sample("b", [5, 6], [7, 8], [3], [4, 4, 4, 4, 4, 4])
    batch = kit.one_batch([one, other])
    logprobs = by_sample(batch, LogprobModel(kit.load().model)(batch)[0])
    assert torch.allclose(logprobs[0][:2], logprobs[1][:2], atol=1e-6)


def test_entropy_is_that_of_the_tempered_distribution_and_has_no_gradient(kit):
    sample, plain = kit.sample("e", [5, 6, 7], [8, 9]), kit.plain()
    _, entropy = LogprobModel(kit.load().model, temperature=0.7)(kit.one_batch([sample]), with_entropy=True)
    with torch.no_grad():
        logits = plain(torch.tensor([sample.ids])).logits[0, 2:4] / 0.7
    expected = torch.distributions.Categorical(logits=logits).entropy()
    assert torch.allclose(entropy, expected, atol=1e-5)
    assert not entropy.requires_grad


def test_model_with_an_adapter_gives_gradients_to_the_adapter_alone(kit):
    loaded = add_adapter(kit.load(trainable=False), rank=2, alpha=4, dropout=0.0, target="all-linear", seed=0)
    logprobs, _ = LogprobModel(loaded.model)(kit.one_batch(kit.family()))
    logprobs.sum().backward()
    assert {"lora_B" in n for n, p in loaded.model.named_parameters() if p.grad is not None and p.grad.any()} == {True}


# ------------------------------------------------------------ I04


class _LargestLogits(TorchDispatchMode):
    """Remembers the most rows of a float tensor with as many columns as the vocabulary (the head's weight aside)."""

    def __init__(self, head):
        super().__init__()
        self.vocabulary, hidden = head.weight.shape
        self.weight = (hidden, self.vocabulary)
        self.rows = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point() or tensor.ndim < 2:
                continue
            if tensor.shape[-1] == self.vocabulary and tensor.shape != self.weight:
                self.rows = max(self.rows, tensor.numel() // self.vocabulary)
        return result


def test_I04_logits_of_all_tokens_never_exist_at_once(kit, monkeypatch):
    monkeypatch.setattr(backend, "LOGITS_CHUNK", 16)
    loaded = kit.load()
    samples = [kit.sample(f"e{i}", kit.ids(9, 40), kit.ids(i, 25)) for i in range(4)]
    batch = kit.one_batch(samples)
    assert len(batch.targets) == 100
    with _LargestLogits(loaded.model.get_output_embeddings()) as seen:
        LogprobModel(loaded.model)(batch, with_entropy=True)[0].sum().backward()
    assert seen.rows == 16


def test_I04_chunked_logprobs_and_gradient_equal_the_naive_ones(kit, monkeypatch):
    loaded, samples = kit.load(), kit.family()
    batch = kit.one_batch(samples)

    def results(chunk):
        monkeypatch.setattr(backend, "LOGITS_CHUNK", chunk)
        logprobs, _ = LogprobModel(loaded.model)(batch)
        return logprobs, kit.gradient(loaded.model, logprobs.sum())

    chunked, naive = results(7), results(10_000)
    assert torch.allclose(chunked[0], naive[0], atol=1e-5)
    assert relative(chunked[1], naive[1]) < 1e-5


# ------------------------------------------------------------ the reference policy


def test_frozen_at_holds_the_snapshot_inside_and_gives_the_weights_back():
    parameter = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
    with frozen_at([parameter], [torch.zeros(2)]):
        assert parameter.tolist() == [0.0, 0.0]
    assert parameter.tolist() == [1.0, 2.0]


def test_frozen_at_gives_the_weights_back_after_an_error():
    parameter = torch.nn.Parameter(torch.tensor([1.0]))
    with pytest.raises(RuntimeError, match="oops"), frozen_at([parameter], [torch.zeros(1)]):
        raise RuntimeError("oops")
    assert parameter.tolist() == [1.0]
