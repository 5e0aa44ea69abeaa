"""One call that reads everything; it must agree with the single readings and survive anything."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.text.answers import read_answer, read_confidence
from equipoise.text.degenerate import find_degenerate
from equipoise.text.display import safe_text
from equipoise.text.formats import classify_format
from equipoise.text.planning import count_grams
from equipoise.text.profile import profile_search
from equipoise.text.reading import read_facts
from equipoise.text.thinking import split_thinking

TEXT = (
    "<think>Let me try 3 + 4 = 7. Wait, that doesn't work. Alternatively 3 * 4 = 12, let me verify: 12 / 4 = 3.</think>\n"
    "Therefore <answer>12</answer>"
)


def test_by_hand():
    facts = read_facts(TEXT)
    assert (facts.format, facts.n_words) == ("tagged", len(TEXT.split()))
    assert (facts.has_thinking, facts.thinking_closed) == (True, True)
    assert (facts.n_operations, facts.repeated_answers, facts.answers_before_work) == (3, 1, False)
    assert (facts.opened, facts.opened_total, facts.verified, facts.abandoned) == (1, 2, 1, 1)
    assert facts.grams == Counter(
        {"let me try": 1, "wait": 1, "that doesn't work": 1, "alternatively": 1, "let me verify": 1, "therefore": 1}
    )
    assert facts.n_planning == 6
    assert facts.flags == ()


pieces = st.sampled_from(
    [
        TEXT,
        "<think>",
        r"\boxed{5}",
        "The answer is 5. ",
        "wait ",
        "option 1 ",
        "9 * 2 ",
        "!",
        "\n",
        "```python\n",
        "İ",
        "é",
    ]
)


@given(st.lists(pieces | st.text(max_size=8), max_size=12).map("".join))
def test_the_one_call_says_what_the_single_calls_say(text):
    facts = read_facts(text)
    answer = read_answer(text)
    found = find_degenerate(text, answer=answer and answer.text)
    profile, thinking = profile_search(text), split_thinking(text)
    assert facts.format == classify_format(text)
    assert facts.grams == count_grams(text)
    assert facts.n_words == len(text.split())
    for name in ("loop_ratio", "repeated_answers", "answers_before_work", "n_operations", "gibberish", "flags"):
        assert getattr(facts, name) == getattr(found, name)
    for name in ("opened", "opened_total", "verified", "abandoned"):
        assert getattr(facts, name) == getattr(profile, name)
    assert facts.branch_depth == profile.mean_branch_depth
    assert (facts.has_thinking, facts.thinking_closed) == (thinking.thinking is not None, thinking.closed)


def test_the_answer_on_record_goes_before_the_stated_one():
    assert read_facts("The answer is 5. Answer: 5.", answer="5").repeated_answers == 2
    assert read_facts("The answer is 5. Answer: 5.", answer="6").repeated_answers == 0
    assert read_facts("nothing", answer="5").repeated_answers == 0
    assert read_facts("nothing").repeated_answers is None


MEGABYTE = 1_000_000


@pytest.mark.parametrize(
    "unit",
    [
        *(
            "a",
            "{",
            "\\boxed{",
            "\\boxed{5}",
            "1,",
            "(",
            " ",
            "\n",
            "\\",
            "$",
            "7",
            "<answer>",
            "<think>",
            "<think></think>",
            "#### 1\n",
        ),
        *(
            "the answer is ",
            '"answer":"',
            "wait ",
            "option 1 check ",
            "\\frac{",
            "\\text{",
            "confidence: 1",
            "1 confident ",
            "İ",
            "😀",
            "1/",
        ),
        *("answer: 1,", "<answer>1</answer>", "''", "\x1b[", "\x1b]", "e+", "\\frac{1}{", "- ", "**"),
    ],
)
def test_a_megabyte_of_anything_is_read(unit):
    # Anything worse than linear would not come back.
    text = unit * (MEGABYTE // len(unit))
    assert read_facts(text).n_words == len(text.split())
    read_answer(text)
    read_confidence(text)
    assert len(safe_text(text, 80)) <= 80
