"""A tiny random model in an ordinary transformers folder: for tests and for trying a pipeline in seconds."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from deedrl.rendering.renderer import CHATML

TURN_START, TURN_END = "<|im_start|>", "<|im_end|>"


def build_tiny_model(
    folder: Path,
    texts: Iterable[str],
    *,
    hidden: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    vocabulary: int = 512,
    positions: int = 2048,
    seed: int = 0,
    config_class: Any = None,
    **config: Any,
) -> Path:
    """Writes a model that `load_model(folder)` reads, with a tokenizer trained on `texts`, and returns `folder`.

    The weights are random. The tokenizer is byte-level BPE with at most `vocabulary` tokens (at least 258: bytes and
    control tokens) and a ChatML template. `config_class` is a transformers configuration class of a causal decoder,
    Llama's by default; further keywords go to it. Equal arguments give equal weights; torch's global random stream is
    left as it was.
    """
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    tokenizer = train_tokenizer(texts, vocabulary)
    settings: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": hidden // heads,
        "max_position_embeddings": positions,
        # Larger than is usual for big models, so that the distributions of so small a model are not all flat.
        "initializer_range": 0.1,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config((config_class or LlamaConfig)(**(settings | config)))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Path(folder)


def train_tokenizer(texts: Iterable[str], vocabulary: int = 512) -> Any:
    """A byte-level BPE tokenizer for transformers with ChatML control tokens and template; it adds no BOS."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[TURN_START, TURN_END],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=TURN_END, pad_token=TURN_END, chat_template=CHATML
    )
