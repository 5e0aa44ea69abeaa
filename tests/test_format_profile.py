"""Shares of formats and reasoning profiles against pandas on the same readings of the texts."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from making import evidence_of, find

from equipoise.measures.evidence import Options
from equipoise.measures.format import estimate_format
from equipoise.measures.profile import estimate_profile
from equipoise.text.reading import read_facts

TEXTS = {
    "boxed": r"We add 3 and 4, which gives \boxed{7}.",
    "code": "```python\nprint(3 + 4)\n```",
    "plain": "It is seven, I believe.",
    "tagged": "<answer>7</answer>",
}


def row(prompt, kind, **cells):
    return {"prompt_id": prompt, "completion": None if kind is None else TEXTS[kind], **cells}


def formats_of(rows, baseline=None):
    other = None if baseline is None else evidence_of(baseline, "texts")
    return estimate_format(evidence_of(rows, "texts"), baseline=other, options=Options())


def test_shares_of_formats_by_hand():
    rows = [row("a", "boxed"), row("a", "boxed"), row("a", "code"), row("b", "plain"), row("b", None)]
    numbers = formats_of(rows)
    shares = {n.at["format"]: n.value for n in numbers if n.name == "format_share"}
    assert shares == pytest.approx({"boxed": (2 / 3 + 0) / 2, "code": (1 / 3 + 0) / 2, "plain": 1 / 2})
    assert sum(shares.values()) == pytest.approx(1)
    assert all(n.low is None for n in numbers)  # two problems


def test_a_format_that_was_lost_shows_as_zero_and_as_a_change():
    rows = [row(p, "code", step=1) for p in "abcdefgh"] + [row(p, "boxed", step=2) for p in "abcdefgh"]
    numbers = formats_of(rows)
    assert find(numbers, "format_share", format="code", window="late").value == 0
    assert find(numbers, "format_share", format="code", window="early").value == 1
    assert find(numbers, "format_share_change", format="code").value == -1
    assert find(numbers, "format_share_change", format="boxed").value == 1
    assert not [n for n in numbers if n.at.get("format") == "json"]


def test_formats_against_a_baseline_that_never_used_one():
    rows, base = [row(p, "tagged") for p in "abcd"], [row(p, "plain") for p in "abcd"]
    numbers = formats_of(rows, baseline=base)
    assert find(numbers, "format_share_vs_baseline", format="tagged").value == 1
    assert find(numbers, "format_share_vs_baseline", format="plain").value == -1


def test_well_formed_answers():
    rows = [row("a", "boxed", format_ok=True), row("a", "plain", format_ok=False), row("b", "boxed", format_ok=None)]
    number = find(formats_of(rows), "format_ok")
    assert number.value == 0.5
    assert number.n == 1


@pytest.mark.parametrize("estimate", [estimate_format, estimate_profile])
def test_without_texts_they_are_asked_for(estimate):
    for needs in ((), ("texts",)):
        [number] = estimate(evidence_of([{"prompt_id": "p", "answer": "7"}], *needs), baseline=None, options=Options())
        assert number.value is None
        assert "column completion" in number.missing


REASONING = [
    "Let me try factoring. Alternatively, try completing the square. Let me check: 3 + 4 = 7, correct. The answer is 7.",
    "First, 3 + 4 = 7. Wait, let me double-check: 3 + 4 = 7. That doesn't work. Another approach: count on fingers. So 7.",
    "Seven.",
    "Let me think step by step. Maybe we can guess. No, that's wrong. Alternatively, use algebra. Let me verify this again.",
]


def test_profiles_are_pandas_on_the_same_facts():
    rng = np.random.default_rng(0)
    rows = [
        {"prompt_id": f"p{p}", "step": step, "completion": " ".join(rng.permutation(REASONING)[: rng.integers(1, 5)])}
        for step in (1, 2)
        for p in range(12)
        for _ in range(3)
    ]
    frame = pd.DataFrame(rows)
    facts = frame["completion"].map(read_facts)
    for name in ("opened", "opened_total", "verified", "abandoned", "n_planning", "n_words", "branch_depth"):
        frame[name] = [getattr(fact, name) for fact in facts]
    frame = frame.astype({"branch_depth": float})
    means = frame.groupby(["step", "prompt_id"])[list(frame.columns[3:])].mean()
    numbers = estimate_profile(evidence_of(rows, "texts"), baseline=None, options=Options())
    for window, step in (("late", 2), ("early", 1)):
        part = means.loc[step]
        for name, column in (("opened_first", "opened"), ("opened", "opened_total"), ("verified", "verified"),
                             ("abandoned", "abandoned"), ("planning", "n_planning")):  # fmt: skip
            assert find(numbers, f"{name}_per_rollout", window=window).value == pytest.approx(part[column].mean())
            per_1000 = 1000 * part[column] / part["n_words"]
            assert find(numbers, f"{name}_per_1000_words", window=window).value == pytest.approx(per_1000.mean())
        assert find(numbers, "branch_depth", window=window).value == pytest.approx(part["branch_depth"].mean())
        raw = frame[frame["step"] == step]
        ratio = raw["opened_total"].sum() / raw["verified"].sum()
        assert find(numbers, "opened_per_verified", window=window).value == pytest.approx(ratio)
    change = find(numbers, "verified_per_rollout_change")
    assert change.value == pytest.approx((means.loc[2, "verified"] - means.loc[1, "verified"]).mean())
    assert means["verified"].sum() > 0
    assert means["opened_total"].sum() > 0


def test_empty_texts_have_no_rate_per_word():
    numbers = estimate_profile(
        evidence_of([{"prompt_id": "p", "completion": ""}], "texts"), baseline=None, options=Options()
    )
    assert find(numbers, "opened_per_rollout").value == 0
    assert not [n for n in numbers if n.name == "opened_per_1000_words"]
