"""Fused layers compute what a model's own do, and layers of another form stay as they are."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from deedrl.policies.local import attention, merged
from deedrl.policies.local.attention import install
from deedrl.policies.local.compiled.kernels import Kernels
from deedrl.policies.local.engine import Engine
from deedrl.policies.local.fused import FusedLayer, NotFused, compare, fused, kernels_for
from deedrl.policies.local.layout import MANY_TOKENS
from deedrl.policies.local.merged import SamplingModel, decoder_of
from deedrl.policies.local.model import add_adapter

pytestmark = pytest.mark.usefixtures("compiler")
FAMILIES = ["Llama", "Mistral", "Qwen2", "Qwen3"]
TOLERANCE = {"fp32": 1e-5, "bf16": 0.05}


def load(kit, family="Llama", dtype="fp32", *, adapter=False, **options):
    """A tiny model whose biases, norms and adapter, if any, change something."""
    if dtype == "bf16" and not merged.can_pack(torch.zeros(1, dtype=torch.bfloat16)):
        pytest.skip("this processor has no products in bf16")
    loaded = kit.load(family, dtype, **options)
    if adapter:
        loaded = add_adapter(loaded, rank=4, alpha=8.0, dropout=0.0, target="all-linear", seed=1)
    generator = torch.Generator().manual_seed(5)
    for name, parameter in loaded.model.named_parameters():
        if parameter.ndim == 1 or "lora_B" in name:
            parameter.data.add_(0.1 * torch.randn(parameter.shape, generator=generator).to(parameter.dtype))
    return loaded


def new_engine(loaded, **options):
    return Engine(loaded.model, stop_ids=[-1], **options)


def layers_of(engine):
    return [type(layer).__name__ for layer in engine._weights._decoder.layers]


def tiled(loaded):
    return kernels_for(decoder_of(loaded.model)).tiled


def check(kit, loaded, turns, tolerance=1e-5):
    """Against a plain forward pass; nothing more can be sampled from `loaded` afterwards."""
    assert turns
    loaded.model.config._attn_implementation = "eager"
    for turn in turns:
        expected = kit.plain_logprobs(loaded.model, turn.context, turn.tokens)
        assert turn.logprobs == pytest.approx(expected, abs=tolerance)


def sampled(kit, engine, **options):
    """Of four sequences, three of which share a prefix."""
    prefix = kit.ids(99, 11)
    turns = [
        kit.turn(f"s{i}", [*(prefix if i < 3 else []), *kit.ids(i, 3 + 4 * i)], prefix=prefix if i < 3 else ())
        for i in range(4)
    ]
    return kit.play(engine, turns).values()


def one_layer(loaded):
    """The first layer, its replacement, and what `compare` takes beside."""
    install(loaded.model)
    decoder = decoder_of(loaded.model)
    kernels = kernels_for(decoder)
    return decoder.layers[0], fused(decoder.layers[0], kernels, merged.weight_and_bias), decoder, kernels


# ------------------------------------------------------------ models of the common form


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("adapter", [False, True], ids=["plain", "adapter"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_of_fused_layers_are_those_of_a_plain_forward_pass(kit, family, adapter, dtype):
    loaded = load(kit, family, dtype, adapter=adapter)
    engine = new_engine(loaded)
    with warnings.catch_warnings(action="error"):
        turns = sampled(kit, engine)
    assert layers_of(engine) == ["FusedLayer"] * 2
    check(kit, loaded, turns, TOLERANCE[dtype])


def test_the_models_differ_by_what_they_are_chosen_for(kit):
    names = {family: str(dict(kit.load(family).model.named_parameters()).keys()) for family in FAMILIES}
    assert [family for family in FAMILIES if "q_proj.bias" in names[family]] == ["Qwen2"]
    assert [family for family in FAMILIES if "q_norm" in names[family]] == ["Qwen3"]


@pytest.mark.parametrize("heads", [(4, 4), (4, 1), (6, 2)], ids=["groups_1", "groups_4", "groups_3"])
def test_any_number_of_query_heads_to_a_key(kit, heads):
    loaded = load(kit, hidden=16 * heads[0], heads=heads[0], kv_heads=heads[1])
    engine = new_engine(loaded)
    turns = sampled(kit, engine)
    assert layers_of(engine) == ["FusedLayer"] * 2
    check(kit, loaded, turns)


def test_new_weights_of_an_adapter_count_after_reset(kit):
    loaded = load(kit, adapter=True)
    engine = new_engine(loaded)
    kit.play(engine, [kit.turn("a", kit.ids(1, 9))])
    for name, parameter in loaded.model.named_parameters():
        if "lora_B" in name:
            parameter.data.mul_(-1.5)
    engine.reset()
    check(kit, loaded, kit.play(engine, [kit.turn("a", kit.ids(1, 9))]).values())


def test_a_model_in_training_is_fused_without_its_dropout_and_goes_on_training(kit):
    loaded = add_adapter(kit.load(), rank=4, alpha=8.0, dropout=0.5, target="all-linear", seed=1)
    for name, parameter in loaded.model.named_parameters():
        if "lora_B" in name:
            parameter.data.fill_(0.1)
    loaded.model.train()
    engine = new_engine(loaded)
    turns = sampled(kit, engine)
    assert layers_of(engine) == ["FusedLayer"] * 2
    assert all(module.training for module in loaded.model.modules() if isinstance(module, nn.Dropout))
    loaded.model.eval()
    check(kit, loaded, turns)


# ------------------------------------------------------------ prefixes and fills


SIZES = [("fp32", 16), ("bf16", 16), ("bf16", 32)]
"""Types and sizes of heads; matrix tiles take the last only, where there are any."""


def apart(monkeypatch):
    """Which of the two functions for fills is called, for how many tokens, from now on."""
    calls: set[tuple[str, int]] = set()
    join, attend_feeds = Kernels.join, Kernels.attend_feeds

    def joining(self, own, at, *rest):
        calls.add(("join", len(at)))
        join(self, own, at, *rest)

    def feeding(self, query, prefix, keys, values, feeds, *rest):
        calls.add(("attend_feeds", int(feeds[:, 1].sum())))
        attend_feeds(self, query, prefix, keys, values, feeds, *rest)

    monkeypatch.setattr(Kernels, "join", joining)
    monkeypatch.setattr(Kernels, "attend_feeds", feeding)
    return calls


@pytest.mark.parametrize(("dtype", "size"), SIZES)
@pytest.mark.parametrize("new", [1, MANY_TOKENS - 1, MANY_TOKENS, 3 * MANY_TOKENS])
def test_fills_of_any_length_beside_rows_that_decode(kit, monkeypatch, new, dtype, size):
    loaded = load(kit, dtype=dtype, head_dim=size)
    engine = new_engine(loaded, max_rows=8)
    prefix = kit.ids(99, 11)
    for key in "ab":
        engine.submit(kit.turn(key, [*prefix, *kit.ids(ord(key), 5)], prefix=prefix, max_tokens=20))
    ended = [turn for _ in range(3) for turn in engine.step()]
    calls = apart(monkeypatch)
    fills = [kit.turn("c", [*prefix, *kit.ids(1, new)], prefix=prefix), kit.turn("d", kit.ids(2, new + 1))]
    ended += kit.play(engine, [fills[0]] if new < MANY_TOKENS else fills).values()
    function = "attend_feeds" if tiled(loaded) else "join"
    assert calls == (set() if new < MANY_TOKENS else {(function, 2 * new + 1)})
    check(kit, loaded, ended, TOLERANCE[dtype])


@pytest.mark.parametrize(("dtype", "size"), SIZES)
@pytest.mark.parametrize("new", [3, 2 * MANY_TOKENS])
def test_several_prefixes_at_once_and_none(kit, dtype, size, new):
    loaded = load(kit, dtype=dtype, head_dim=size)
    engine = new_engine(loaded, max_rows=8)
    prefixes = [kit.ids(50, 7), kit.ids(51, 40), [], kit.ids(52, 1)]
    turns = [
        kit.turn(f"s{i}", [*prefixes[i % 4], *kit.ids(i, new + i)], prefix=prefixes[i % 4], max_tokens=4 + i)
        for i in range(8)
    ]
    ended = list(kit.play(engine, turns).values())
    assert len(engine._prefixes) == 3
    more = [kit.turn(t.key, [*t.context, *t.tokens, *kit.ids(7, new)], prefix=t.prefix) for t in ended]
    ended += kit.play(engine, more).values()
    assert layers_of(engine) == ["FusedLayer"] * 2
    check(kit, loaded, ended, TOLERANCE[dtype])


@pytest.mark.parametrize("new", [3, 2 * MANY_TOKENS])
def test_where_torch_lacks_its_fused_attention_the_same_comes_out(kit, monkeypatch, new):
    """Parts of attention then come in float32, whatever the model's type."""
    monkeypatch.setattr(attention, "_FUSED", "no such operator")
    loaded = load(kit, dtype="bf16")
    engine = new_engine(loaded)
    prefix = kit.ids(50, 7)
    turns = [kit.turn(key, [*prefix, *kit.ids(ord(key), new)], prefix=prefix) for key in "ab"]
    ended = kit.play(engine, turns).values()
    assert layers_of(engine) == ["FusedLayer"] * 2
    check(kit, loaded, ended, TOLERANCE["bf16"])


# ------------------------------------------------------------ layers that stay as they are

SLOWER = "sampling runs a model's layers as they are, which is slower: "


def test_gemma_stays_as_it_is_and_says_so_once(kit):
    loaded = load(kit, "Gemma")
    engine = new_engine(loaded)
    with pytest.warns(UserWarning, match=f"{SLOWER}GemmaDecoderLayer has another form") as caught:
        turns = sampled(kit, engine)
    assert layers_of(engine) == ["GemmaDecoderLayer"] * 2
    for turn in turns:
        engine.release(turn.key)
    engine.reset()
    with warnings.catch_warnings(action="error"):
        turns = sampled(kit, engine)
    assert len(caught) == 1
    check(kit, loaded, turns)


def check_slower(kit, loaded, why, layers):
    """It warns with the reason, runs with these layers, and is right."""
    engine = new_engine(loaded)
    with pytest.warns(UserWarning, match=SLOWER + why):
        turns = sampled(kit, engine)
    assert layers_of(engine) == layers
    check(kit, loaded, turns)


def test_one_odd_layer_leaves_the_others_fused(kit):
    loaded = load(kit)
    decoder_of(loaded.model).layers[1].mlp.act_fn = nn.GELU()
    check_slower(kit, loaded, "LlamaDecoderLayer computes something else", ["FusedLayer", "LlamaDecoderLayer"])


def test_a_model_that_rotates_in_some_layers_only_is_fused_there(kit):
    loaded = load(kit, "SmolLM3", no_rope_layer_interval=2)
    check_slower(kit, loaded, "SmolLM3DecoderLayer computes something else", ["FusedLayer", "SmolLM3DecoderLayer"])


def test_heads_that_are_rotated_in_part_stay_as_they_are(kit):
    loaded = load(kit, "Glm4Moe", first_k_dense_replace=2, partial_rotary_factor=0.5)
    check_slower(kit, loaded, ".*does not rotate whole heads", ["Glm4MoeDecoderLayer"] * 2)


def test_heads_of_other_sizes_than_the_compiled_functions_take_stay_as_they_are(kit):
    check_slower(kit, load(kit, head_dim=8), ".*multiple of 16", ["LlamaDecoderLayer"] * 2)


class AddsOne(nn.Module):
    """A norm whose weight counts from 1, as Gemma's does."""

    def __init__(self, norm):
        super().__init__()
        self.weight, self.variance_epsilon = norm.weight, norm.variance_epsilon

    def forward(self, hidden):
        wide = hidden.float()
        scale = (wide.square().mean(-1, keepdim=True) + self.variance_epsilon).rsqrt()
        return (wide * scale * (1 + self.weight.float())).to(hidden.dtype)


class Skips(nn.Module):
    """An MLP with a sum more than usual."""

    def __init__(self, mlp):
        super().__init__()
        self.mlp, self.gate_proj = mlp, mlp.gate_proj

    def forward(self, hidden):
        return self.mlp(hidden) + hidden


CHANGES = {
    "gelu": lambda layer: setattr(layer.mlp, "act_fn", nn.GELU()),
    "relu": lambda layer: setattr(layer.mlp, "act_fn", nn.ReLU()),
    "epsilon": lambda layer: setattr(layer.post_attention_layernorm, "variance_epsilon", 0.01),
    "norm": lambda layer: setattr(layer, "input_layernorm", AddsOne(layer.input_layernorm)),
    "norm_before_mlp": lambda layer: setattr(
        layer, "post_attention_layernorm", AddsOne(layer.post_attention_layernorm)
    ),
    "mlp": lambda layer: setattr(layer, "mlp", Skips(layer.mlp)),
    "scaling": lambda layer: setattr(layer.self_attn, "scaling", 4.0),
}


@pytest.mark.parametrize("spread", [0.1, 0.02], ids=["large_weights", "small_weights"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_layer_that_was_changed_is_told_from_its_replacement(kit, dtype, change, spread):
    """Small weights are those of a model before training, which hardly moves what a layer is given."""
    layer, replacement, *rest = one_layer(load(kit, dtype=dtype, initializer_range=spread))
    compare(layer, replacement, *rest)
    CHANGES[change](layer)
    with pytest.raises(NotFused, match=r"LlamaDecoderLayer computes something else: .* % away"):
        compare(layer, replacement, *rest)


def test_norms_of_another_type_than_the_model_are_refused(kit):
    loaded = load(kit, dtype="bf16")
    decoder_of(loaded.model).layers[0].input_layernorm.float()
    with pytest.raises(NotFused, match="another shape or type"):
        one_layer(loaded)


def test_a_head_norm_alone_is_refused(kit):
    loaded = load(kit, "Qwen3")
    del decoder_of(loaded.model).layers[0].self_attn.k_norm
    with pytest.raises(NotFused, match="another shape or type"):
        one_layer(loaded)


def test_a_layer_without_a_part_of_the_form_is_refused_by_name(kit):
    loaded = load(kit)
    del decoder_of(loaded.model).layers[0].mlp.up_proj
    with pytest.raises(NotFused, match=r"LlamaDecoderLayer has another form: .*up_proj"):
        one_layer(loaded)


def test_norms_are_the_models_own_so_that_training_them_is_seen(kit):
    loaded = load(kit)
    weights = SamplingModel(loaded.model)
    weights._copy()
    own = {id(parameter) for parameter in loaded.model.parameters()}
    [first, _] = weights._decoder.layers
    assert isinstance(first, FusedLayer)
    assert [id(norm.weight) in own for norm in first.norms] == [True, True]
