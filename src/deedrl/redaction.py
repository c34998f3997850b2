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

_KEY_SHAPES = {
    "sk-": r"sk-(?=[\w-]*[0-9A-Z]|[a-z]{20})[\w-]{16,}",
    "hf_": r"hf_[A-Za-z0-9]{16,}",
    **{f"gh{kind}_": rf"gh{kind}_[A-Za-z0-9]{{16,}}" for kind in "pousr"},
    "github_pat_": r"github_pat_\w{20,}",
    "glpat-": r"glpat-[\w-]{16,}",
    "wandb_v": r"wandb_v\d_\w{16,}",
    "gsk_": r"gsk_[A-Za-z0-9]{16,}",
    "r8_": r"r8_[A-Za-z0-9]{16,}",
    "npm_": r"npm_[A-Za-z0-9]{30,}",
    "lsv2_": r"lsv2_[a-z]{2}_\w{16,}",
    "k_live_": r"[rs]k_live_[A-Za-z0-9]{16,}",
    "nvapi-": r"nvapi-[\w-]{16,}",
    "xai-": r"xai-[A-Za-z0-9]{16,}",
    "pplx-": r"pplx-[A-Za-z0-9]{16,}",
    "pypi-": r"pypi-AgE[\w-]{16,}",
    "AKIA": r"AKIA[0-9A-Z]{16}",
    "ASIA": r"ASIA[0-9A-Z]{16}",
    "xox": r"xox[abprs]-[\w-]{10,}",
    "AIza": r"AIza[\w-]{30,}",
    "eyJ": r"eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*",
    "-----BEGIN ": r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
}
_SHAPES_AFTER_A_WORD = {
    "earer ": r"earer (?=[\w.~+/=-]*\d)[\w.~+/=-]{16,}",
    "://": r"://[^\s/:@\"\\]+:[^\s/@\"\\]+(?=@)",
}
"""These keep the word that introduces them: ``Bearer``, the scheme of a URL with a password."""

# One pattern a shape, each led by plain characters: `in` and `re` then search at memory speed, an alternation does not.
_WHOLE = [(hint, re.compile(shape, re.ASCII)) for hint, shape in _KEY_SHAPES.items()]
_INTRODUCED = [(hint, re.compile(shape, re.ASCII)) for hint, shape in _SHAPES_AFTER_A_WORD.items()]


_HINTS = [
    re.compile(hint)
    for hint in (
        "_(?:(?<=hf_)|(?<=gh[pousr]_)|(?<=github_pat_)|(?<=wandb_)|(?<=gsk_)|(?<=r8_)|(?<=npm_)|(?<=lsv2_)|(?<=k_live_))",
        "-(?:(?<=sk-)|(?<=glpat-)|(?<=-----)BEGIN|(?<=nvapi-)|(?<=xai-)|(?<=pplx-)|(?<=pypi-))",
        "A(?:KIA|SIA|Iza)",
        "xox",
        "J(?<=eyJ)",
        "earer ",
        "://",
    )
]
"""At least one of these is found in every text that holds a key; far fewer searches than there are shapes."""


def holds_key(text: str) -> bool:
    """Whether `mask_keys` would change `text`."""
    return any(hint.search(text) for hint in _HINTS) and mask_keys(text) != text


def mask_keys(text: str) -> str:
    """Replaces what has the shape of a well-known key; everything else is returned as it came."""
    for hint, shape in _WHOLE:
        if hint in text:
            text = shape.sub(_mask_at_word_start, text)
    for hint, shape in _INTRODUCED:
        if hint in text:
            text = shape.sub(hint + REDACTED, text)
    return text


def _mask_at_word_start(match: re.Match[str]) -> str:
    inside_a_word = match.start() > 0 and match.string[match.start() - 1].isalnum()
    return match[0] if inside_a_word else REDACTED


_NAME = r"(?P<name>[\w.-]{0,60}?(?:key|token|secret|password|passwd|passphrase|authorization|credentials?))"
_ASSIGNMENT = re.compile(
    rf"""(?<![\w.-]){_NAME}(?P<sign>\\*["']?\s*[=:：]\s*)"""
    r"""(?:(?P<quote>\\*["'])(?P<quoted>(?:(?!(?P=quote))[^\n]){6,200})(?P=quote)"""
    r"""|(?P<open>\\*["']?)(?P<value>(?:bearer\s+|basic\s+)?(?:[^\s"',;&}\]\\]|\\(?!["'])){6,}))""",
    re.IGNORECASE,
)
"""With quotes, which a text inside JSON escapes, the value goes on to the closing one, blanks included."""
_OPTION = re.compile(rf"(?<![\w.-])--{_NAME}(?P<sign>\s+)(?P<value>[^\s-]\S{{5,}})", re.IGNORECASE)
"""``--api-key VALUE`` of a command line."""
_TRACKER_KEY = re.compile(r"[0-9a-f]{40}")
"""wandb's older keys; the shape alone is a Git commit, so it counts only next to a word for a key."""
_SPOKEN_KEY = re.compile(rf"((?:api[ _-]?key|password)\W{{1,12}}){_TRACKER_KEY.pattern}\b", re.IGNORECASE)


def redact_text(text: str) -> str:
    """Hides key shapes and what is assigned to a secret name (``WANDB_API_KEY=…``, ``"password": "…"``) in prose.

    For logs, error text and command lines. Trajectories get `mask_keys` alone: a job may well be about passwords.
    """
    assigned = _ASSIGNMENT.sub(_hide_assigned, mask_keys(text))
    return _SPOKEN_KEY.sub(rf"\1{REDACTED}", _OPTION.sub(_hide_option, assigned))


def loggable(text: str) -> str:
    """`text` of an exception or a tool as it may stand in a log: without secrets and without terminal escapes."""
    return redact_text(strip_ansi(text))


def _hide_assigned(match: re.Match[str]) -> str:
    quote = match["quote"] or ""
    if not is_secret_name(match["name"]) or (match["quoted"] or match["value"]).startswith(REDACTED[:-1]):
        return match[0]
    return f"{match['name']}{match['sign']}{quote or match['open']}{REDACTED}{quote}"


def _hide_option(match: re.Match[str]) -> str:
    return f"--{match['name']}{match['sign']}{REDACTED}" if is_secret_name(match["name"]) else match[0]


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
