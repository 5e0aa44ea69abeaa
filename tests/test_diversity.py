from __future__ import annotations

from collections import Counter
from itertools import combinations
from math import log

import numpy as np
import pytest
from making import evidence_of, find, pool

from equipoise.measures.diversity import (
    answer_entropy_of,
    collision_of,
    distinct_at_k_of,
    distinct_of,
    estimate_diversity,
)
from equipoise.measures.evidence import Options
from equipoise.measures.prompts import PromptCounts


def counts_of(*answers):
    rows = [row for i, each in enumerate(answers) for row in pool(f"p{i}", each)]
    return PromptCounts.of(evidence_of(rows).answers)


@pytest.mark.parametrize("answers", ["aaabbc", "abcdefg", "aaaaaaa", "aabbccdd", "abbbbbbb"])
def test_expected_distinct_answers_are_the_average_over_every_subset(answers):
    counts = counts_of(answers)
    for k in range(1, len(answers) + 1):
        subsets = [len(set(subset)) for subset in combinations(answers, k)]
        assert distinct_at_k_of(counts, k)[0] == pytest.approx(np.mean(subsets))
    assert distinct_of(counts)[0] == len(set(answers))


def test_expected_distinct_answers_of_many_samples_follow_the_distribution():
    # Unbiased for D_k = Σ [1 − (1 − p)^k]: the mean over draws of 12 from a known distribution.
    p, k = np.array([0.5, 0.3, 0.15, 0.05]), 5
    rng = np.random.default_rng(0)
    draws = [["abcd"[i] for i in rng.choice(4, 12, p=p)] for _ in range(1500)]
    values = distinct_at_k_of(counts_of(*draws), k)
    assert values.mean() == pytest.approx((1 - (1 - p) ** k).sum(), abs=4 * values.std() / 1500**0.5)


def test_collision_against_a_slow_loop():
    rng = np.random.default_rng(1)
    answers = [["abcdef"[i] for i in rng.integers(0, 6, n)] for n in (2, 3, 8, 30)]
    slow = []
    for each in answers:
        pairs = [a == b for i, a in enumerate(each) for j, b in enumerate(each) if i != j]
        slow.append(sum(pairs) / len(pairs))
    np.testing.assert_allclose(collision_of(counts_of(*answers)), slow, atol=1e-15)


def test_all_the_same_and_all_different():
    counts = counts_of("aaaa", "abcd", "a")
    assert collision_of(counts).tolist()[:2] == [1.0, 0.0]
    assert np.isnan(collision_of(counts)[2])
    np.testing.assert_allclose(distinct_at_k_of(counts, 3), [1, 3, np.nan])


def test_entropy_with_its_correction_by_hand():
    # Shares 3/4 and 1/4: plug-in 0.5623 nats, and (2 − 1) / (2 · 4) for the correction.
    plug_in = -(0.75 * log(0.75) + 0.25 * log(0.25))
    assert answer_entropy_of(counts_of("aaab"))[0] == pytest.approx(plug_in + 1 / 8)


def test_abstentions_are_reported_and_never_a_class():
    rows = pool("p", ["a", "a", "b", None, None, None])
    found = estimate_diversity(evidence_of(rows), baseline=None, options=Options(k=(2,)))
    assert find(found, "abstained").value == 0.5
    assert find(found, "distinct", problems="all").value == 2
    assert find(found, "collision", problems="all").value == pytest.approx(1 / 3)
    assert find(found, "distinct@2", problems="all").value == pytest.approx(5 / 3)  # of aa, ab, ab
    counts = counts_of([None, None])
    for values in (distinct_of(counts), collision_of(counts), answer_entropy_of(counts), distinct_at_k_of(counts, 1)):
        assert np.isnan(values).all()


def test_solved_and_unsolved_problems_apart():
    rows = pool("solved", "aab", right="b") + pool("unsolved", "xyz") + pool("also unsolved", "xxx")
    found = estimate_diversity(evidence_of(rows), baseline=None, options=Options(k=(3,)))
    assert find(found, "distinct", problems="solved").value == 2
    assert find(found, "distinct", problems="unsolved").value == 2
    assert find(found, "distinct@3", problems="all").value == pytest.approx(2)
    assert find(found, "collision", problems="unsolved").value == pytest.approx(0.5)
    assert find(found, "collision", problems="unsolved").n == 2


def test_few_unsolved_problems_have_no_interval_and_more_have_one_within_the_bounds():
    rows = pool("p", "xyz") + pool("q", "xxy") + pool("r", "xxx") + pool("s", "a", right="a")
    found = estimate_diversity(evidence_of(rows), baseline=None, options=Options(k=(2,)))
    for name in ("distinct@2", "collision"):
        assert find(found, name, problems="unsolved").low is None
        assert "3 prompts are too few" in find(found, name, problems="unsolved").how
    rows += [row for i in range(9) for row in pool(f"more{i}", "xxy")]
    found = estimate_diversity(evidence_of(rows), baseline=None, options=Options(k=(2,)))
    assert (
        0 < find(found, "collision", problems="unsolved").low < find(found, "collision", problems="unsolved").high < 1
    )


def test_a_baseline_is_compared_on_problems_unsolved_by_both():
    run = pool("p", "xxxx") + pool("q", "xxyy") + pool("r", "abab", right="b")
    base = pool("p", "wxyz") + pool("q", "xxyy", right="y") + pool("r", "aaaa")
    found = estimate_diversity(evidence_of(run), baseline=evidence_of(base), options=Options(k=(4,)))
    unsolved = find(found, "distinct@4_vs_baseline", problems="unsolved")
    assert (unsolved.value, unsolved.n) == (1 - 4, 1)
    assert find(found, "distinct@4_vs_baseline_rel", problems="unsolved").value == pytest.approx(1 / 4 - 1)
    everywhere = find(found, "distinct@4_vs_baseline_rel", problems="all")
    assert everywhere.value == pytest.approx((1 + 2 + 2) / (4 + 2 + 1) - 1)


def test_change_over_the_steps_on_problems_unsolved_in_both_windows():
    rows = [
        row for step, each in enumerate(["abcd", "abca", "aaab", "aaab", "aaaa"]) for row in pool("p", each, step=step)
    ]
    rows += [row for step in range(5) for row in pool("q", "abcd", right="d" if step else "", step=step)]
    found = estimate_diversity(evidence_of(rows), baseline=None, options=Options(k=(4,)))
    change = find(found, "collision_change", problems="unsolved")
    assert (change.value, change.n) == (1.0, 1)
    assert find(found, "distinct@4_change_rel", problems="unsolved").value == pytest.approx(1 / 4 - 1)
    assert find(found, "distinct@4_change", problems="all").value == pytest.approx((-3 + 0) / 2)


def test_what_depends_on_the_number_of_samples_is_not_compared():
    run, base = pool("p", "abcdabcd"), pool("p", "abcd")
    found = estimate_diversity(evidence_of(run), baseline=evidence_of(base), options=Options())
    names = {e.name for e in found}
    assert "distinct_vs_baseline" not in names
    assert "answer_entropy_vs_baseline" not in names
    assert "distinct@4_vs_baseline" in names
    assert "distinct@8_vs_baseline" not in names  # the baseline has no 8; asked for, it would be named as missing
    asked = estimate_diversity(evidence_of(run), baseline=evidence_of(base), options=Options(k=(8,)))
    assert find(asked, "distinct@8_vs_baseline", problems="all").missing == "draw ≥ 8 samples per problem, in both"


def test_biased_entropy_shows_no_interval():
    rows = [row for i in range(30) for row in pool(f"p{i}", "aabc")]
    entropy = find(
        estimate_diversity(evidence_of(rows), baseline=None, options=Options()), "answer_entropy", problems="all"
    )
    assert entropy.low is None
    assert "no interval" in entropy.how


def test_missing_answers_and_verdicts_are_named():
    found = estimate_diversity(evidence_of([{"prompt_id": "p", "correct": True}]), baseline=None, options=Options())
    assert find(found, "distinct").missing.startswith("answers")
    rows = [{"prompt_id": "p", "answer": a} for a in "ab"]
    found = estimate_diversity(evidence_of(rows), baseline=None, options=Options())
    assert find(found, "distinct", problems="all").value == 2
    assert find(found, "distinct", problems="unsolved").missing.startswith("verdicts")
    assert find(found, "vendi").missing == "completions (column completion)"
    assert estimate_diversity(evidence_of([]), baseline=None, options=Options())[0].missing.startswith("answers")


TEXTS = {
    "sum": "First add the two numbers, then subtract the third one from that sum to get the result.",
    "product": "Multiply everything together; because the product is even, halve it before comparing parities.",
    "cases": "Let us consider three cases separately, depending on whether the remainder is zero, one or two.",
}


def rows_with_texts(prompt_id, ways, right="", **cells):
    return [
        {"prompt_id": prompt_id, "completion": TEXTS[way], "answer": way[0], "correct": way[0] in right, **cells}
        for way in ways
    ]


def test_ways_are_counted_in_the_texts():
    rows = rows_with_texts("p", ["sum", "sum", "product", "cases"], right="sp")
    rows += rows_with_texts("q", ["sum"] * 4, right="p")
    found = estimate_diversity(evidence_of(rows, "answers", "texts"), baseline=None, options=Options())
    assert find(found, "clusters").value == (3 + 1) / 2
    assert find(found, "clusters_right").value == (2 + 0) / 2
    assert find(found, "clusters_wrong").value == (1 + 1) / 2
    assert find(found, "vendi").at["k"] == 4
    # Texts that share almost nothing: p's Vendi score is near that of disjoint ones with shares ½, ¼, ¼.
    share = np.array([0.5, 0.25, 0.25])
    assert find(found, "vendi").value == pytest.approx((np.exp(-(share * np.log(share)).sum()) + 1) / 2, abs=0.1)


def test_ways_are_compared_at_one_number_of_texts():
    run = rows_with_texts("p", ["sum"] * 8)
    base = rows_with_texts("p", ["sum", "product", "cases"])
    found = estimate_diversity(
        evidence_of(run, "answers", "texts"), baseline=evidence_of(base, "answers", "texts"), options=Options()
    )
    assert find(found, "clusters").at["k"] == 3
    assert find(found, "clusters_vs_baseline").value == 1 - 3


def test_ways_of_the_last_steps_do_not_need_texts_in_the_first():
    rows = pool("p", "abcd", step=0) + rows_with_texts("p", ["sum", "product", "cases"], step=1)
    found = estimate_diversity(evidence_of(rows, "answers", "texts"), baseline=None, options=Options())
    assert find(found, "clusters").value == 3
    assert not [e for e in found if e.name == "clusters_change"]


def test_ways_need_two_texts():
    found = estimate_diversity(
        evidence_of(rows_with_texts("p", ["sum"]), "answers", "texts"), baseline=None, options=Options()
    )
    assert find(found, "vendi").missing == "draw ≥ 2 completions per problem"


def test_order_of_rows_changes_nothing():
    rng = np.random.default_rng(5)
    rows = [row for i in range(8) for row in pool(f"p{i}", ["abcd"[j] for j in rng.integers(0, 4, 6)], right="a")]
    mixed = [rows[i] for i in rng.permutation(len(rows))]
    one, two = (
        Counter(
            (e.name, e.at.get("problems"), None if e.value is None else round(e.value, 12))
            for e in estimate_diversity(evidence_of(r), baseline=None, options=Options())
        )
        for r in (rows, mixed)
    )
    assert one == two
