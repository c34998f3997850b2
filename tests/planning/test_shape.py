from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deedrl.errors import ModelError
from deedrl.planning.shape import EMBEDDED, model_shape, shape_of

CONFIG: dict[str, Any] = {
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
}


def test_the_embedded_model_has_134_515_008_parameters() -> None:
    assert EMBEDDED.parameters == 134_515_008


def test_an_adapter_on_all_linear_layers_by_hand() -> None:
    shape = shape_of(CONFIG | {"num_hidden_layers": 1})
    pairs = [(576, 576), (576, 192), (576, 192), (576, 576), (576, 1536), (576, 1536), (1536, 576)]
    assert shape.adapter(16) == 16 * sum(a + b for a, b in pairs)


def test_a_local_folder_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert model_shape(str(tmp_path)) == EMBEDDED


def test_a_configuration_inside_another_is_found() -> None:
    assert shape_of({"text_config": CONFIG}) == EMBEDDED


def test_without_key_value_heads_every_head_has_its_own() -> None:
    shape = shape_of({name: value for name, value in CONFIG.items() if name != "num_key_value_heads"})
    assert shape.kv_width == shape.query_width == 576


def test_a_hub_id_is_read_from_the_hubs_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "models--some--model" / "snapshots" / "abc"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert model_shape("some/model") == EMBEDDED


@pytest.mark.parametrize(("name", "parameters"), [("a/b-7B", 7e9), ("Qwen2.5-0.5B-Instruct", 0.5e9), ("m-360M", 360e6)])
def test_size_is_read_from_a_name(
    name: str, parameters: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    shape = model_shape(name)
    assert shape.parameters == pytest.approx(parameters, rel=0.05)
    assert not shape.known


@pytest.mark.parametrize("name", ["owner/model", "model-0B"])
def test_a_name_without_a_size_is_refused(name: str) -> None:
    with pytest.raises(ModelError, match="cannot tell the size"):
        model_shape(name)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "'hidden_size', got None"),
        ({"num_hidden_layers": "many"}, "'num_hidden_layers', got 'many'"),
        ({"vocab_size": 0}, "'vocab_size', got 0"),
        ({"num_experts": 8}, "mixture of experts"),
    ],
)
def test_a_configuration_that_is_no_such_decoder_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        shape_of(CONFIG | changes)


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"cannot read .*config\.json"):
        model_shape(str(tmp_path))
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ModelError, match="expected a JSON object, got list"):
        model_shape(str(tmp_path))
