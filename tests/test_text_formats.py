"""Formats: one example each, and the order in which they are asked for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.text.formats import FORMATS, classify_format

EXAMPLES = {
    "empty": [" \n"],
    "code": [
        "```python\nprint(18)\n```",
        "def simple_math_problem() -> int:\n    return 18",
        "We compute:\n<llm-code>\n9 * 2\n</llm-code>",
        "First:\nimport numpy as np\nx = 3",
        "from math import gcd\ngcd(4, 6)",
    ],
    "json": ['{"answer": 18}', '```json\n["fill A"]\n```', '["a", "b"]\n'],
    "tagged": ["9 * 2 = 18 <answer>18</answer>"],
    "boxed": [r"so \(9 \cdot 2 = \boxed{18}\)"],
    "multiple-choice": [
        "(A) 17 and (B) 18 are left; it is the second.",
        "Options:\nA. 17\nB. 18\nthe second",
        "So the answer is (B).",
    ],
    "latex": [r"so \(9 \cdot 2 = 18\)", "so $$x = 18$$"],
    "steps": ["Step 1: sell 9.\nStep 2: get 18.", "1. sell 9\n2. get 18"],
    "plain": [
        "She gets 18 dollars.",
        "from here on it is easy",
        "class dismissed",
        "import duties are 3 dollars each, 9 in all",
        "The answer is 18.",
        "{1, 2}",
    ],
}


@pytest.mark.parametrize(("label", "text"), [(label, text) for label, texts in EXAMPLES.items() for text in texts])
def test_examples(label, text):
    assert classify_format(text) == label


def test_every_label_has_an_example():
    assert set(EXAMPLES) == set(FORMATS)


def test_the_earlier_of_two_formats_wins():
    # Each text holds the markers of all later labels too; they are taken away one by one.
    parts = [
        "```python\n1\n```",
        "```json\n1\n```",
        "<answer>1</answer>",
        r"\boxed{1}",
        "(A) 1 (B) 2",
        r"\(1\)",
        "Step 1, Step 2",
        "1",
    ]
    labels = [classify_format("\n".join(parts[i:])) for i in range(len(parts))]
    assert labels == list(FORMATS[1:])


@given(st.text())
def test_any_text_has_one_format(text):
    assert classify_format(text) in FORMATS
