"""Thinking and what the reader sees."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.text.thinking import TAGS, split_thinking


@pytest.mark.parametrize(("opening", "closing"), TAGS)
def test_every_tag_pair_in_any_case(opening, closing):
    for text in (f"{opening}a b{closing} c", f"{opening.upper()}a b{closing.upper()} c"):
        split = split_thinking(text)
        assert (split.thinking, split.answer, split.closed) == ("a b", "c", True)


@pytest.mark.parametrize(
    ("text", "thinking", "answer", "closed"),
    [
        ("plain answer ", None, "plain answer", None),
        ("", None, "", None),
        ("hm, 3?</think>\n\n4", "hm, 3?", "4", True),  # the opening tag stood in the prompt
        ("<think>cut off in the", "cut off in the", "", False),
        ("<think></think>4", "", "4", True),
        ("Sure. <think>a</think>b<think>c</think>d", "a\nc", "Sure. bd", True),
        ("<think>a</think>b<think>c", "a\nc", "b", False),
        ("<think>a <think> b</think> c", "a <think> b", "c", True),
        ("a</think>b</think>c", "a", "b</think>c", True),
        ("<thinking>a <think> b</thinking>c", "a <think> b", "c", True),
        (
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>4",
            *("hm", "4", True),
        ),
        ("I think > 3 [thinking] of it", None, "I think > 3 [thinking] of it", None),
    ],
)
def test_split(text, thinking, answer, closed):
    split = split_thinking(text)
    assert (split.thinking, split.answer, split.closed) == (thinking, answer, closed)


def test_spans_point_at_the_blocks():
    text = "İ<think>one</think> x <THINK>two"
    assert [text[start:end] for start, end in split_thinking(text).spans] == ["one", "two"]


@given(
    st.lists(
        st.sampled_from(["<think>", "</think>", "[think]", "a", " ", "İ", "<|channel|>"]) | st.text(max_size=3)
    ).map("".join)
)
def test_never_raises_and_spans_are_ordered(text):
    split = split_thinking(text)
    ends = [edge for span in split.spans for edge in span]
    assert ends == sorted(ends)
    assert all(0 <= edge <= len(text) for edge in ends)
    assert (split.thinking is None) == (split.closed is None) == (not split.spans)
