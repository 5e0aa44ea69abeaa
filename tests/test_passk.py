from __future__ import annotations

from itertools import combinations
from math import log2

import numpy as np
import pytest
from making import evidence_of, find, pool

from equipoise.errors import UsageError
from equipoise.measures.evidence import Options
from equipoise.measures.passk import (
    crossing,
    estimate_passk,
    pass_at_k,
    pass_at_k_of,
    pass_hat_k,
    pass_hat_k_of,
)
from equipoise.measures.subsets import common_size, default_ks, missed_share


def verdicts(prompt_id, right, drawn, **cells):
    return [{"prompt_id": prompt_id, "correct": i < right, **cells} for i in range(drawn)]


def test_pass_at_k_worked_by_hand():
    # 5 drawn, 2 right: of the 10 pairs, 3 hold no right one and 1 holds both.
    assert pass_at_k(correct=2, drawn=5, k=2) == pytest.approx(0.7)
    assert pass_hat_k(correct=2, drawn=5, k=2) == pytest.approx(0.1)
    assert pass_at_k(correct=0, drawn=5, k=3) == 0.0


@pytest.mark.parametrize("drawn", range(1, 10))
def test_pass_at_k_is_the_average_over_every_subset(drawn):
    for correct in range(drawn + 1):
        outcomes = [True] * correct + [False] * (drawn - correct)
        for k in range(1, drawn + 1):
            subsets = list(combinations(outcomes, k))
            any_right, all_right = (sum(map(test, subsets)) / len(subsets) for test in (any, all))
            assert pass_at_k(correct=correct, drawn=drawn, k=k) == pytest.approx(any_right)
            assert pass_hat_k(correct=correct, drawn=drawn, k=k) == pytest.approx(all_right)
            assert pass_at_k_of(np.array([correct]), np.array([drawn]), k)[0] == pytest.approx(any_right)
            assert pass_hat_k_of(np.array([correct]), np.array([drawn]), k)[0] == pytest.approx(all_right)


def test_arrays_agree_with_exact_integers_for_many_samples():
    rng = np.random.default_rng(0)
    drawn = rng.integers(200, 3000, 50)
    correct = rng.integers(0, drawn + 1)
    for k in (1, 7, 100, 200):
        exact = [pass_at_k(correct=int(c), drawn=int(n), k=k) for c, n in zip(correct, drawn, strict=True)]
        np.testing.assert_allclose(pass_at_k_of(correct, drawn, k), exact, rtol=0, atol=1e-13)


def test_pass_at_k_rises_with_k_and_is_one_when_every_subset_must_hold_a_right_one():
    curve = [pass_at_k(correct=3, drawn=20, k=k) for k in range(1, 21)]
    assert curve == sorted(curve)
    assert curve[17:] == [1.0, 1.0, 1.0]


def test_too_few_completions():
    with pytest.raises(UsageError, match="pass@6 needs 6 completions, this problem has 5"):
        pass_at_k(correct=2, drawn=5, k=6)
    with pytest.raises(UsageError, match="needs 6 completions"):
        pass_hat_k(correct=2, drawn=5, k=6)
    assert np.isnan(missed_share(np.array([1]), np.array([5]), 6)[0])


def test_k_is_a_count():
    with pytest.raises(UsageError, match="0 was asked"):
        estimate_passk(evidence_of(verdicts("p", 1, 2)), baseline=None, options=Options(k=(0,)))


def test_default_ks_follow_nine_in_ten_problems():
    assert default_ks(np.array([100] * 10)) == (1, 2, 4, 8, 16, 32, 64, 100)
    assert default_ks(np.array([8] * 9 + [3])) == (1, 2, 4, 8)  # one short problem does not set k
    assert default_ks(np.array([8] * 8 + [3] * 2)) == (1, 2, 3)
    assert default_ks(np.array([8] * 4 + [3])) == (1, 2, 3)
    assert default_ks(np.array([0, 0])) == ()
    assert common_size(np.array([0, 5])) == 5


def test_mean_over_problems_and_the_ones_left_out():
    rows = verdicts("a", 2, 5) + verdicts("b", 5, 5) + verdicts("c", 1, 1)
    found = estimate_passk(evidence_of(rows), baseline=None, options=Options(k=(2, 9)))
    two = find(found, "pass@2", k=2)
    assert two.value == pytest.approx((0.7 + 1) / 2)
    assert two.n == 2
    assert "left out: 1 of 3 problems (fewer than 2 judged samples)" in two.how
    assert two.low is None  # two problems
    nine = find(found, "pass@9")
    assert nine.value is None
    assert nine.missing == "draw ≥ 9 samples per problem"


def test_a_failed_checker_is_neither_right_nor_wrong():
    rows = [*verdicts("a", 1, 2), {"prompt_id": "a", "correct": None}]
    assert find(estimate_passk(evidence_of(rows), baseline=None, options=Options(k=(1,))), "pass@1").value == 0.5


def test_without_verdicts_one_estimate_says_what_is_missing():
    found = estimate_passk(evidence_of([{"prompt_id": "a", "answer": "4"}]), baseline=None, options=Options())
    assert [(e.value, e.missing[:8]) for e in found] == [(None, "verdicts")]


def test_windows_and_their_change():
    # Ten steps, so a window is two steps. Problem a rises from 0/4 to 4/4, b stays at 2/4.
    rows = []
    for step in range(10):
        rows += verdicts("a", 2 * (step >= 5), 2, step=step) + verdicts("b", 1, 2, step=step)
    found = estimate_passk(evidence_of(rows), baseline=None, options=Options(k=(1,)))
    assert find(found, "pass@1", window="late").value == 0.75
    assert find(found, "pass@1", window="late").at["step"] == [8, 9]
    assert find(found, "pass@1", window="early").value == 0.25
    assert find(found, "pass@1_change").value == 0.5
    assert find(found, "pass@1_change").n == 2
    assert find(found, "pass@1_change").at["step"] == [0, 9]


def test_windows_with_other_problems_are_compared_unpaired():
    rows = [
        r for step, right in ((0, 1), (1, 2)) for p in range(4) for r in verdicts(f"{step}-{p}", right, 2, step=step)
    ]
    change = find(estimate_passk(evidence_of(rows), baseline=None, options=Options(k=(1,))), "pass@1_change")
    assert change.value == 0.5
    assert "4 and 4 prompts" in change.how


def test_conditions_are_measured_apart():
    rows = verdicts("a", 1, 4, temperature=0.6) + verdicts("a", 3, 4, temperature=1.0)
    found = estimate_passk(evidence_of(rows), baseline=None, options=Options(k=(1,)))
    assert find(found, "pass@1", temperature=0.6).value == 0.25
    assert find(found, "pass@1", temperature=1.0).value == 0.75


def test_baseline_is_paired_by_problem_id():
    run = verdicts("only here", 4, 4) + verdicts("a", 4, 4) + verdicts("b", 1, 4)
    base = verdicts("b", 3, 4) + verdicts("a", 0, 4) + verdicts("only there", 0, 4)
    found = estimate_passk(evidence_of(run), baseline=evidence_of(base), options=Options(k=(1,)))
    difference = find(found, "pass@1_vs_baseline", against="baseline")
    assert difference.value == pytest.approx((1.0 - 0.5) / 2)
    assert difference.n == 2


def test_baseline_of_the_same_temperature_is_chosen():
    run = verdicts("a", 1, 2, temperature=0.6)
    base = verdicts("a", 0, 2, temperature=0.6) + verdicts("a", 2, 2, temperature=1.0)
    found = estimate_passk(evidence_of(run), baseline=evidence_of(base), options=Options(k=(1,)))
    assert find(found, "pass@1_vs_baseline").value == 0.5
    other = verdicts("a", 0, 2, temperature=0.3) + verdicts("a", 2, 2, temperature=1.0)
    found = estimate_passk(evidence_of(run), baseline=evidence_of(other), options=Options(k=(1,)))
    assert "this one has 2 that would do" in find(found, "pass@k_vs_baseline").missing
    one = verdicts("a", 0, 2, temperature=1.0)
    found = estimate_passk(evidence_of(run), baseline=evidence_of(one), options=Options(k=(1,)))
    assert "temperature 1.0 instead of 0.6" in find(found, "pass@1_vs_baseline").how


def test_a_baseline_of_other_problems_or_without_verdicts_says_so():
    run = verdicts("a", 1, 2)
    found = estimate_passk(evidence_of(run), baseline=evidence_of(verdicts("z", 1, 2)), options=Options())
    assert "none of 1 problem" in find(found, "pass@k_vs_baseline").missing
    found = estimate_passk(
        evidence_of(run), baseline=evidence_of([{"prompt_id": "a", "answer": "1"}]), options=Options()
    )
    assert "for the baseline: verdicts" in find(found, "pass@k_vs_baseline").missing


def test_crossing_is_a_line_in_log2_k():
    # From +0.2 at 4 to −0.1 at 8: two thirds of the way, 2^(2 + 2/3).
    assert log2(crossing([1, 2, 4, 8, 16], np.array([0.5, 0.4, 0.2, -0.1, -0.2]))) == pytest.approx(2 + 2 / 3)
    assert crossing([1, 2, 4], np.array([0.1, 0.1, 0.0])) is None
    assert crossing([1, 2, 4], np.array([-0.1, -0.1, -0.2])) == 1.0
    # It must stay below: the first dip does not count.
    assert crossing([1, 2, 4, 8], np.array([0.1, -0.1, 0.1, -0.1])) == pytest.approx(2**2.5)


def test_crossing_of_a_sharpened_run():
    # The run solves half of the problems always and half never; the base model all of them half of the time.
    # pass@1 is equal (0.5) and pass@2 is 0.5 against 1 − C(4,2)/C(8,2) = 11/14: below from just after k = 1.
    run = [r for i in range(40) for r in verdicts(f"p{i}", 8 * (i % 2), 8)]
    base = [r for i in range(40) for r in verdicts(f"p{i}", 4, 8)]
    found = find(estimate_passk(evidence_of(run), baseline=evidence_of(base), options=Options()), "crossing_k")
    assert found.value == 1.0
    assert found.at["k"] == [1, 8]
    back = find(estimate_passk(evidence_of(base), baseline=evidence_of(run), options=Options()), "crossing_k")
    assert back.value is None
    assert "no crossing up to k = 8" in back.missing


def test_crossing_interval_holds_the_crossing_and_is_open_where_the_end_is_unsure():
    rng = np.random.default_rng(1)
    rows = {"run": [], "base": []}
    for i in range(300):
        for who, p in (("run", 0.75 * (i % 10 < 8)), ("base", 0.5)):
            rows[who] += verdicts(f"p{i}", rng.binomial(16, p), 16)
    found = find(
        estimate_passk(evidence_of(rows["run"]), baseline=evidence_of(rows["base"]), options=Options()), "crossing_k"
    )
    # 0.8 (1 − 0.25^k) = 1 − 0.5^k: 0.6 against 0.5 at k = 1, 0.75 against 0.75 at k = 2.
    assert found.low < 2 < found.high
    assert found.low <= found.value <= found.high
    assert "open above" not in found.how
    few = ([r for r in rows[who] if int(r["prompt_id"][1:]) < 12] for who in ("run", "base"))
    run, base = (evidence_of(each) for each in few)
    unsure = find(estimate_passk(run, baseline=base, options=Options()), "crossing_k")
    assert (unsure.low, unsure.high) == (1.0, 16.0)
    assert "open above: at k = 16" in unsure.how


def test_order_of_rows_changes_nothing():
    rows = pool("a", "xxyz", right="x") + pool("b", "xyyz", right="x") + pool("c", "zzzz", right="x")
    mixed = [rows[i] for i in np.random.default_rng(2).permutation(len(rows))]
    one, two = (
        {(e.name): (e.value, e.low, e.high) for e in estimate_passk(evidence_of(r), baseline=None, options=Options())}
        for r in (rows, mixed)
    )
    assert one == two


def test_the_baselines_own_curve_is_over_the_problems_that_the_run_has():
    run = [{"prompt_id": p, "correct": v} for p in "ab" for v in (True, False, False)]
    base = [
        {"prompt_id": p, "correct": v} for p, vs in (("a", "100"), ("b", "000"), ("z", "111")) for v in map(int, vs)
    ]
    numbers = estimate_passk(evidence_of(run), baseline=evidence_of(base), options=Options(k=(1, 2, 3)))
    curve = {n.at["k"]: n for n in numbers if n.name.endswith("_of_baseline")}
    # Problem a has 1 right of 3: it is among k of them in k/3 of the draws; b has none, and z is not the run's.
    assert {k: n.value for k, n in curve.items()} == pytest.approx({1: 1 / 6, 2: 2 / 6, 3: 3 / 6})
    assert all(n.n == 2 and n.name == f"pass@{k}_of_baseline" for k, n in curve.items())
    assert not [n for n in estimate_passk(evidence_of(run), baseline=None, options=Options()) if "of_base" in n.name]
