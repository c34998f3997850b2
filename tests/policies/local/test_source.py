"""Models and adapters that are broken, unsafe or out of reach: one message that names the file, never a traceback."""

from __future__ import annotations

import json
import shutil
import time

import pytest
import torch
from safetensors.torch import load_file, save_file

from deedrl.errors import ModelError
from deedrl.policies.local.model import add_adapter, load_adapter, load_model

WEIGHTS, ADAPTER = "model.safetensors", "adapter_model.safetensors"


def rewrite(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def configured(**changes):
    return lambda folder: rewrite(folder / "config.json", **changes)


def written(name, data):
    return lambda folder: (folder / name).write_bytes(data)


def cut(name, size):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


def pickled(name, as_name):
    def spoil(folder):
        torch.save(load_file(folder / name), folder / as_name)
        (folder / name).unlink()

    return spoil


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (cut(WEIGHTS, 0), r"model\.safetensors: expected a whole safetensors file, got 0 bytes .* copy it anew"),
        (cut(WEIGHTS, 20_000), r"model\.safetensors: expected a whole safetensors file, got 20000 bytes"),
        (written(WEIGHTS, b"\x93" * 5000), r"model\.safetensors: expected a whole safetensors file"),
        (lambda folder: (folder / WEIGHTS).unlink(), r"expected weights in model\.safetensors, found none"),
        (pickled(WEIGHTS, "pytorch_model.bin"), r"pytorch_model\.bin: refused; .* convert them to safetensors"),
        (written(WEIGHTS + ".index.json", b'{"weight_map": {"a": "a.bin"}}'), r"index\.json: refused; .*'a\.bin'"),
        (written(WEIGHTS + ".index.json", b"{"), r"index\.json: expected a JSON object"),
        (configured(hidden_size=32), r"weights of .* do not fit its config\.json, such as .* got \[\d+, 64\]"),
        (configured(vocab_size=100), r"such as lm_head\.weight: expected shape \[100, 64\], got \[\d+, 64\]"),
        (configured(num_hidden_layers=1), r"such as model\.layers\.1\..* have no place in it"),
        (configured(num_hidden_layers=3), r"lacks \d+ weights, such as model\.layers\.2"),
        (configured(num_attention_heads=3), r"cannot load the model .*not a multiple of the number of attention heads"),
        (configured(num_hidden_layers="two"), r"cannot load the model .*expected int, got str"),
        (configured(hidden_act="none"), r"cannot load the model .*KeyError: 'none'"),
        (written("config.json", b"[]"), "cannot load the model"),
        (written("config.json", b"\xff\xfe\x00"), "cannot load the model"),
        (written("tokenizer.json", b"{}"), "cannot load the model"),
    ],
)
def test_a_broken_model_folder_is_a_model_error(kit, tmp_path, spoil, message):
    shutil.copytree(kit.folder(), tmp_path / "model")
    spoil(tmp_path / "model")
    with pytest.raises(ModelError, match=message) as caught:
        load_model(str(tmp_path / "model"), dtype="fp32")
    assert len(str(caught.value)) < 800


@pytest.fixture(scope="module")
def adapter(kit, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapter")
    loaded = add_adapter(kit.load(), rank=2, alpha=4, dropout=0.0, target="all-linear", seed=0)
    loaded.save(folder)
    return folder


def a_part(folder):
    tensors = load_file(folder / ADAPTER)
    save_file({name: tensors[name] for name in sorted(tensors)[:3]}, folder / ADAPTER)


def not_a_number(folder):
    tensors = load_file(folder / ADAPTER)
    tensors[sorted(tensors)[0]][:] = torch.nan
    save_file(tensors, folder / ADAPTER)


def adapted(**changes):
    return lambda folder: rewrite(folder / "adapter_config.json", **changes)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (cut(ADAPTER, 2000), r"adapter_model\.safetensors: expected a whole safetensors file, got 2000 bytes"),
        (lambda folder: (folder / ADAPTER).unlink(), r"expected the adapter's weights in adapter_model\.safetensors"),
        (pickled(ADAPTER, "adapter_model.bin"), r"adapter_model\.bin: refused; .* convert them to safetensors"),
        (a_part, r"adapter_model\.safetensors: its weights are not those of its adapter_config\.json .* differ"),
        (not_a_number, r"adapter_model\.safetensors: expected finite numbers, found NaN or infinity in .*lora_"),
        (adapted(target_modules=["q_proj"]), "its weights are not those of its adapter_config.json"),
        (adapted(target_modules=["nothing"]), "cannot put this adapter on the model .*nothing"),
        (adapted(r=4), "cannot put this adapter on the model .*size mismatch"),
        (adapted(r="x"), "cannot put this adapter on the model"),
        (adapted(peft_type="PREFIX_TUNING"), "expected peft_type 'LORA', got 'PREFIX_TUNING'"),
        (written("adapter_config.json", b"{"), r"adapter_config\.json: expected a JSON object"),
        (written("adapter_config.json", b"[1]"), r"adapter_config\.json: expected a JSON object, got list"),
    ],
)
def test_a_broken_adapter_folder_is_a_model_error(kit, adapter, tmp_path, spoil, message):
    folder = tmp_path / "broken"
    shutil.copytree(adapter, folder)
    spoil(folder)
    with pytest.raises(ModelError, match=message):
        load_adapter(kit.load(), folder)


def test_an_adapter_that_is_whole_is_read(kit, adapter):
    assert load_adapter(kit.load(), adapter).parameters > kit.load().parameters


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("q_prj", "no linear layer 'q_prj'; did you mean 'q_proj'"),
        (["q_proj", "norm"], "no linear layer 'norm'; known: .*q_proj"),
        ("", "no linear layer ''"),
        ("(", r"no linear layer '\('"),
        ([], "expected names of layers or 'all-linear', got an empty list"),
    ],
)
def test_layers_that_the_model_lacks_are_named_with_those_it_has(kit, target, message):
    with pytest.raises(ModelError, match=r"model\.adapter\.target: .*" + message):
        add_adapter(kit.load(), rank=2, alpha=4, dropout=0.0, target=target, seed=0)


def test_one_name_alone_is_a_target(kit):
    loaded = add_adapter(kit.load(), rank=2, alpha=4, dropout=0.0, target="q_proj", seed=0)
    assert {n.split(".")[-4] for n, p in loaded.model.named_parameters() if p.requires_grad} == {"q_proj"}


def test_a_rank_above_the_hidden_size_is_refused(kit):
    with pytest.raises(ModelError, match=r"model\.adapter\.rank: expected at most .* of 64, got 100000000"):
        add_adapter(kit.load(), rank=10**8, alpha=4, dropout=0.0, target="all-linear", seed=0)


def test_a_hub_out_of_reach_is_told_at_once_with_the_local_choices(monkeypatch, tmp_path):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    began = time.monotonic()
    with pytest.raises(
        ModelError, match=r"'owner/name': the hub is out of reach .*model\.path to a folder .*'embedded'"
    ):
        load_model("owner/name")
    assert time.monotonic() - began < 20


def test_a_chat_template_that_is_not_text_is_a_model_error(kit, tmp_path):
    (tmp_path / "template").write_bytes(b"\xff\xfe\x81")
    with pytest.raises(ModelError, match="cannot read the chat template"):
        load_model(str(kit.folder()), chat_template=str(tmp_path / "template"))
