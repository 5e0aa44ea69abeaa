from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from making import evidence_of, find, pool

from equipoise.measures.evidence import Options
from equipoise.measures.prompts import PromptCounts
from equipoise.measures.transfer import Visits, estimate_transfer, expected_distinct, expected_solved


def visits(prompt_id, per_step, right=""):
    """Rows of a problem drawn at several steps: {step: answers}."""
    return [row for step, answers in per_step.items() for row in pool(prompt_id, answers, right=right, step=step)]


def transfer(run, base):
    return estimate_transfer(evidence_of(run), baseline=evidence_of(base), options=Options())


def test_totals_after_each_visit_by_hand():
    rows = visits("p", {3: "aab", 7: "bcc", 9: ["d", None, "a"]}, right="c")
    rows += visits("q", {7: "xx", 9: "xy", 11: "zx"}, right="z")
    counted = Visits.of(evidence_of(rows).answers)
    assert counted.visits_P.tolist() == [3, 3]
    assert counted.drawn_PT.tolist() == [[3, 6, 9], [2, 4, 6]]
    assert counted.solved_PT.tolist() == [[False, True, True], [False, False, True]]
    assert counted.distinct_PT.tolist() == [[2, 3, 4], [1, 2, 3]]


def test_rows_may_come_in_any_order():
    rows = visits("p", {3: "aab", 7: "bcc", 9: "dad"}, right="c") + visits("q", {7: "xx", 9: "xy", 11: "zx"}, right="z")
    mixed = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))]
    one, two = (Visits.of(evidence_of(r).answers) for r in (rows, mixed))
    order = [evidence_of(mixed).answers.names["prompt_id"].texts.index(name) for name in ("p", "q")]
    np.testing.assert_array_equal(one.distinct_PT, two.distinct_PT[order])
    np.testing.assert_array_equal(one.solved_PT, two.solved_PT[order])


def test_expectations_are_averages_over_every_subset_with_a_k_of_its_own_per_problem():
    pools = {"p": ["a", "a", "b", "c", None, "b"], "q": ["x", "y", "y", None, None], "r": ["z"]}
    rows = [row for name, answers in pools.items() for row in pool(name, answers, right=["b", "x"])]
    base = PromptCounts.of(evidence_of(rows).answers)
    place, k = np.array([1, 0, 0]), np.array([3, 2, 5])
    solved, distinct = expected_solved(base, place, k), expected_distinct(base, place, k)
    for i, (name, size) in enumerate([("q", 3), ("p", 2), ("p", 5)]):
        subsets = list(combinations(pools[name], size))
        right = [any(a in ("b", "x") for a in subset) for subset in subsets]
        kinds = [len({a for a in subset if a is not None}) for subset in subsets]
        assert solved[i] == pytest.approx(np.mean(right))
        assert distinct[i] == pytest.approx(np.mean(kinds))


def test_gap_by_hand():
    # Two visits of two rollouts: k = 4 of the base model's 4 samples, so its expectations are its totals.
    run = visits("p", {0: "aa", 1: "ab"}) + visits("q", {0: "xx", 1: "xx"}) + visits("s", {0: "uv", 1: "uw"}, right="w")
    base = pool("p", "abcd") + pool("q", "xyxy") + pool("s", "uuuu", right="w")
    found = transfer(run, base)
    gap = find(found, "transfer_gap", problems="unsolved")
    assert gap.value == pytest.approx((2 + 1) / (4 + 2) - 1)
    assert (gap.n, gap.at["visits"], gap.at["k"]) == (2, 2, 4)
    assert find(found, "transfer_gap_all").value == pytest.approx((2 + 1 + 3) / (4 + 2 + 1) - 1)
    assert find(found, "ever_solved", visits=2, arm="run").value == pytest.approx(1 / 3)
    assert find(found, "ever_solved", visits=2, arm="baseline").value == 0.0
    assert find(found, "ever_solved", visits=1, arm="run").value == 0.0
    assert find(found, "ever_distinct_vs_baseline", visits=2, problems="unsolved").value == pytest.approx((3 - 6) / 2)
    # After one visit k = 2: pairs of abcd hold 2 kinds, pairs of xyxy on average 10/6, pairs of uuuu one.
    assert find(found, "ever_distinct", visits=1, arm="baseline", problems="all").value == pytest.approx(
        (2 + 10 / 6 + 1) / 3
    )


def test_visits_past_the_baselines_samples_are_not_compared():
    run = [row for p in "pqr" for row in visits(p, dict.fromkeys(range(6), "ab"))]
    found = transfer(run, [row for p in "pqr" for row in pool(p, "aabbcc")])
    assert max(e.at["visits"] for e in found) == 3


def drawn(rng, policies, steps, right="a"):
    rows = []
    for name, policy in policies.items():
        for step in range(steps):
            rows += pool(name, ["abcdefgh"[i] for i in rng.choice(8, 8, p=policy)], right=right, step=step)
    return rows


def test_a_run_that_does_not_learn_has_no_gap_and_one_that_collapses_has():
    rng = np.random.default_rng(2)
    # Right answers are rare, so that many problems stay unsolved by both.
    policies = {f"p{i}": np.concatenate([[0.002], 0.998 * rng.dirichlet(np.full(7, 0.7))]) for i in range(150)}
    base = [row | {"step": None} for row in drawn(rng, policies, 8)]
    same = find(transfer(drawn(rng, policies, 6), base), "transfer_gap", problems="unsolved")
    assert same.low < 0 < same.high
    assert same.n > 30
    sharp = {name: policy**3 / (policy**3).sum() for name, policy in policies.items()}
    narrow = find(transfer(drawn(rng, sharp, 6), base), "transfer_gap", problems="unsolved")
    assert narrow.high < -0.2


@pytest.mark.parametrize(
    ("run", "base", "missing"),
    [
        (pool("p", "abab"), pool("p", "abab"), "a run that draws the same problems in two or more steps"),
        (visits("p", {0: "ab", 1: "ab"}), pool("p", "abc"), "≥ 4 judged samples (two visits)"),
        (visits("p", {0: "ab", 1: "ab"}), pool("z", "abcd"), "it shares 0 of 1 problem"),
        ([{"prompt_id": "p", "answer": "a", "step": 0}], pool("p", "abab"), "verdicts"),
        (visits("p", {0: "ab", 1: "ab"}), [{"prompt_id": "p", "answer": "a"}], "for the baseline: verdicts"),
    ],
)
def test_what_is_missing_is_named(run, base, missing):
    (found,) = transfer(run, base)
    assert found.value is None
    assert missing in found.missing


def test_without_a_baseline():
    (found,) = estimate_transfer(evidence_of(visits("p", {0: "ab", 1: "ab"})), baseline=None, options=Options())
    assert found.missing.startswith("a baseline")


def test_every_problem_solved_by_someone():
    run = visits("p", {0: "ab", 1: "ab"}, right="a")
    found = transfer(run, pool("p", "abab", right="a"))
    assert "unsolved by both" in find(found, "transfer_gap").missing
    assert find(found, "transfer_gap_all").value == 0.0
