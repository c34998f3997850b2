"""Keeps secrets out of logs, saved configs and trajectories, and terminal escapes out of the console.

Two rules decide. A *name* that says secret (``api_key``, ``hf_token``, ``password``) hides the text stored under
it. A *shape* that only keys have (``sk-…``, ``hf_…``, ``AKIA…``, a bearer token) is hidden wherever it stands. Plain
hashes have neither, so task ids, config hashes and checksums stay readable.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

REDACTED = "[redacted]"

# ---------------------------------------------------------------- names

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SECRET_NAME = re.compile(
    r"(?:^|_)(?:secrets?|passwords?|passwd|passphrase|passcode|authorization|credentials?|cookies?|apikeys?|token"
    r"|authtoken|accesstoken"
    r"|(?:api|access|private|secret|auth|signing|encryption|account|ssh|license|wandb|openai|anthropic|hf)_keys?)$"
)
_TOKENIZER_NAME = re.compile(
    r"(?:^|_)(?:pad|padding|eos|bos|unk|mask|sep|cls|stop|end|start|begin|final|turn|image|audio|video|special|per|next"
    r"|first|last|each|every|prefix|suffix|think|vocab|vocabulary|new|single|by|word|sub|text)_token$"
)
"""Names that speak of a tokenizer, not of an account: ``eos_token``, ``loss_per_token``."""


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Whether text stored under `name` should be hidden; ``max_tokens``, ``token_ids`` and ``eos_token`` are not."""
    plain = "_".join(word.lower() for word in _WORD.findall(name))
    return _SECRET_NAME.search(plain) is not None and _TOKENIZER_NAME.search(plain) is None


# ---------------------------------------------------------------- shapes

_SHAPES = (
    r"sk-(?=[\w-]*[0-9A-Z]|[a-z]{20})[\w-]{16,}",
    r"hf_[A-Za-z0-9]{16,}",
    r"gh[pousr]_[A-Za-z0-9]{16,}",
    r"github_pat_\w{20,}",
    r"glpat-[\w-]{16,}",
    r"wandb_v\d_\w{16,}",
    r"(?:AKIA|ASIA)[0-9A-Z]{16}",
    r"xox[abprs]-[\w-]{10,}",
    r"AIza[\w-]{30,}",
    r"eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*",
    r"(?<=[Bb]earer )(?=[\w.~+/=-]*\d)[\w.~+/=-]{16,}",
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    r"(?<=://)[^\s/:@\"\\]+:[^\s/@\"\\]+(?=@)",
)
_HINTS = (
    *("sk-", "hf_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "wandb_v"),
    *("AKIA", "ASIA", "xox", "AIza", "eyJ", "earer ", "PRIVATE KEY-", "://"),
)
_HINT_BYTES = tuple(hint.encode() for hint in _HINTS)
_ANY_SHAPE_BYTES = re.compile("|".join(_SHAPES).encode(), re.ASCII)
_SHAPE_AT_WORD_START = re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(_SHAPES)})", re.ASCII)


def may_hold_key(line: bytes) -> bool:
    """Whether encoded JSON may hold something shaped like a key: never a false no, seldom a false yes."""
    return any(hint in line for hint in _HINT_BYTES) and _ANY_SHAPE_BYTES.search(line) is not None


def mask_keys(text: str) -> str:
    """Replaces what has the shape of a well-known key; everything else is returned as it came."""
    if not any(hint in text for hint in _HINTS):
        return text
    return _SHAPE_AT_WORD_START.sub(REDACTED, text)


_ASSIGNMENT = re.compile(
    r"""(?<![\w.-])(?P<name>[\w.-]{0,60}?(?:key|token|secret|password|passwd|passphrase|authorization|credentials?))"""
    r"""(?P<sign>["']?\s*[=:]\s*["']?)(?P<value>(?:[Bb]earer\s+|[Bb]asic\s+)?[^\s"',;&}\]]{6,})""",
    re.IGNORECASE,
)

_TRACKER_KEY = re.compile(r"[0-9a-f]{40}")
"""wandb's older keys; the shape alone is a Git commit, so it counts only next to a word for a key."""
_SPOKEN_KEY = re.compile(rf"((?:api[ _-]?key|password)\W{{1,12}}){_TRACKER_KEY.pattern}\b", re.IGNORECASE)


def redact_text(text: str) -> str:
    """Hides key shapes and what is assigned to a secret name (``WANDB_API_KEY=…``, ``"password": "…"``) in prose.

    For logs, error text and command lines. Trajectories get `mask_keys` alone: a job may well be about passwords.
    """
    return _SPOKEN_KEY.sub(rf"\1{REDACTED}", _ASSIGNMENT.sub(_hide_assigned, mask_keys(text)))


def _hide_assigned(match: re.Match[str]) -> str:
    if not is_secret_name(match["name"]) or match["value"].startswith(REDACTED[:-1]):
        return match[0]
    return f"{match['name']}{match['sign']}{REDACTED}"


# ---------------------------------------------------------------- values

_PLAIN = frozenset({int, float, bool, type(None)})


def redact(value: Any) -> Any:
    """A copy of `value` (mappings, lists, tuples, strings, nested at will) with secrets replaced by ``[redacted]``.

    Lists of numbers come back as the same object, so long id lists cost one look at their types. Objects of other
    types (arrays, paths) are returned untouched; turn records into mappings first.
    """
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, Mapping):
        return {_redact_name(name): _redact_under(name, item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        if _PLAIN.issuperset(map(type, value)):
            return value
        return _rebuild(value, (redact(item) for item in value))
    return value


def _redact_name(name: Any) -> Any:
    return mask_keys(name) if isinstance(name, str) else name


def _redact_under(name: Any, value: Any) -> Any:
    if not isinstance(name, str):
        return redact(value)
    if is_secret_name(name):
        return _hide(value, numbers_too=not name.lower().endswith("token"))
    if name.lower().endswith("key") and isinstance(value, str) and _TRACKER_KEY.fullmatch(value):
        return REDACTED
    return redact(value)


def _hide(value: Any, *, numbers_too: bool) -> Any:
    """Hides every text below a secret name; numbers too unless the name could mean a count (``token: 5``)."""
    if isinstance(value, str | bytes):
        return REDACTED if value else value
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float):
        return REDACTED if numbers_too else value
    if isinstance(value, Mapping):
        return {name: _hide(item, numbers_too=numbers_too) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return _rebuild(value, (_hide(item, numbers_too=numbers_too) for item in value))
    return value


def _rebuild(old: Iterable[Any], items: Iterable[Any]) -> Any:
    if isinstance(old, list):
        return list(items)
    return tuple(items) if isinstance(old, tuple) else set(items)


# ---------------------------------------------------------------- console

_ESCAPES = re.compile(
    r"\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)?"  # OSC: window titles, links, clipboard
    r"|\x1b[PX^_][^\x1b\n]*(?:\x1b\\)?"  # DCS, SOS, PM, APC
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # CSI: colours, cursor moves, erasing
    r"|\x1b[ -/]*[0-~]?"  # two-character escapes
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"  # other control characters; tab and newline stay
)


def strip_ansi(text: str) -> str:
    """Removes terminal escapes and control characters (not tab and newline), so that model text cannot drive a console.

    Carriage returns and backspaces go too: they can overwrite what stands before them (case H11).
    """
    return _ESCAPES.sub("", text)
