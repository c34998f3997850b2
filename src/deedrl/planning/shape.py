"""The figures of a model that cost depends on, read from its `config.json` without loading it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deedrl.config import Settings
from deedrl.errors import ModelError


class ModelShape(Settings, frozen=True, kw_only=True):
    """Widths and counts of a decoder with gated MLPs (Llama, SmolLM, Qwen, Mistral)."""

    layers: int
    hidden: int
    heads: int
    query_width: int
    """Query heads times head size."""
    kv_width: int
    """Key heads times head size; as much again for the values."""
    mlp_width: int
    vocabulary: int
    tied: bool
    """Embeddings and output head are one matrix."""
    known: bool = True
    """False: guessed from the size in the model's name."""

    @property
    def layer_linear(self) -> int:
        """Weights of one layer's seven matrices."""
        return 2 * self.hidden * (self.query_width + self.kv_width) + 3 * self.hidden * self.mlp_width

    @property
    def embedding(self) -> int:
        """Weights of the embeddings; the output head has as many."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All weights, norms included."""
        norms = (2 * self.layers + 1) * self.hidden
        return self.layers * self.layer_linear + self.embedding * (1 if self.tied else 2) + norms

    @property
    def linear_outputs(self) -> int:
        """Widths of a layer's seven outputs in sum."""
        return 2 * self.hidden + self.query_width + 2 * self.kv_width + 2 * self.mlp_width

    @property
    def linear_inputs(self) -> int:
        """Widths of a layer's seven inputs in sum."""
        return 5 * self.hidden + self.query_width + self.mlp_width

    def adapter(self, rank: int) -> int:
        """Weights of a LoRA adapter on all linear layers (Hu et al. 2021): rank x (input + output) for each."""
        return self.layers * rank * (self.linear_inputs + self.linear_outputs)


EMBEDDED = ModelShape(
    layers=30,
    hidden=576,
    heads=9,
    query_width=576,
    kv_width=192,
    mlp_width=1536,
    vocabulary=49152,
    tied=True,
)
"""SmolLM2-135M."""

_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


def model_shape(path: str) -> ModelShape:
    """The shape of the embedded model, of a local folder, or of a hub id: from the hub's cache if it is there, else
    guessed from a size such as ``7B`` in the name.

    Raises ModelError for a folder whose `config.json` is missing or is not that of such a decoder, and for a name
    without a size.
    """
    if path == "embedded":
        return EMBEDDED
    folder = Path(path).expanduser()
    if folder.is_dir() or path.startswith((".", "/", "~")):
        return _read(folder / "config.json")
    cached = sorted(_hub_cache().glob(f"models--{path.replace('/', '--')}/snapshots/*/config.json"))
    return _read(cached[-1]) if cached else _guessed(path)


def _hub_cache() -> Path:
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()


def _read(path: Path) -> ModelShape:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(
            f"cannot read {path}: {error}; expected the config.json of a model in transformers' format, give its folder"
        ) from error
    if not isinstance(config, dict):
        raise ModelError(f"{path}: expected a JSON object, got {type(config).__name__}; copy the model anew")
    return shape_of(config, str(path))


def shape_of(config: Mapping[str, Any], source: str = "config.json") -> ModelShape:
    """The shape that transformers' configuration `config` describes; `source` names it in errors."""
    text = config.get("text_config")
    config = text if isinstance(text, dict) else config
    if found := next((name for name in _EXPERTS if config.get(name)), None):
        raise ModelError(
            f"{source}: '{found}' means a mixture of experts, which the estimate does not know; take a dense model"
        )
    hidden = _number(config, "hidden_size", source)
    heads = _number(config, "num_attention_heads", source)
    head = _number(config, "head_dim", source, hidden // heads)
    return ModelShape(
        layers=_number(config, "num_hidden_layers", source),
        hidden=hidden,
        heads=heads,
        query_width=head * heads,
        kv_width=head * _number(config, "num_key_value_heads", source, heads),
        mlp_width=_number(config, "intermediate_size", source, 4 * hidden),
        vocabulary=_number(config, "vocab_size", source),
        tied=bool(config.get("tie_word_embeddings")),
    )


def _number(config: Mapping[str, Any], name: str, source: str, default: int | None = None) -> int:
    value = config.get(name)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelError(
            f"{source}: expected a positive whole number at '{name}', got {value!r}; "
            "take a decoder such as Llama, SmolLM, Qwen or Mistral"
        )
    return value


def _guessed(name: str) -> ModelShape:
    """Proportions of Llama-like models of 7 billion parameters, scaled to the size in the name."""
    size = re.search(r"(\d+(?:\.\d+)?)\s*([bBmM])(?![a-zA-Z])", name)
    if size is None or float(size[1]) == 0:
        raise ModelError(
            f"cannot tell the size of the model '{name}': expected 'embedded', a folder with config.json, or a hub id "
            "with its size in the name, such as Qwen/Qwen2.5-7B-Instruct; download the model and give its folder"
        )
    parameters = float(size[1]) * (1e9 if size[2] in "bB" else 1e6)
    scale = (parameters / 7e9) ** (1 / 3)
    hidden = max(64, round(4096 * scale / 64) * 64)
    layers = max(2, round(32 * scale))
    vocabulary = min(128_000, round(parameters / 4 / hidden))
    kv_width = max(64, hidden // 4 // 64 * 64)
    rest = parameters - vocabulary * hidden - layers * 2 * hidden * (hidden + kv_width)
    return ModelShape(
        layers=layers,
        hidden=hidden,
        heads=hidden // 64,
        query_width=hidden,
        kv_width=kv_width,
        mlp_width=max(round(rest / (3 * layers * hidden)), hidden),
        vocabulary=vocabulary,
        tied=True,
        known=False,
    )
