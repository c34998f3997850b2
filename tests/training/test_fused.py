"""Fused layers of an update give the values and gradients of the model's own; where they cannot, those are used."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from deedrl.policies.local.merged import decoder_of
from deedrl.policies.local.model import add_adapter
from deedrl.training import packing
from deedrl.training.adapted import AdaptedProduct
from deedrl.training.backend import LogprobModel, frozen_at
from deedrl.training.headed import put_adapter_beside
from deedrl.training.learner import Learner
from deedrl.training.losses import sft_loss
from deedrl.training.optimiser import accumulate
from deedrl.training.packing import pack

pytestmark = pytest.mark.usefixtures("compiler")
FAMILIES = ["Llama", "Mistral", "Qwen2", "Qwen3"]


@pytest.fixture(autouse=True)
def _even_one_token_is_shared(monkeypatch):
    monkeypatch.setattr(packing, "SHORTEST_SHARED", 1)


def adapted(kit, family="Llama", dtype="fp32", *, dropout=0.0, **options):
    """A tiny model whose biases, norms and adapter change something."""
    loaded = add_adapter(
        kit.load(family, trainable=False, dtype=dtype, **options),
        rank=4,
        alpha=8.0,
        dropout=dropout,
        target="all-linear",
        seed=1,
    )
    shake(loaded)
    return loaded


def shake(loaded, seed=5):
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in loaded.model.named_parameters():
        if parameter.ndim == 1 or "lora_B" in name:
            parameter.data.add_(0.1 * torch.randn(parameter.shape, generator=generator).to(parameter.dtype))


def layers_of(model: LogprobModel):
    return {type(layer).__name__ for layer in model._decoder._decoder().layers}


def unfused(loaded):
    model = LogprobModel(loaded.model)
    model._decoder._tried = True
    return model


def results(model: LogprobModel, kit, micro_batch_tokens=60):
    """Log-probabilities and the adapter's gradient, of micro-batches that share beginnings."""
    batches = pack(kit.family(), micro_batch_tokens=micro_batch_tokens)
    found = []

    def loss(_, logprobs):
        found.append(logprobs.detach())
        return sft_loss(logprobs, torch.ones_like(logprobs))

    trained = [parameter for parameter in model.model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.grad = None
    accumulate(model, batches, lambda *of: (model(*of)[0],), loss, lambda value: value.backward())
    return torch.cat(found), torch.cat([parameter.grad.flatten() for parameter in trained])


def relative(found, expected):
    return float((found - expected).norm() / expected.norm())


def check_equal(kit, loaded, tolerance=1e-5):
    fused = LogprobModel(loaded.model)
    with warnings.catch_warnings(action="error"):
        found = results(fused, kit)
    assert layers_of(fused) == {"FusedTrainingLayer"}
    for one, other in zip(found, results(unfused(loaded), kit), strict=True):
        assert relative(one, other) < tolerance


@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_and_gradients_of_fused_layers_are_those_of_the_models_own(kit, family):
    check_equal(kit, adapted(kit, family))


@pytest.mark.parametrize("heads", [(4, 4), (4, 1), (6, 2)], ids=["groups_1", "groups_4", "groups_3"])
def test_any_number_of_query_heads_to_a_key(kit, heads):
    check_equal(kit, adapted(kit, hidden=16 * heads[0], heads=heads[0], kv_heads=heads[1]))


@pytest.mark.parametrize("family", FAMILIES)
def test_in_bf16_the_gradient_is_as_close_to_that_in_float32_as_the_models_own(kit, family):
    _, expected = results(unfused(adapted(kit, family)), kit)
    loaded = adapted(kit, family, "bf16")
    fused = LogprobModel(loaded.model)
    _, found = results(fused, kit)
    assert layers_of(fused) == {"FusedTrainingLayer"}
    assert found.dtype == torch.float32
    _, plain = results(unfused(loaded), kit)
    assert relative(found, expected) < 1.3 * relative(plain, expected)


@pytest.mark.parametrize("target", [["q_proj", "v_proj"], ["k_proj", "up_proj", "down_proj"]])
def test_adapters_may_be_on_some_layers_only(kit, target):
    loaded = add_adapter(kit.load(trainable=False), rank=2, alpha=8.0, dropout=0.0, target=target, seed=1)
    shake(loaded)
    check_equal(kit, loaded)


def test_without_a_gradient_nothing_is_kept(kit):
    fused = LogprobModel(adapted(kit).model)
    with torch.no_grad():
        logprobs, _ = fused(kit.one_batch(kit.family()))
    assert not logprobs.requires_grad


# ------------------------------------------------------------ weights that change


def test_a_step_of_the_optimiser_and_a_snapshot_count_at_once(kit):
    loaded = adapted(kit)
    learner, batch = Learner(loaded), kit.one_batch(kit.family())

    def logprobs(model=learner.module):
        return model(batch)[0].detach()

    before, snapshot = logprobs(), learner.snapshot()
    learner.update([batch], lambda batch, logprobs: -logprobs.sum(), learning_rate=0.01, max_grad_norm=1e9)
    after = logprobs()
    assert relative(after, before) > 1e-3
    assert torch.allclose(after, logprobs(unfused(loaded)), atol=1e-5)
    with frozen_at(list(learner.parameters.values()), snapshot):
        assert torch.equal(logprobs(), before)
    assert torch.equal(logprobs(), after)
    assert layers_of(learner.module) == {"FusedTrainingLayer"}


def test_weights_are_merged_once_for_all_micro_batches_and_held_for_no_longer(kit, monkeypatch):
    model, merges, merge = LogprobModel(adapted(kit).model), [], AdaptedProduct._merge
    monkeypatch.setattr(AdaptedProduct, "_merge", lambda self: merges.append(self) or merge(self))
    results(model, kit, micro_batch_tokens=30)
    assert len(merges) == 4 * len(model._decoder._fused.layers)
    assert all(product._merged is None for product in merges)


def test_the_adapter_that_is_active_counts(kit):
    loaded = adapted(kit)
    policy = LogprobModel(loaded.model)
    before = results(policy, kit)
    beside = put_adapter_beside(loaded.model, "other", "a test")
    with torch.no_grad():
        for name, parameter in beside.trained.items():
            if "lora_B" in name:
                parameter.mul_(-2.0)
    with beside.active():
        shaken = results(policy, kit)
        for one, other in zip(shaken, results(unfused(loaded), kit), strict=True):
            assert relative(one, other) < 1e-5
    assert relative(shaken[0], before[0]) > 1e-3
    assert torch.equal(results(policy, kit)[0], before[0])


def test_a_model_without_its_adapter_is_its_base(kit):
    loaded = adapted(kit)
    fused = LogprobModel(loaded.model)
    results(fused, kit)
    with loaded.model.disable_adapter(), torch.no_grad():
        batch = kit.one_batch(kit.family())
        found, expected = fused(batch)[0], unfused(loaded)(batch)[0]
    assert torch.allclose(found, expected, atol=1e-5)


# ------------------------------------------------------------ layers that stay as they are


def check_as_it_is(kit, loaded, reason):
    model = LogprobModel(loaded.model)
    with pytest.warns(UserWarning, match=f"updates run a model's layers as they are, which is slower: {reason}"):
        found = results(model, kit)
    with warnings.catch_warnings(action="error"):
        results(model, kit)
    assert layers_of(model) == {type(decoder_of(loaded.model).layers[0]).__name__}
    for one, other in zip(found, results(unfused(loaded), kit), strict=True):
        assert torch.equal(one, other)


def test_another_activation_is_found_by_comparing(kit):
    loaded = adapted(kit)
    decoder_of(loaded.model).layers[1].mlp.act_fn = nn.GELU()
    check_as_it_is(kit, loaded, "LlamaDecoderLayer computes something else")


def test_another_activation_that_differs_in_its_gradient_alone_is_found(kit):
    class Stopped(nn.Module):
        def forward(self, inputs):
            return nn.functional.silu(inputs).detach() + 0 * inputs

    loaded = adapted(kit)
    decoder_of(loaded.model).layers[0].mlp.act_fn = Stopped()
    check_as_it_is(kit, loaded, "LlamaDecoderLayer computes something else")


def test_another_form_is_named(kit):
    check_as_it_is(kit, adapted(kit, "Gemma"), "GemmaDecoderLayer has another form")


def test_norms_that_are_trained_keep_their_gradient(kit):
    loaded = adapted(kit)
    decoder_of(loaded.model).layers[0].input_layernorm.weight.requires_grad_()
    check_as_it_is(kit, loaded, "norms are trained")


def test_weights_that_are_trained_beside_an_adapter_keep_their_gradient(kit):
    loaded = adapted(kit)
    decoder_of(loaded.model).layers[0].mlp.up_proj.base_layer.weight.requires_grad_()
    check_as_it_is(kit, loaded, "weights below the adapters are trained")


def test_a_model_without_an_adapter_is_trained_as_it_is_without_a_word(kit):
    model = LogprobModel(kit.load().model)
    with warnings.catch_warnings(action="error"):
        results(model, kit)
    assert layers_of(model) == {"LlamaDecoderLayer"}


def test_dropout_acts_where_it_is_switched_on(kit):
    loaded = adapted(kit, dropout=0.5)
    model = LogprobModel(loaded.model)
    without = results(model, kit)
    assert layers_of(model) == {"FusedTrainingLayer"}
    loaded.model.train()
    assert layers_of(model) == {"LlamaDecoderLayer"}
    assert relative(results(model, kit)[0], without[0]) > 1e-3
    loaded.model.eval()
    assert torch.equal(results(model, kit)[0], without[0])


def test_the_model_is_left_as_it_was(kit):
    loaded = adapted(kit)
    names = [name for name, _ in loaded.model.named_parameters()]
    model = LogprobModel(loaded.model)
    results(model, kit)
    assert [name for name, _ in loaded.model.named_parameters()] == names
    assert len(list(model.parameters())) == len(names)
    assert type(decoder_of(loaded.model).layers[0]).__name__ == "LlamaDecoderLayer"
