"""How a text searches: wide (many candidates opened, then looked into) or deep (one followed until it breaks).

The poles come from judged labels (CoT Encyclopedia, https://arxiv.org/abs/2505.10185): multiple-choice training gave
breadth-first, free-form training depth-first reasoning. These are proxies by marker phrases; they grow with length, so compare
texts of like length.
"""

from __future__ import annotations

from dataclasses import dataclass

from equipoise.text.phrases import Folded, Phrases, fold, words_between

ELABORATED_WORDS = 40  # words on one candidate that count as looking into it
_LABELS = ("option", "approach", "method", "case", "candidate", "possibility", "idea", "attempt", "strategy", "path")
_NUMBERS = ("0", "a", "b", "c", "d", "one", "two", "three")  # the fold writes every digit as 0
_ORDINALS = ("first", "second", "third", "another", "next")
NAMED = tuple(f"{label} {number}" for label in _LABELS for number in _NUMBERS)
ORDERED = tuple(f"{ordinal} {label}" for label in _LABELS for ordinal in _ORDINALS)
MARKERS = {
    "label": NAMED + ORDERED,
    "open": (
        *("try", "trying", "alternatively", "what if", "suppose", "another way", "a different way", "one way"),
        *("we could also", "i could also", "let's consider", "let me consider"),
        *("or maybe", "maybe i can", "maybe we can"),
    ),
    "verify": (
        *("check", "checking", "verify", "verifying", "verification", "test", "testing", "plug back", "plugging back"),
        *("substitute back", "substituting back", "this works", "that works", "which works", "it works"),
    ),
    "abandon": (
        *("doesn't work", "does not work", "didn't work", "don't work", "won't work", "not working", "no good"),
        *("fails", "failed", "dead end", "go back", "going back", "start over", "discard", "reject"),
        *("not valid", "invalid", "not possible", "impossible", "not correct", "incorrect", "not right", "wrong"),
        *("contradiction", "contradicts", "ruled out", "rule out", "too big", "too small", "too large", "not equal to"),
        *("not 0", "not 00", "not 000"),
    ),
}
_TABLE = Phrases(MARKERS)


@dataclass(frozen=True, slots=True)
class SearchProfile:
    """Counts over marker phrases; None where there was nothing to average or divide by."""

    opened: int  # candidates opened before the first of them is looked into
    opened_total: int
    verified: int
    abandoned: int
    mean_branch_depth: float | None  # words from a branch marker to the next verify or abandon marker
    breadth: float | None  # opened_total / verified


def profile_search(text: str) -> SearchProfile:
    """Breadth and depth of the search a text describes.

    A candidate is looked into once `ELABORATED_WORDS` words follow it without the next one, once something is verified or
    abandoned, or once one is named a second time ("option 1" after "option 2"), which opens no new candidate.
    """
    return profile_folded(text, fold(text))


def profile_folded(text: str, folded: Folded) -> SearchProfile:
    """`profile_search` for a text that is folded already."""
    shape = folded.shape()
    opened_at: list[int] = []
    closed_at: list[int] = []
    named: set[str] = set()
    verified = abandoned = 0
    opened: int | None = None  # still counting
    for span in _TABLE.find(folded):
        if span.kind in ("verify", "abandon"):
            verified += span.kind == "verify"
            abandoned += span.kind == "abandon"
            closed_at.append(span.start)
            if opened_at and opened is None:
                opened = len(opened_at)
            continue
        again = False
        if span.kind == "label":
            name = text[span.start : span.end].lower()  # the fold gave every option the number 0
            again = name in named
            named.add(name)
        if (
            opened is None
            and opened_at
            and (again or words_between(shape, opened_at[-1], span.start) > ELABORATED_WORDS)
        ):
            opened = len(opened_at)
        if not again:
            opened_at.append(span.start)
    depths = _depths(opened_at, closed_at, shape)
    return SearchProfile(
        opened=len(opened_at) if opened is None else opened,
        opened_total=len(opened_at),
        verified=verified,
        abandoned=abandoned,
        mean_branch_depth=sum(depths) / len(depths) if depths else None,
        breadth=len(opened_at) / verified if verified else None,
    )


def _depths(opened_at: list[int], closed_at: list[int], shape: bytes) -> list[int]:
    """Words from each opening to the next closing; openings after the last closing have no depth."""
    marks = sorted([(at, True) for at in opened_at] + [(at, False) for at in closed_at])
    depths: list[int] = []
    to_next = 0  # words from the mark at hand to the next closing
    closing_seen = False
    following = 0
    for at, is_open in reversed(marks):
        to_next += words_between(shape, at, following) if closing_seen else 0
        following = at
        if not is_open:
            closing_seen, to_next = True, 0
        elif closing_seen:
            depths.append(to_next)
    return depths
