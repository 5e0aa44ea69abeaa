"""Model text for terminals."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.errors import UsageError
from equipoise.text.display import many, noun, safe_text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain é 中 😀", "plain é 中 😀"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("a\x1b]0;new title\x07b", "ab"),
        ("a\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\b", "alinkb"),
        ("a\x9b2Jb\x1bcd", "abd"),
        ("two\r\n\tlines", "two lines"),
        ("a\u202ecba\u2069\u200b", "acba"),
        ("bell\x07 null\x00 del\x7f", "bell null del"),
        ("half \ud800", "half \ufffd"),
        ("", ""),
    ],
)
def test_what_is_shown(text, expected):
    assert safe_text(text, 80) == expected


def test_shortened_with_an_ellipsis():
    assert safe_text("abcdef", 6) == "abcdef"
    assert safe_text("abcdefg", 6) == "abcde…"
    assert safe_text("abcd efg", 6) == "abcd…"
    assert safe_text("abc", 1) == "…"
    assert safe_text("x" * 10**7, 10) == "x" * 9 + "…"


def test_counts_have_their_nouns():
    assert [many(n, "problem") for n in (0, 1, 2, 1234)] == ["0 problems", "1 problem", "2 problems", "1,234 problems"]
    assert [many(n, "study", plural="studies") for n in (1, 2)] == ["1 study", "2 studies"]
    assert [noun(n, "rollout") for n in (1, 11)] == ["rollout", "rollouts"]


def test_a_limit_below_one_is_refused():
    with pytest.raises(UsageError, match="0 characters"):
        safe_text("a", 0)


@given(st.text() | st.text("\x1b[]0m;\x07\x9b\n ab\u202e"), st.integers(1, 40))
def test_safe_short_and_printable(text, limit):
    shown = safe_text(text, limit)
    assert len(shown) <= limit
    shown.encode()
    assert not any(
        unicodedata.category(c) in ("Cc", "Cs") or unicodedata.bidirectional(c) in ("RLO", "LRO", "RLE", "LRE", "PDF")
        for c in shown
    )
