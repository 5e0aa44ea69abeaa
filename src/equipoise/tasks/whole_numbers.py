"""Answers that are lists of small whole numbers."""

from __future__ import annotations

import re

from equipoise.text.tidy import tidy_text

MAX_CHARS = 1000
_LIST = re.compile(r"[\[({]?\s*([0-9]{1,4}(?:\s*[,; ]\s*[0-9]{1,4})*)\s*[\])}]?")
_NUMBER = re.compile(r"[0-9]+")


def listed_form(text: str, length: int) -> str | None:
    """`2,4,1,3` for `[2, 4, 1, 3]`, `2 4 1 3` and the like; None where there are not exactly `length` numbers."""
    if len(text) > MAX_CHARS:
        return None
    found = _LIST.fullmatch(tidy_text(text).strip())
    numbers = whole_numbers(found[1]) if found else []
    return ",".join(map(str, numbers)) if len(numbers) == length else None


def whole_numbers(text: str) -> list[int]:
    return [int(digits) for digits in _NUMBER.findall(text)]
