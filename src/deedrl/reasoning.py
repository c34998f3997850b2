"""The tags that model families put around what they think before they act: one closed list for parser and renderer."""

from __future__ import annotations

import re

REASONING_TAGS = (
    ("<think>", "</think>"),  # Qwen, DeepSeek-R1, GLM, Phi-4-reasoning
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),  # EXAONE Deep
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),  # Seed-OSS
    ("[THINK]", "[/THINK]"),  # Magistral
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Command A Reasoning
    ("◁think▷", "◁/think▷"),  # Kimi-VL
)
"""Opening and closing tag of each family; case does not matter."""

OPENING_TAG = "|".join(re.escape(opening) for opening, _ in REASONING_TAGS)
"""Pattern of any opening tag, for use with `re.IGNORECASE`."""
CLOSING_TAG = "|".join(re.escape(closing) for _, closing in REASONING_TAGS)
"""Pattern of any closing tag, for use with `re.IGNORECASE`."""
