"""Whole numbers in Chinese characters."""

from __future__ import annotations

import re

_DIGITS = {"零": 0, "〇": 0, "一": 1, "二": 2, "两": 2, "三": 3, "四": 4, "五": 5, "六": 6, "七": 7, "八": 8, "九": 9}
_TENS = {"十": 10, "百": 100, "千": 1000}
_LARGE = {"亿": 10**8, "万": 10**4}
_SECTION = re.compile(
    "(?:([一二两三四五六七八九])千)?(零)?(?:([一二两三四五六七八九])百)?(零)?"
    "(?:([一二三四五六七八九])?十)?(零)?([一二两三四五六七八九])?"
)


def chinese_number(text: str) -> int | None:
    """The whole number that all of `text` is, e.g. 四十二 → 42; None if it is anything else."""
    text = text.strip()
    if not text or set(text) - _DIGITS.keys() - _TENS.keys() - _LARGE.keys():
        return None
    return _read(text, list(_LARGE.items()))


def _read(text: str, scales: list[tuple[str, int]]) -> int | None:
    for index, (mark, size) in enumerate(scales):
        if mark in text:
            high, _, low = text.partition(mark)
            left = _read(high, scales[index + 1 :])
            right = _read(low, scales[index + 1 :]) if low else 0
            return None if not left or right is None else left * size + right
    if text in ("零", "〇"):
        return 0
    match = _SECTION.fullmatch(text)
    if match is None:
        return None
    thousands, _, hundreds, _, tens, _, ones = match.groups()
    ten = "十" in text
    return (
        1000 * _DIGITS.get(thousands or "", 0)
        + 100 * _DIGITS.get(hundreds or "", 0)
        + 10 * (_DIGITS[tens] if tens else int(ten))
        + _DIGITS.get(ones or "", 0)
    )
