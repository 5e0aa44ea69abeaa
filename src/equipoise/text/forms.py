"""One form for equal answers, so that from here on equality of answers is equality of strings.

Two answers are made equal only where that is safe: a wrong merge makes a vote for something nobody said, a missed merge only
splits one. Numbers are exact rationals; symbolic expressions are tidied, never computed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from equipoise.text.numerals import is_plain, same_number
from equipoise.text.tidy import tidy_text

MAX_CHARS = 10_000  # a longer "answer" is a dump of something else
MAX_PASSES = 12
CACHED = 1024  # answers whose form is remembered: the rollouts of a group give few different ones

_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}")
_FUNCTIONS = {
    *("sin", "cos", "tan", "cot", "sec", "csc", "log", "exp", "sqrt", "arcsin", "arccos", "arctan"),
    *("max", "min", "mod", "gcd", "lcm", "abs", "floor", "ceil"),
}
_YES_NO = ("yes", "no", "true", "false", "none")
_LETTER_OPTION = re.compile(r"\(([A-J])\)|([A-J])\)|(?:option|choice) \(?([A-J])\)?", re.IGNORECASE)
_OPTION_TEXT = re.compile(r"\(?([A-J])\)(?!.*\b[A-J]\)) ?[^-+*/=^<>,()\s].*")  # not "(A) and (C)"
_LOOSE = re.compile(r" (?=[\Wπ])|(?<=[\Wπ]) ")  # a space beside a sign; one between two words stays
_BRACED_POWER = re.compile(r"([\^_])\{(-?\w+)\}(?!\w)")
_PLAIN_FRACTION = re.compile(r"(-?)\\frac\{([0-9]*(?:[A-Za-zπ]|\\sqrt\{[0-9A-Za-z]+\}))\}\{([0-9]+)\}")
_LISTED_FRACTION = re.compile(r"(?:(?<=[,(\[{=-])|^)\\frac\{[0-9.]+\}\{[0-9.]+\}(?=$|[,)\]}])")
_SEPARATOR = re.compile(r"([,()\[\]{}])")
_COMMA = re.compile(r" ?, +")
_CAPITALISED = re.compile(r"(?<![A-Za-z0-9_])[A-Z][a-z]+(?![A-Za-z])")
_OTHER_CAPITAL = re.compile(r"[A-Z](?:(?![a-z])|(?<=[A-Za-z0-9_][A-Z])|[a-z]+[A-Z])")
_CAPITALS = re.compile(r"\b[A-Z]{2,5}\b")
_ARITHMETIC = re.compile(r"[-+*/^(). 0-9{}]*")
_VARIABLE = re.compile(r"[A-Za-z](?:_\w{1,8})?")


def canonical(raw: str) -> str | None:
    r"""The one form of an answer: `canonical(a) == canonical(b)` says that they are the same answer. None: there is none.

    `1/2`, `0.5`, `\frac12` and `$\dfrac{1}{2}$` are one, so are `1,234` and `1234`, `21+49=70` and `70`, `x = 5` and `5`,
    `(B)` and `B`, `$18` and `18`, `45^\circ` and `45`, `Yes.` and `yes`. Kept apart: `50%` and `0.5`, other units, `1, 2` and
    `12`, `0.333` and `1/3`, `007` and `7` (a code may start with 0). Sets and lists keep their order. Idempotent.
    """
    return raw if is_plain(raw) else _settle(raw, _rewrite)


def canonical_expression(raw: str) -> str | None:
    r"""The one form of an arithmetic expression given as the answer (Countdown, Game of 24): spelling only, no value.

    `(6 − 4) × 5 = 10` and `$(6-4)*5$` are both `(6-4)*5`: here, unlike in `canonical`, the left side is what was asked for.
    """
    return _settle(raw, _rewrite_expression)


def _settle(text: str, rewrite: Callable[[str], str]) -> str | None:
    """All rules, again and again until nothing changes: that makes a form idempotent."""
    return None if len(text) > MAX_CHARS else _settled(text, rewrite)


@lru_cache(maxsize=CACHED)
def _settled(text: str, rewrite: Callable[[str], str]) -> str | None:
    for _ in range(MAX_PASSES):
        settled = rewrite(text)
        if len(settled) > MAX_CHARS:
            return None
        if settled == text or is_plain(settled):
            return settled or None
        text = settled
    return None  # a text that never settles has no form of its own


def _rewrite_expression(text: str) -> str:
    text = tidy_text(text)
    if _is_prose(text):
        return _fold_words(text)  # "Not possible" is an answer too
    left, *right = text.split("=")
    if left.strip() and all(_ARITHMETIC.fullmatch(side) for side in right):
        text = left
    return "".join(text.split())


def _rewrite(text: str) -> str:
    text = tidy_text(text)
    number = same_number(text)
    if number is not None:
        return number
    option = _LETTER_OPTION.fullmatch(text) or _OPTION_TEXT.fullmatch(text)
    if option:
        return str(option[option.lastindex or 0]).upper()
    if text.lower() in _YES_NO:
        return text.lower()
    return _fold_words(text) if _is_prose(text) else _tighten(text)


def _is_prose(text: str) -> bool:
    if any(sign in text for sign in "+*/^=\\"):
        return False
    return any(match[0].lower() not in _FUNCTIONS for match in _WORD.finditer(text))


def _fold_words(text: str) -> str:
    """Capitalised words in lower case; names in capitals, single letters and mixed case may mean something."""
    if "," in text:
        text = _COMMA.sub(", ", text)
    if text.isascii() and _OTHER_CAPITAL.search(text) is None:
        return text.lower()  # what the two lines below come to, for a long list of moves at a tenth of the cost
    text = _CAPITALISED.sub(lambda match: match[0].lower(), text)
    return _CAPITALS.sub(lambda match: match[0].lower() if match[0].lower() in _YES_NO else match[0], text)


def _tighten(text: str) -> str:
    """A formula, a list or a set without loose spaces, the numbers of a list in their one form."""
    text = _right_side(_BRACED_POWER.sub(r"\1\2", _LOOSE.sub("", text)))
    if _PLAIN_FRACTION.fullmatch(text):
        text = _PLAIN_FRACTION.sub(r"\1\2/\3", text)
    if "," in text:
        text = _LISTED_FRACTION.sub(lambda match: same_number(match[0]) or match[0], text)
        parts = _SEPARATOR.split(text)
        text = "".join(", " if part == "," else same_number(part.strip()) or part.strip() for part in parts).strip()
    return text


def _right_side(text: str) -> str:
    """`21+49=70` and `x=5` say 70 and 5; any other equation is itself the answer."""
    *left, right = text.split("=")
    number = same_number(right) if left else None
    if number is None:
        return text
    sums = all(_ARITHMETIC.fullmatch(side) and any(c.isdigit() for c in side) for side in left)
    return number if sums or (len(left) == 1 and _VARIABLE.fullmatch(left[0])) else text
