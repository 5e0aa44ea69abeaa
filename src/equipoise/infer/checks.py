"""What strategies refuse in their settings."""

from __future__ import annotations

from typing import get_args

from equipoise.errors import UsageError, unknown_name


def check_word(what: str, word: str, known: object) -> None:
    """Refuse a setting that is not one of the words of a Literal."""
    if word not in get_args(known):
        raise unknown_name(what, word, get_args(known))


def check_count(what: str, n: int, *, least: int = 1) -> None:
    if n < least:
        raise UsageError(f"{what} is {least} or more, found {n}")


def check_share(what: str, share: float) -> None:
    if not 0 < share <= 1:
        raise UsageError(f"{what} is a share above 0 and at most 1, found {share}")
