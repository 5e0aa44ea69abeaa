from __future__ import annotations

from fractions import Fraction
from itertools import combinations
from math import comb

import numpy as np
import pytest
from making import evidence_of, find, pool

from equipoise.errors import UsageError
from equipoise.measures.evidence import Options
from equipoise.measures.majk import estimate_majk
from equipoise.measures.majority import full_vote_share, maj_at_k, majority_share


def by_enumeration(counts, right, abstained, k):
    """The mean over every subset of k: the share of the leading answers that are right, 0 without any vote."""
    drawn = [kind for kind, count in enumerate(counts) for _ in range(count)] + [None] * abstained
    shares = []
    for subset in combinations(drawn, k):
        votes = {kind: subset.count(kind) for kind in set(subset) if kind is not None}
        leaders = [kind for kind, n in votes.items() if n == max(votes.values())]
        shares.append(Fraction(sum(right[kind] for kind in leaders), len(leaders)) if leaders else Fraction(0))
    return sum(shares) / len(shares)


def by_counting(counts, right, abstained, k):
    """The same by exact integers: ways to draw, by (votes so far, size of the lead, leaders, right leaders)."""
    ways = {(0, 0, 0, 0): 1}
    for count, is_right in zip(counts, right, strict=True):
        grown = {}
        for (used, lead, leaders, good), n in ways.items():
            for votes in range(min(count, k - used) + 1):
                if votes == 0 or votes < lead:
                    state = (used + votes, lead, leaders, good)
                elif votes == lead:
                    state = (used + votes, lead, leaders + 1, good + is_right)
                else:
                    state = (used + votes, votes, 1, is_right)
                grown[state] = grown.get(state, 0) + n * comb(count, votes)
        ways = grown
    total = sum(
        Fraction(n * comb(abstained, k - used) * good, leaders)
        for (used, _, leaders, good), n in ways.items()
        if leaders and k - used <= abstained
    )
    return total / comb(sum(counts) + abstained, k)


def test_worked_by_hand():
    # aaabbc, k = 3, target a. Of 20 subsets: aaa 1, aab 6, aac 3 win; abc 6 ties three ways; abb 3 and bbc 1 lose.
    assert maj_at_k(counts=[3, 2, 1], right=[1, 0, 0], k=3) == pytest.approx((1 + 6 + 3 + 6 / 3) / 20)  # 0.6


@pytest.mark.parametrize("seed", range(40))
def test_equals_enumeration_with_ties_abstentions_and_several_right_answers(seed):
    rng = np.random.default_rng(seed)
    kinds = int(rng.integers(1, 6))
    counts, right = rng.integers(1, 4, kinds).tolist(), rng.integers(0, 2, kinds).tolist()
    abstained = int(rng.integers(0, 3))
    counts = counts[: next(i for i in range(kinds, 0, -1) if sum(counts[:i]) + abstained <= 10 or i == 1)]
    right = right[: len(counts)]
    for k in range(1, sum(counts) + abstained + 1):
        exact = by_enumeration(counts, right, abstained, k)
        assert exact == by_counting(counts, right, abstained, k)
        assert maj_at_k(counts=counts, right=right, abstained=abstained, k=k) == pytest.approx(float(exact), abs=1e-13)


@pytest.mark.parametrize(("samples", "kinds", "spread"), [(40, 30, 1.0), (64, 12, 0.5), (64, 60, 2.0), (100, 6, 0.3)])
def test_equals_exact_integers_for_many_samples(samples, kinds, spread):
    rng = np.random.default_rng(samples + kinds)
    counts = rng.multinomial(samples, rng.dirichlet(np.full(kinds, spread)))
    counts = counts[counts > 0].tolist()
    right = (np.arange(len(counts)) % 3 == 0).astype(int).tolist()
    for k in (1, 2, 7, samples // 4, samples // 2, samples + 4):
        exact = float(by_counting(counts, right, 5, k))
        assert maj_at_k(counts=counts, right=right, abstained=5, k=k) == pytest.approx(exact, abs=1e-12)


def test_a_batch_of_different_problems_equals_each_alone():
    rng = np.random.default_rng(3)
    problems = [rng.integers(1, 20, rng.integers(1, 15)).tolist() for _ in range(60)]
    rights = [rng.integers(0, 2, len(counts)).tolist() for counts in problems]
    silent = rng.integers(0, 4, 60).tolist()
    drawn = np.array([sum(counts) + n for counts, n in zip(problems, silent, strict=True)])
    offsets = np.cumsum([0, *map(len, problems)])
    together = majority_share(np.concatenate(problems), np.concatenate(rights).astype(float), offsets, drawn, 16)
    for counts, right, n, share in zip(problems, rights, silent, together, strict=True):
        if sum(counts) + n < 16:
            assert np.isnan(share)
        else:
            assert share == pytest.approx(float(by_counting(counts, right, n, 16)), abs=1e-12)


def test_hundreds_of_samples_and_answers_stay_probabilities():
    rng = np.random.default_rng(4)
    counts = rng.multinomial(2000, rng.dirichlet(np.full(400, 0.5)))
    counts = counts[counts > 0].tolist()
    shares = [maj_at_k(counts=counts, right=np.eye(len(counts))[i].tolist(), k=64) for i in range(0, len(counts), 40)]
    assert all(0 <= share <= 1 for share in shares)
    # Every subset has one winner, so all answers being right gives 1.
    assert maj_at_k(counts=counts, right=[1] * len(counts), k=64) == pytest.approx(1.0, abs=1e-11)


def test_one_vote_is_a_plain_sample_and_all_votes_are_the_mode():
    assert maj_at_k(counts=[5, 3, 2], right=[0, 1, 1], abstained=2, k=1) == pytest.approx(5 / 12)
    assert maj_at_k(counts=[5, 3, 2], right=[0, 1, 1], abstained=2, k=12) == 0.0
    assert maj_at_k(counts=[5, 5, 2], right=[0, 1, 1], abstained=2, k=14) == 0.5


def test_order_of_answers_changes_nothing():
    one = maj_at_k(counts=[6, 1, 4, 3], right=[0, 1, 1, 0], abstained=2, k=5)
    assert maj_at_k(counts=[3, 4, 6, 1], right=[0, 1, 0, 1], abstained=2, k=5) == pytest.approx(one, abs=1e-14)


def test_full_vote_without_any_answer_is_wrong():
    assert full_vote_share(np.array([2]), np.array([1.0]), np.array([0, 0, 1])).tolist() == [0.0, 1.0]


def test_too_few_completions():
    with pytest.raises(UsageError, match="maj@7 needs 7 completions, this problem has 6"):
        maj_at_k(counts=[3, 2], right=[1, 0], abstained=1, k=7)


def test_estimates_over_problems():
    rows = pool("one", "aaabbc", right="a") + pool("two", ["x", None, None, "y", "y", "y"], right="x")
    found = estimate_majk(evidence_of(rows), baseline=None, options=Options(k=(1, 3, 6)))
    assert find(found, "maj@1").value == pytest.approx((3 / 6 + 1 / 6) / 2)
    two = float(by_enumeration([1, 3], [1, 0], 2, 3))
    assert find(found, "maj@3").value == pytest.approx((0.6 + two) / 2)
    assert find(found, "maj@6").value == 0.5
    # Problem two has a right answer that the vote of all six loses.
    assert find(found, "majority_wrong").value == 0.5


def test_a_never_solved_problem_is_not_the_votes_fault():
    found = estimate_majk(evidence_of(pool("p", "aab", right="z")), baseline=None, options=Options())
    assert find(found, "majority_wrong").value == 0.0


def test_an_answer_judged_both_ways_is_right_in_its_share():
    # A checker that reads more than the answer: two of three rollouts that answer 24 are right. maj@1 stays pass@1.
    rows = [{"prompt_id": "p", "answer": "24", "correct": right} for right in (True, True, False)]
    rows += pool("p", ["36"])
    found = estimate_majk(evidence_of(rows), baseline=None, options=Options(k=(1, 4)))
    assert find(found, "maj@1").value == pytest.approx(2 / 4)
    assert find(found, "maj@4").value == pytest.approx(2 / 3)


def test_rollouts_whose_checker_failed_do_not_vote():
    rows = pool("p", "aab", right="b") + [{"prompt_id": "p", "answer": "b", "correct": None}] * 3
    assert find(estimate_majk(evidence_of(rows), baseline=None, options=Options(k=(3,))), "maj@3").value == 0.0


def test_right_rollouts_without_a_readable_answer_are_told():
    rows = [*pool("p", "ab", right="a"), {"prompt_id": "p", "answer": None, "correct": True}]
    found = find(estimate_majk(evidence_of(rows), baseline=None, options=Options(k=(1,))), "maj@1")
    assert found.value == pytest.approx(1 / 3)
    assert "1 right samples had no readable answer" in found.how


def test_against_a_baseline():
    run = pool("p", "aaab", right="a") + pool("q", "cccc", right="d")
    base = pool("p", "aabb", right="a") + pool("q", "cddd", right="d")
    found = estimate_majk(evidence_of(run), baseline=evidence_of(base), options=Options(k=(4,)))
    assert find(found, "maj@4_vs_baseline").value == pytest.approx(((1 - 0.5) + (0 - 1)) / 2)


@pytest.mark.parametrize(
    ("rows", "missing"),
    [([{"prompt_id": "p", "answer": "4"}], "verdicts"), ([{"prompt_id": "p", "correct": True}], "answers")],
)
def test_missing_columns_are_named(rows, missing):
    (found,) = estimate_majk(evidence_of(rows), baseline=None, options=Options())
    assert found.value is None
    assert found.missing.startswith(missing)
