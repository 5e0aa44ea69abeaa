"""Errors raised on purpose. The command line prints a `UsageError` as one line and exits with 2."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

MOST_LISTED = 24  # names after "known are" where a near one can be offered


class UsageError(ValueError):
    """Bad input: the message says what was asked, what was found and what would work."""


class UsageErrors(UsageError):
    """Several problems told at once, one line each: all that is wrong with a config."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = tuple(lines)
        super().__init__("\n".join(self.lines))


class NoRoom(UsageError):
    """A prompt that leaves a model no room for an answer."""


class MissingExtra(UsageError):
    """An optional dependency is not installed; the message is the pip line that installs it."""

    def __init__(self, extra: str, *, needed_for: str) -> None:
        super().__init__(f"{needed_for} needs the extra '{extra}': pip install 'equipoise[{extra}]'")


def same_shape(**arrays: Any) -> None:
    """Refuse silent broadcasting: every named array must have one shape."""
    if len({tuple(a.shape) for a in arrays.values()}) > 1:
        seen = ", ".join(f"{name} {tuple(a.shape)}" for name, a in arrays.items())
        raise UsageError(f"these must share one shape: {seen}")


def unknown_name(what: str, asked: str, known: Iterable[str]) -> UsageError:
    """The error for a name that is not in a table, with the nearest names that are."""
    known = sorted(known)
    close = get_close_matches(asked, known, n=1)
    if close and len(known) > MOST_LISTED:  # a screen full of names would hide the one that was meant
        return UsageError(f"unknown {what} '{asked}': did you mean '{close[0]}'? {len(known)} are known")
    hint = f"did you mean '{close[0]}'? " if close else ""
    return UsageError(f"unknown {what} '{asked}': {hint}known are {', '.join(known)}")
