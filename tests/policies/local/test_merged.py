"""Sampling from merged weights: the same distribution as the model with its adapter, which stays untouched."""

from __future__ import annotations

import pytest
import torch

from deedrl.errors import ModelError
from deedrl.policies.local import merged
from deedrl.policies.local.engine import Engine
from deedrl.policies.local.merged import SamplingModel
from deedrl.policies.local.model import add_adapter


def adapted(kit, *, target="all-linear", **lora):
    """A tiny model with an adapter that changes something."""
    loaded = add_adapter(kit.load(), rank=4, alpha=8.0, dropout=0.0, target=target, seed=1, **lora)
    set_adapter(loaded, 5)
    return loaded


def set_adapter(loaded, seed):
    generator = torch.Generator().manual_seed(seed)
    for parameter in loaded.model.parameters():
        if parameter.requires_grad:
            parameter.data.normal_(0, 0.1, generator=generator)


def sampled(kit, loaded, engine=None):
    engine = engine or Engine(loaded.model, stop_ids=[-1])
    [turn] = kit.play(engine, [kit.turn("a", kit.ids(1, 9), prefix=kit.ids(1, 4))]).values()
    engine.release("a")
    return turn


def expected(kit, loaded, turn):
    loaded.model.config._attn_implementation = "eager"
    return pytest.approx(kit.plain_logprobs(loaded.model, turn.context, turn.tokens), abs=1e-5)


@pytest.mark.parametrize("target", ["all-linear", ["q_proj", "down_proj"]])
def test_logprobs_are_those_of_the_model_with_its_adapter(kit, target):
    loaded = adapted(kit, target=target)
    turn = sampled(kit, loaded)
    assert turn.logprobs == expected(kit, loaded, turn)


def test_new_weights_count_after_reset(kit):
    loaded = adapted(kit)
    engine = Engine(loaded.model, stop_ids=[-1])
    before = sampled(kit, loaded, engine)
    set_adapter(loaded, 6)
    engine.reset()
    after = sampled(kit, loaded, engine)
    assert after.logprobs != pytest.approx(before.logprobs, abs=1e-3)
    assert after.logprobs == expected(kit, loaded, after)


def test_the_model_itself_is_not_changed_and_keeps_its_gradients(kit):
    loaded = adapted(kit)
    before = {name: value.clone() for name, value in loaded.model.state_dict().items()}
    trainable = [name for name, p in loaded.model.named_parameters() if p.requires_grad]
    sampled(kit, loaded)
    after = loaded.model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert [name for name, p in loaded.model.named_parameters() if p.requires_grad] == trainable


def test_held_weights_are_those_of_the_moment_until_the_next_reset(kit):
    loaded = adapted(kit)
    engine = Engine(loaded.model, stop_ids=[-1])
    engine.hold_weights()
    before = sampled(kit, loaded)
    set_adapter(loaded, 6)
    held = sampled(kit, loaded, engine)
    assert (held.tokens, held.logprobs) == (before.tokens, before.logprobs)
    engine.reset()
    assert sampled(kit, loaded, engine).logprobs == sampled(kit, loaded).logprobs != before.logprobs


@pytest.mark.parametrize("packs", [True, False])
def test_weights_are_held_only_where_no_trained_tensor_is_shared(kit, monkeypatch, packs):
    if not packs:
        monkeypatch.setattr(merged, "can_pack", lambda weight: False)
    SamplingModel(adapted(kit).model).hold()
    whole = kit.load()
    for parameter in whole.model.parameters():
        parameter.requires_grad_(True)
    with pytest.raises(ModelError, match="sampling during an update needs an adapter of plain LoRA"):
        SamplingModel(whole.model).hold()
    with pytest.raises(ModelError, match=r"trained tensors are shared, such as .*lora"):
        SamplingModel(adapted(kit, target=["q_proj", "lm_head"]).model).hold()


def test_everything_but_linear_layers_is_shared(kit):
    loaded = adapted(kit)
    weights = SamplingModel(loaded.model)
    weights._copy()
    own = {p.data_ptr() for p in loaded.model.parameters()}
    assert {p.data_ptr() for p in weights._decoder.parameters()} <= own
    assert len(list(weights._decoder.parameters())) > 2


def test_where_weights_cannot_be_packed_the_same_comes_out(kit, monkeypatch):
    loaded = adapted(kit)
    packed = sampled(kit, loaded)
    monkeypatch.setattr(merged, "can_pack", lambda weight: False)
    plain = sampled(kit, loaded)
    assert plain.tokens == packed.tokens
    assert plain.logprobs == pytest.approx(packed.logprobs, abs=1e-5)


@pytest.mark.filterwarnings("ignore:sampling runs a model's layers as they are")
@pytest.mark.parametrize("variant", ["use_dora", "lora_bias"])
def test_a_variant_of_lora_that_is_more_than_a_product_is_sampled_unmerged(kit, variant):
    from peft import LoraConfig, get_peft_model

    base = kit.load()
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", **{variant: True})
    base.model = get_peft_model(base.model, config).eval()
    set_adapter(base, 3)
    turn = sampled(kit, base)
    assert turn.logprobs == expected(kit, base, turn)
