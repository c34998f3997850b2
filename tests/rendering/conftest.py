"""Small tokenizers with the templates of different model families."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from deedrl.rendering.renderer import CHATML

BOS, START, END = "<s>", "<|im_start|>", "<|im_end|>"

THINKING = (
    "{% for m in messages %}"
    "{% if m.role == 'assistant' and not loop.last %}{% set text = m.content.split('</think>')[-1] %}"
    "{% elif m.role == 'assistant' %}{% set text = '<think>\n\n</think>\n\n' + m.content %}"
    "{% else %}{% set text = m.content %}{% endif %}"
    "{{ '<|im_start|>' + m.role + '\n' + text + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"
)
"""Opens a think block in the generation prompt, drops reasoning from old turns and wraps the last one again."""

GEMMA = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{{ '<|im_start|>' + ('model' if m.role == 'assistant' else m.role) + '\n' + m.content | trim + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>model\n' }}{% endif %}"
)


MISTRAL = (
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content + '\n\n' %}{% set said = messages[1:] %}"
    "{% else %}{% set system = '' %}{% set said = messages %}{% endif %}{{ bos_token }}{% for m in said %}"
    "{% if m.role == 'user' %}{{ '<|im_start|>' + (system if loop.last else '') + m.content }}"
    "{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{% endfor %}"
)
"""Puts the system text into the last user turn, behind messages that came after it."""


def build_tokenizer(template: str | None = CHATML, *, bos: bool = False, adds_bos: bool = False) -> Any:
    """Byte-level BPE in which the text `hello` is one token, but also has the pieces `he` and `llo`."""
    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "he", "ll", "llo", "hello"]
    merges = [("h", "e"), ("l", "l"), ("ll", "o"), ("he", "llo")]
    tokenizer = Tokenizer(models.BPE(vocab={piece: index for index, piece in enumerate(pieces)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([START, END, *([BOS] if bos else [])])
    tokenizer.add_tokens([AddedToken("<think>"), AddedToken("</think>")])
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, bos_token=BOS if bos else None, chat_template=template
    )


class Kit:
    """What the tests of this folder share."""

    CHATML = CHATML
    CHATML_WITH_BOS = "{{ bos_token }}" + CHATML
    THINKING = THINKING
    GEMMA = GEMMA
    MISTRAL = MISTRAL
    build_tokenizer = staticmethod(build_tokenizer)


@pytest.fixture(scope="session")
def kit() -> type[Kit]:
    return Kit
