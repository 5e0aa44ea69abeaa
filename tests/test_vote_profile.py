"""The vote by the top answer's share, against a plain count in Python."""

from __future__ import annotations

from collections import Counter
from math import log

import numpy as np
import pytest
from making import evidence_of, find, pool
from scipy.stats import binomtest

from equipoise.measures.evidence import Options
from equipoise.measures.vote_profile import estimate_votes


def votes(rows):
    return estimate_votes(evidence_of(rows), baseline=None, options=Options())


def test_by_hand():
    rows = [
        *pool("a", "xxxx", "x"),  # all agree, right
        *pool("b", "yyyyz", "z"),  # four in five, wrong
        *pool("c", "xxy", "x"),  # two in three, right
        *pool("d", ["x", "y", None], "x"),  # a tie among two votes: right in half of the cases
        *pool("e", ["x", None], "x"),  # one vote is no majority: left out
    ]
    numbers = votes(rows)
    overall = find(numbers, "vote_accuracy")
    assert (overall.value, overall.n) == (pytest.approx((1 + 0 + 1 + 0.5) / 4), 4)
    assert "left out: 1 of 5 problems" in overall.how
    assert find(numbers, "single_accuracy").value == pytest.approx((1 + 1 / 5 + 2 / 3 + 1 / 3) / 4)
    assert find(numbers, "vote_overconfidence").value == pytest.approx((0 + 0.8 + (2 / 3 - 1) + 0) / 4)
    by_share = {tuple(n.at["share"]): n for n in numbers if n.name == "vote_accuracy_by_share"}
    assert {share: (n.value, n.n) for share, n in by_share.items()} == {
        (0.4, 0.6): (0.5, 1),
        (0.6, 0.8): (0.5, 2),  # an edge belongs to the class below it
        (1.0, 1.0): (1.0, 1),
    }
    assert by_share[0.6, 0.8].at["mean_share"] == pytest.approx((0.8 + 2 / 3) / 2)


def test_against_a_loop_over_problems():
    rng = np.random.default_rng(5)
    rows, right_by_class, entropies = [], {}, {}
    for i in range(60):
        answers = ["abcdef"[a] for a in rng.choice(6, size=12, p=rng.dirichlet(np.full(6, 0.5)))]
        rows += pool(f"p{i}", answers, "a")
        counts = Counter(answers)
        top = max(counts.values())
        leaders = [answer for answer, count in counts.items() if count == top]
        share = top / 12
        edge = 1.0 if share == 1 else next(high for high in (0.2, 0.4, 0.6, 0.8, 1.0) if share <= high)
        key = (1.0, 1.0) if share == 1 else (round(edge - 0.2, 1), edge)
        right_by_class.setdefault(key, []).append(("a" in leaders) / len(leaders))
        rate = counts["a"] / 12
        named = "0" if rate == 0 else "1" if rate == 1 else None
        if named is None:
            named = ["(0, 0.25]", "(0.25, 0.5]", "(0.5, 0.75]", "(0.75, 1)"][
                sum(rate > edge for edge in (0.25, 0.5, 0.75))
            ]
        plug_in = -sum(c / 12 * log(c / 12) for c in counts.values())
        entropies.setdefault(named, []).append(plug_in + (len(counts) - 1) / 24)
    numbers = votes(rows)
    found = {tuple(n.at["share"]): n for n in numbers if n.name == "vote_accuracy_by_share"}
    assert {k: n.value for k, n in found.items()} == pytest.approx({k: np.mean(v) for k, v in right_by_class.items()})
    assert {k: n.n for k, n in found.items()} == {k: len(v) for k, v in right_by_class.items()}
    spread = {n.at["solve_rate"]: n.value for n in numbers if n.name == "answer_entropy_by_solve_rate"}
    assert spread == pytest.approx({k: np.mean(v) for k, v in entropies.items()})


def test_the_interval_of_a_class_is_the_exact_one():
    rows = [r for i in range(10) for r in pool(f"p{i}", "xxxxx" if i < 7 else "yyyyy", "x")]
    (number,) = [n for n in votes(rows) if n.name == "vote_accuracy_by_share"]
    exact = binomtest(7, 10).proportion_ci(method="exact")
    assert (number.low, number.high) == pytest.approx((exact.low, exact.high))
    every = [n for n in votes(rows[:35]) if n.name == "vote_accuracy_by_share"]
    assert (every[0].value, every[0].high) == (1.0, 1.0)
    assert every[0].low == pytest.approx(0.025 ** (1 / 7))  # seven right of seven: p^7 = 2.5 %


def test_an_interval_of_a_difference_of_shares_stays_among_differences_of_shares():
    rows = [r for i, answers in enumerate(("xxxx", "yyyy", "xxxx", "yyyx")) for r in pool(f"p{i}", answers, "x")]
    over = find(votes(rows), "vote_overconfidence")
    assert -1 <= over.low <= over.value <= over.high <= 1


def test_what_is_missing_is_named():
    (unjudged,) = votes([{"prompt_id": "a", "answer": "x"}])
    assert "verdicts" in unjudged.missing
    (unread,) = votes([{"prompt_id": "a", "correct": True}])
    assert "answers" in unread.missing
    alone = find(votes([*pool("a", "x", "x"), *pool("b", "y", "x")]), "vote_accuracy")
    assert (alone.value, alone.missing) == (None, "problems with ≥ 2 readable answers")
