"""Strategic grams and their tokens."""

from __future__ import annotations

import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.errors import UsageError
from equipoise.text.phrases import MAX_PHRASE, PIECE, Phrases, Span, count_words, fold, lower_aligned, words_between
from equipoise.text.planning import GRAMS, count_grams, planning_spans, spans_to_tokens, token_offsets

ALL_GRAMS = [gram for grams in GRAMS.values() for gram in grams]


def test_the_table_is_what_the_docstring_says():
    assert set(GRAMS) == {"deduction", "branching", "backtracing"}
    assert len(ALL_GRAMS) == len(set(ALL_GRAMS)) >= 60
    assert all(1 <= len(gram.split()) <= 5 for gram in ALL_GRAMS)


def test_spans_carry_kind_gram_and_place():
    text = "Wait, let’s try\nanother. This means that x=2."
    found = [(s.kind, s.gram, text[s.start : s.end]) for s in planning_spans(text)]
    assert found == [
        ("backtracing", "wait", "Wait"),
        ("branching", "let's try", "let’s try"),
        ("deduction", "this means that", "This means that"),
    ]


def test_whole_words_only_and_the_longer_of_two():
    assert planning_spans("waiting awaits the waiter, thence") == []
    assert [s.start for s in planning_spans("waiting awaits: wait")] == [16]
    assert [s.gram for s in planning_spans("We try another approach, a different approach.")] == [
        "try another approach",
        "a different approach",
    ]


def test_counts():
    assert count_grams("Wait. wait! WAIT, therefore") == {"wait": 3, "therefore": 1}


def slow_spans(text: str) -> list[tuple[int, int]]:
    """Every gram by its own regular expression, then the earliest and longest first."""
    flat = re.sub(r"[^a-z0-9']", " ", text.lower().replace("’", "'"))
    hits = []
    for gram in ALL_GRAMS:
        for match in re.finditer(rf"(?<![a-z0-9']){re.escape(gram)}(?![a-z0-9'])", flat):
            hits.append(match.span())
    kept: list[tuple[int, int]] = []
    for start, end in sorted(hits, key=lambda hit: (hit[0], -hit[1])):
        if not kept or start >= kept[-1][1]:
            kept.append((start, end))
    return kept


words = st.sampled_from([w for gram in ALL_GRAMS for w in gram.split()] + ["x", "12", "Wait", "é", "...", "(so)", "\n"])


@given(st.lists(words | st.sampled_from(ALL_GRAMS), max_size=40).map(" ".join))
def test_the_fast_search_finds_what_a_slow_one_finds(text):
    assert [(s.start, s.end) for s in planning_spans(text)] == slow_spans(text)


@pytest.mark.parametrize("shift", range(-30, 4))
def test_a_gram_across_two_pieces_is_found_once(shift):
    text = "." * (PIECE + shift) + " what if we " + "." * 100 + " wait"
    assert [(s.gram, text[s.start : s.end]) for s in planning_spans(text)] == [
        ("what if we", "what if we"),
        ("wait", "wait"),
    ]


@given(st.text())
def test_spans_lie_inside_any_text(text):
    for span in planning_spans(text + " Wait " + text):
        assert 0 <= span.start < span.end <= 2 * len(text) + 6


def test_a_table_of_ones_own_and_a_phrase_that_cannot_be_searched():
    assert [s.gram for s in planning_spans("Step 12: go", table=Phrases({"mine": ["step 00"]}))] == ["step 00"]
    for phrase in ("为什么", "", "a" * MAX_PHRASE):
        with pytest.raises(UsageError, match="cannot be searched for"):
            Phrases({"mine": [phrase]})


def test_only_one_character_grows_when_lowered():
    # `lower_aligned` rests on this; a new Unicode version could change it.
    grows = [chr(c) for c in range(sys.maxunicode + 1) if len(chr(c).lower()) != 1]
    assert grows == ["\u0130"]
    assert len(lower_aligned("İx")) == 2


@given(st.text() | st.text("ab 1\n\t\x1c."))
def test_words_are_counted_as_split_counts_them(text):
    assert count_words(text) == len(text.split())


def test_words_between_two_places():
    folded = fold("one two, three 45 six")
    assert words_between(folded.shape(), 0, 21) == 5
    assert words_between(folded.shape(), 4, 10) == 2  # two and three begin here
    assert words_between(folded.shape(), 5, 9) == 0


def test_tokens_that_overlap_a_span_belong():
    # "Wait, let me try" as a vocabulary might cut it: the span of "let me try" is characters 6 to 16.
    tokens = ["W", "ait", ",", " le", "t", " me", " tr", "ying", "", "!"]
    offsets = token_offsets(tokens)
    assert offsets == [(0, 1), (1, 4), (4, 5), (5, 8), (8, 9), (9, 12), (12, 15), (15, 19), (19, 19), (19, 20)]
    spans = [Span("branching", "let me try", 6, 16)]
    assert spans_to_tokens(spans, offsets) == [False, False, False, True, True, True, True, True, False, False]


def test_a_span_that_ends_where_a_token_begins_does_not_touch_it():
    assert spans_to_tokens([Span("k", "g", 2, 4)], [(0, 2), (2, 4), (4, 6)]) == [False, True, False]
    assert spans_to_tokens([], [(0, 2)]) == [False]
    assert token_offsets([]) == []


spans = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 8)).map(lambda s: Span("k", "g", s[0], s[0] + s[1])), max_size=6
)
offsets = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5)).map(lambda o: (o[0], o[0] + o[1])), max_size=12)


@given(spans, offsets)
def test_tokens_against_a_character_by_character_loop(spans, offsets):
    inside = {place for span in spans for place in range(span.start, span.end)}
    assert spans_to_tokens(spans, offsets) == [any(place in inside for place in range(*token)) for token in offsets]
