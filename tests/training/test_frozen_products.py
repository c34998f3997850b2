"""Updates with packed frozen weights: the gradients of the model's own layers, and when those run themselves."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from deedrl.policies.local import twin
from deedrl.policies.local.model import add_adapter
from deedrl.training import frozen_products
from deedrl.training.backend import LogprobModel
from deedrl.training.frozen_products import FrozenWeight, PackedModel, PackedWeight
from deedrl.training.learner import Learner
from deedrl.training.sft import sft_update

needs_packing = pytest.mark.skipif(not twin.can_pack(torch.zeros(2, 2)), reason="this torch cannot pack weights")


def adapted(kit, *, target="all-linear", dropout=0.0, dtype="fp32"):
    """A model with an adapter that changes something."""
    base = kit.load(trainable=False, dtype=dtype)
    loaded = add_adapter(base, rank=4, alpha=10.0, dropout=dropout, target=target, seed=1)
    generator = torch.Generator().manual_seed(5)
    for parameter in loaded.model.parameters():
        if parameter.requires_grad:
            parameter.data.normal_(0, 0.1, generator=generator)
    return loaded


def results(kit, loaded):
    """Log-probabilities and gradient as a packed update forms them, and as the model's own layers do."""
    batch, module = kit.one_batch(kit.family()), LogprobModel(loaded.model)

    def run():
        logprobs, _ = module(batch)
        return logprobs.detach(), kit.gradient(loaded.model, (logprobs * torch.arange(len(logprobs))).sum())

    with module.packed():
        packed = run()
    return packed, run()


def kinds(decoder):
    return {type(module).__name__ for module in decoder.modules()}


def count(decoder, kind):
    return sum(type(module) is kind for module in decoder.modules())


@needs_packing
@pytest.mark.parametrize("target", ["all-linear", ["q_proj", "down_proj"]])
def test_logprobs_and_gradients_are_those_of_the_models_own_layers(kit, target):
    loaded = adapted(kit, target=target)
    decoder = PackedModel(loaded.model).decoder
    assert nn.Linear not in {type(module) for module in decoder.modules()}
    (logprobs, gradient), (own_logprobs, own_gradient) = results(kit, loaded)
    assert torch.allclose(logprobs, own_logprobs, atol=1e-5)
    assert float((gradient - own_gradient).norm() / own_gradient.norm()) < 1e-5


def test_on_a_bf16_model_the_gradient_is_about_that_of_float32(kit):
    (logprobs, gradient), _ = results(kit, adapted(kit, dtype="bf16"))
    _, (own_logprobs, own_gradient) = results(kit, adapted(kit))
    assert gradient.dtype == torch.float32
    assert torch.allclose(logprobs, own_logprobs, atol=0.1)
    assert float((gradient - own_gradient).norm() / own_gradient.norm()) < 0.05


def test_in_bf16_the_products_are_those_of_float32_up_to_rounding(monkeypatch):
    """Without packing, so on every processor."""
    monkeypatch.setattr(frozen_products, "PackedWeight", FrozenWeight)
    generator = torch.Generator().manual_seed(2)
    base = nn.Linear(24, 16).requires_grad_(False)
    down, up = (nn.Parameter(torch.randn(s, generator=generator) / 4) for s in ((4, 24), (16, 4)))
    inputs = torch.randn(2, 5, 24, generator=generator)
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        layer = frozen_products._Adapted(base.to(dtype), down, up, 2.5)
        x = inputs.to(dtype).requires_grad_()
        outputs = layer(x)
        assert outputs.dtype == dtype
        gradients = torch.autograd.grad(outputs.float().square().sum(), [x, down, up])
        assert [g.dtype for g in gradients] == [dtype, torch.float32, torch.float32]
        found[dtype] = torch.cat([outputs.flatten(), *(g.flatten() for g in gradients)]).float().detach()
    assert float((found[torch.bfloat16] - found[torch.float32]).norm() / found[torch.float32].norm()) < 0.03


@needs_packing
def test_one_layer_and_its_gradients_equal_autograd_on_the_formula():
    generator = torch.Generator().manual_seed(2)
    base = nn.Linear(24, 16).requires_grad_(False)
    down, up = (nn.Parameter(torch.randn(s, generator=generator)) for s in ((4, 24), (16, 4)))
    inputs = torch.randn(2, 5, 24, generator=generator, requires_grad=True)
    found = frozen_products._Adapted(base, down, up, 2.5)(inputs)
    expected = base(inputs) + 2.5 * (inputs @ down.T) @ up.T
    upstream = torch.randn(2, 5, 16, generator=generator)
    assert torch.allclose(found, expected, atol=1e-4)
    pairs = (torch.autograd.grad(y, [inputs, down, up], upstream) for y in (found, expected))
    for gradient, own in zip(*pairs, strict=True):
        assert torch.allclose(gradient, own, atol=1e-4)


@needs_packing
def test_a_packed_weight_multiplies_as_the_plain_one_in_both_directions():
    weight, inputs, gradient = torch.randn(7, 5), torch.randn(3, 5), torch.randn(3, 7)
    assert torch.allclose(PackedWeight(weight).forward(inputs), inputs @ weight.T, atol=1e-5)
    assert torch.allclose(PackedWeight(weight).backward(gradient), gradient @ weight, atol=1e-5)


def test_trainable_weights_are_left_to_their_own_layers(kit):
    packed = PackedModel(kit.load().model)
    assert count(packed.decoder, frozen_products._Frozen) == 0
    assert packed.head is None


def test_where_weights_cannot_be_packed_the_models_own_layers_run(kit, monkeypatch):
    monkeypatch.setattr(frozen_products, "can_pack", lambda weight: False)
    packed = PackedModel(adapted(kit).model)
    assert not {"_Adapted", "_Frozen"} & kinds(packed.decoder)
    assert packed.head is None


@needs_packing
def test_layers_whose_dropout_acts_run_themselves(kit):
    loaded = adapted(kit, dropout=0.5, target=["q_proj"])
    assert count(PackedModel(loaded.model).decoder, frozen_products._Adapted) > 0
    loaded.model.train()
    assert count(PackedModel(loaded.model).decoder, frozen_products._Adapted) == 0


def test_variants_of_lora_run_themselves(kit):
    from peft import LoraConfig, get_peft_model

    for options in ({"use_dora": True}, {"lora_bias": True}):
        base = kit.load(trainable=False)
        config = LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM", **options)
        decoder = PackedModel(get_peft_model(base.model, config).eval()).decoder
        assert count(decoder, frozen_products._Adapted) == 0


def test_an_update_moves_the_adapter_alone_and_leaves_nothing_behind(kit, monkeypatch):
    packed, own = Learner(adapted(kit)), Learner(adapted(kit))
    before = kit.parameters(packed.loaded)
    modules = [type(module) for module in packed.loaded.model.modules()]
    base = {n: p.clone() for n, p in packed.loaded.model.named_parameters() if "lora_" not in n}
    options = {"learning_rate": 1e-3, "max_grad_norm": 1e9, "micro_batch_tokens": 60}
    stats = sft_update(packed, kit.family(), **options)
    monkeypatch.setattr(frozen_products, "can_pack", lambda weight: False)
    expected = sft_update(own, kit.family(), **options)
    assert stats.grad_norm == pytest.approx(expected.grad_norm, rel=1e-5)
    assert stats.loss == pytest.approx(expected.loss, rel=1e-5)
    assert not torch.equal(kit.parameters(packed.loaded), before)
    assert packed._module._packed is None
    assert [type(module) for module in packed.loaded.model.modules()] == modules
    assert all(torch.equal(p, base[n]) for n, p in packed.loaded.model.named_parameters() if n in base)
