"""Planning tokens: phrases that steer a solution rather than carry it out, in three kinds.

HICRA (https://arxiv.org/abs/2509.03646) calls them strategic grams, n-grams of 3 to 5 words, mined from a corpus of
solutions; deduction, branching and backtracing are its kinds. The table here is a fixed default written for this package, so
counts from two runs can be compared; pass your own mined table as `table`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import accumulate

from equipoise.text.phrases import Folded, Phrases, Span, fold

GRAMS: dict[str, tuple[str, ...]] = {
    "deduction": (
        "this means that",
        "which means that",
        "it follows that",
        "we know that",
        "we can conclude that",
        "we can see that",
        "this tells us that",
        "this implies that",
        "from this we get",
        "we are given that",
        "since we know that",
        "the key is to",
        "the goal is to",
        "we need to find",
        "we have to find",
        "the next step is",
        "let's break this down",
        "let's break it down",
        "step by step",
        "putting it all together",
        "now we need to",
        "first we need to",
        "in order to find",
        "therefore",
        "hence",
    ),
    "branching": (
        "let me try",
        "let's try",
        "let's consider the case",
        "let me consider",
        "let's consider",
        "what if we",
        "another way to",
        "another approach is",
        "a different approach",
        "try a different",
        "try another approach",
        "on the other hand",
        "one way to",
        "there are two cases",
        "there are several ways",
        "we could also",
        "maybe we can",
        "maybe i can",
        "suppose that",
        "assume that",
        "in the first case",
        "in the second case",
        "alternatively",
        "instead of",
        "perhaps",
    ),
    "backtracing": (
        "wait",
        "hmm",
        "hold on",
        "let me check",
        "let's check",
        "let me verify",
        "let's verify",
        "let me double check",
        "let me recheck",
        "let me recalculate",
        "let me re examine",
        "let me go back",
        "going back to",
        "let me start over",
        "i made a mistake",
        "that's not right",
        "that can't be right",
        "this is not correct",
        "this is a contradiction",
        "this contradicts",
        "that doesn't work",
        "this doesn't work",
        "this does not work",
        "but that would",
        "on second thought",
        "actually",
    ),
}
DEFAULT = Phrases(GRAMS)


def planning_spans(text: str, *, table: Phrases = DEFAULT) -> list[Span]:
    """The strategic grams of a text in order, without overlaps: in case of doubt the earlier, then the longer."""
    return table.find(fold(text))


def planning_spans_in(folded: Folded) -> list[Span]:
    """`planning_spans` with the default table for a text that is folded already."""
    return DEFAULT.find(folded)


def count_grams(text: str, *, table: Phrases = DEFAULT) -> Counter[str]:
    """How often each strategic gram occurs: the distribution whose entropy is HICRA's semantic entropy."""
    return Counter(span.gram for span in planning_spans(text, table=table))


def token_offsets(token_texts: Sequence[str]) -> list[tuple[int, int]]:
    """Characters of each token in `"".join(token_texts)`, the text that spans should then be read from."""
    ends = list(accumulate(map(len, token_texts)))
    return list(zip([0, *ends], ends, strict=False))


def spans_to_tokens(spans: Iterable[Span], offsets: Sequence[tuple[int, int]]) -> list[bool]:
    """Which tokens overlap any span by at least one character.

    A token may begin before a span or end after it (" wait" or "wait," is one token in most vocabularies): it belongs. An
    empty token, as tokenisers report for specials, never does.
    """
    merged: list[list[int]] = []
    for start, end in sorted((span.start, span.end) for span in spans):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(end, merged[-1][1])
        elif start < end:
            merged.append([start, end])
    starts = [start for start, _ in merged]
    belongs = []
    for first, last in offsets:
        before = bisect_right(starts, last - 1) - 1  # the last span that starts inside or before the token
        belongs.append(first < last and before >= 0 and merged[before][1] > first)
    return belongs
