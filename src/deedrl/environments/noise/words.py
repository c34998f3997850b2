"""Words of noise: what a tool says instead of its answer, half an answer, and the same answer in other words."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

UNAVAILABLE = (
    "is temporarily unavailable; try again",
    "does not answer at the moment; try again",
    "lost its connection for a moment; try again",
    "is overloaded for a moment; try again",
)
"""What a tool that noise made fail says after its name."""
PARTIAL = "[partial answer: call again for the whole]"
STALE = "[answer of an earlier call: call again for the current one]"

SYNONYMS: Mapping[str, str] = MappingProxyType(
    {
        "shows": "displays",
        "show": "display",
        "found": "located",
        "needs": "requires",
        "need": "require",
        "because": "since",
        "currently": "now",
        "only": "just",
        "cannot": "can not",
        "begins": "starts",
        "ends": "finishes",
        "each": "every",
        "maybe": "perhaps",
        "whole": "entire",
        "several": "some",
        "allowed": "permitted",
        "wrong": "incorrect",
        "until": "till",
        "but": "yet",
        "gives": "yields",
        "expected": "awaited",
    }
)
"""Replacements that leave a sentence's meaning alone."""

LEADS = ("Answer: ", "This is what came back: ", "Found by the tool: ")

_PLAIN_WORD = re.compile(r"(?<![\w'\"`./@#:=-])[a-z]+(?![\w'\"`/@#:=-]|\.\w)")
"""A word in small letters that is no part of a name, path, address, number or quotation."""
_WORD = re.compile(r"[^\W\d_]+")


def asks_again(observation: str) -> bool:
    """Whether noise asks in `observation` for the same call again."""
    endings = (*UNAVAILABLE, PARTIAL, STALE)
    return any(line.rstrip().endswith(endings) for line in observation.splitlines())


def halved(text: str) -> str | None:
    """The first half of `text` and a note that it is partial; None if it is too short to be halved.

    Lists in JSON lose entries, texts of several lines lose lines, and other texts lose words.
    """
    lines, words = text.splitlines(), text.split(" ")
    value = exact_json(text)
    if isinstance(value, list) and len(value) > 1:
        kept = _dumped(value[: len(value) // 2])
    elif len(lines) > 1:
        kept = "\n".join(lines[: len(lines) // 2])
    elif len(words) >= 6:
        kept = " ".join(words[: len(words) // 2])
    else:
        return None
    return f"{kept}\n{PARTIAL}"


def reworded(text: str, rng: random.Random, kept: Collection[str]) -> str:
    """`text` with another layout, if it is JSON, or with other words; those in `kept` stay as they are."""
    value = exact_json(text)
    if isinstance(value, dict | list):
        return rng.choice((json.dumps(value, ensure_ascii=False, separators=(",", ":")), _dumped(value, indent=1)))

    def replaced(match: re.Match[str]) -> str:
        word = match.group()
        return SYNONYMS[word] if word in SYNONYMS and word not in kept and rng.random() < 0.7 else word

    quoted = '"' in text or "`" in text
    changed = text if quoted else _PLAIN_WORD.sub(replaced, text)
    return rng.choice(LEADS) + changed if changed.strip() and rng.random() < 0.5 else changed


def words_of(*records: Any) -> frozenset[str]:
    """All words, in small letters, in records such as a task or the schemas of tools."""
    return frozenset(word.lower() for text in _texts(msgspec.to_builtins(records)) for word in _WORD.findall(text))


def _texts(value: Any) -> Iterator[str]:
    """The strings in plain data, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, entry in value.items():
            yield str(key)
            yield from _texts(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _texts(entry)


def exact_json(text: str) -> Any:
    """The value of a text that is JSON exactly as tools write it, so that no number would change; else None."""
    if not text.startswith(("{", "[")):
        return None
    try:
        value = json.loads(text)
        return value if _dumped(value) == text else None
    except (ValueError, RecursionError):
        return None


def _dumped(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)
