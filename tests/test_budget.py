"""Budget sweeps: hand values, enumeration, and an estimator that finds no overthinking where there is none."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from making import evidence_of, find
from scipy.stats import t

from equipoise.measures.budget import (
    against_best,
    best_budget,
    estimate_budget,
    overthinking_loss,
    parallel_gain,
    pick_budgets,
)
from equipoise.measures.evidence import Options
from equipoise.measures.sweeps import Sweep, count_flips, sweep_budgets


def samples(prompt, budget, answers, right="a", **cells):
    """One row per answer; None could not be read and is wrong."""
    return [
        {"prompt_id": prompt, "budget": budget, "sample_index": i, "answer": a, "correct": a == right, **cells}
        for i, a in enumerate(answers)
    ]


#            100                     200                     400
HAND = [
    *samples("p", 100, "aabb"), *samples("p", 200, "aaab"), *samples("p", 400, "abcd"),
    *samples("q", 100, "bbbb"), *samples("q", 200, "aabb"), *samples("q", 400, "bbbc"),
]  # fmt: skip


def sweep_of(rows) -> Sweep:
    return sweep_budgets(evidence_of(rows).answers)


def estimates_of(rows, baseline=None, **options):
    other = None if baseline is None else evidence_of(baseline)
    return estimate_budget(evidence_of(rows), baseline=other, options=Options(**options))


def test_sweep_worked_by_hand():
    sweep = sweep_of(HAND)
    assert sweep.budgets_B.tolist() == [100, 200, 400]
    np.testing.assert_allclose(sweep.accuracy_PB, [[0.5, 0.75, 0.25], [0, 0.5, 0]])
    # aabb: 4 of the 6 pairs differ; aaab: 3; abcd: 6; bbbb: 0; bbbc: 3.
    np.testing.assert_allclose(sweep.disagreement_PB, [[4 / 6, 3 / 6, 1], [0, 4 / 6, 3 / 6]])
    assert sweep.tokens_B.tolist() == [100, 200, 400]


def test_disagreement_is_the_share_of_pairs_that_differ():
    answers = ["a", "b", "a", None, "c", "a"]
    sweep = sweep_of(samples("p", 1, answers) + samples("q", 1, "ab"))
    pairs = list(combinations([a for a in answers if a is not None], 2))
    assert sweep.disagreement_PB[0, 0] == pytest.approx(sum(a != b for a, b in pairs) / len(pairs))


def test_answer_entropy_by_hand():
    found = find(estimates_of(HAND), "answer_entropy", budget=400)
    # abcd: ln 4 and 3 more kinds than one among 4 samples; bbbc: H(3/4, 1/4) and one more.
    p = math.log(4) + 3 / 8
    q = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25)) + 1 / 8
    assert found.value == pytest.approx((p + q) / 2)
    assert (found.low, found.high, found.n) == (None, None, 2)
    assert "Miller" in found.how
    assert "no interval" in found.how


def test_accuracy_and_tokens_at_every_budget():
    rows = [row | {"n_tokens": row["budget"] // 2 + row["sample_index"]} for row in HAND]
    found = find(estimates_of(rows), "accuracy", budget=200)
    assert found.value == pytest.approx((0.75 + 0.5) / 2)
    assert found.at["tokens"] == pytest.approx(100 + 1.5)  # sample indices 0..3
    assert found.n == 2


def test_a_problem_or_rollout_that_is_not_judged_at_every_budget_is_left_out():
    extra = [*samples("only once", 100, "aaaa"), HAND[0] | {"sample_index": 9, "correct": None, "answer": "z"}]
    ours, theirs = sweep_of(HAND + extra), sweep_of(HAND)
    np.testing.assert_allclose(ours.accuracy_PB, theirs.accuracy_PB)
    np.testing.assert_allclose(ours.disagreement_PB, theirs.disagreement_PB)
    # Tokens too are those of the problems compared.
    rows = [row | {"n_tokens": 10} for row in HAND] + [row | {"n_tokens": 10_000} for row in extra]
    assert sweep_of(rows).tokens_B.tolist() == [10, 10, 10]


def test_flips_by_hand():
    rows = samples("p", 1, "aabb") + samples("p", 2, "abab") + samples("q", 1, "aaaa") + samples("q", 2, "bb")
    flips = count_flips(evidence_of(rows).answers, 1, 2)
    # p: right→right, right→wrong, wrong→right, wrong→wrong; of q only two samples have both verdicts.
    np.testing.assert_allclose(flips.right_to_wrong_P, [1 / 4, 1])
    np.testing.assert_allclose(flips.wrong_to_right_P, [1 / 4, 0])
    numbers = estimates_of(rows)
    assert find(numbers, "right_to_wrong", budget=2).value == pytest.approx(5 / 8)
    assert find(numbers, "wrong_to_right", budget=2).value == pytest.approx(1 / 8)


def test_flips_follow_a_sample_within_its_step():
    rows = [*samples("p", 1, "a", step=8), *samples("p", 1, "b", step=9)]
    rows += [*samples("p", 2, "b", step=9), *samples("p", 2, "a", step=8)]
    flips = count_flips(evidence_of(rows).answers, 1, 2)
    assert flips.right_to_wrong_P.tolist() == [0]
    assert flips.wrong_to_right_P.tolist() == [0]


def test_net_flips_are_the_accuracy_lost_where_every_sample_is_matched():
    numbers = estimates_of(random_sweep(0))
    loss, flips = find(numbers, "overthinking_loss"), find(numbers, "net_flips")
    assert flips.value == pytest.approx(-loss.value)


def random_sweep(seed, *, accuracy=(0.3, 0.6, 0.4), prompts=40, drawn=6):
    rng = np.random.default_rng(seed)
    return [
        row
        for p in range(prompts)
        for b, right in enumerate(accuracy)
        for row in samples(
            f"p{p}", 100 * 2**b, ["a" if rng.random() < right else "bc"[rng.integers(2)] for _ in range(drawn)]
        )
    ]


def test_parallel_gain_is_the_vote_over_every_subset_minus_one_long_sample():
    # One sample of budget 300 pays for three of 100.
    rows = samples("p", 100, "aabbc") + samples("p", 200, "a") + samples("p", 300, "ab")
    rows += samples("q", 100, ["a", None, "b", "b", "a"]) + samples("q", 200, "b") + samples("q", 300, "aa")
    sweep = sweep_of(rows)
    for problem, answers, long in ((0, "aabbc", 1 / 2), (1, ["a", None, "b", "b", "a"], 1)):
        won = []
        for subset in combinations(answers, 3):
            votes = [a for a in subset if a is not None]
            most = max(votes.count(a) for a in votes)
            leaders = [a for a in set(votes) if votes.count(a) == most]
            won.append(("a" in leaders) / len(leaders))
        assert parallel_gain(sweep, 0)[problem] == pytest.approx(np.mean(won) - long)


def test_parallel_samples_are_at_most_those_drawn_and_at_least_one():
    rows = [row for p in "pqrs" for b, a in ((1, "ab"), (2, "ab"), (1000, "bb")) for row in samples(p, b, a)]
    np.testing.assert_allclose(parallel_gain(sweep_of(rows), 0), 0.5)  # two of budget 1, not 1,000
    np.testing.assert_allclose(parallel_gain(sweep_of(rows), 2), 0.0)  # one against one
    free = [row | {"budget": row["budget"] - 1} for row in rows]  # no thinking at all costs something too
    assert np.isfinite(parallel_gain(sweep_of(free), 0)).all()


def flat_sweep(rng, prompts=60, budgets=6, drawn=8) -> Sweep:
    """Every budget has the same accuracy."""
    rate = rng.beta(0.5, 0.5, prompts)
    accuracy = rng.binomial(drawn, rate[:, None], (prompts, budgets)) / drawn
    nothing = np.zeros((prompts, budgets))
    return Sweep(np.arange(prompts), np.arange(1.0, budgets + 1), accuracy, nothing, nothing, np.ones(budgets), ())


def test_a_flat_curve_shows_no_overthinking_where_the_naive_difference_does():
    rng = np.random.default_rng(0)
    ours, naive = [], []
    for seed in range(400):
        sweep = flat_sweep(rng)
        ours.append(overthinking_loss(sweep, pick_budgets(sweep, seed=seed)).value)
        means = sweep.accuracy_PB.mean(axis=0)
        naive.append(means[-1] - means.max())
    error = np.std(ours) / len(ours) ** 0.5
    assert abs(np.mean(ours)) < 3 * error
    assert np.mean(naive) < -10 * error


def test_overthinking_loss_is_taken_where_the_best_was_not_picked():
    # All problems are alike, so whichever half is used the numbers are known.
    accuracy = np.tile([[0.2, 0.9, 0.5]], (20, 1))
    nothing = np.zeros_like(accuracy)
    sweep = Sweep(np.arange(20), np.asarray([1.0, 2.0, 3.0]), accuracy, nothing, nothing, np.ones(3), ())
    assert overthinking_loss(sweep, pick_budgets(sweep, seed=0)).value == pytest.approx(-0.4)
    assert pick_budgets(sweep, seed=0).best_P.tolist() == [1] * 20


def test_an_interval_is_wider_where_it_is_not_sure_which_budget_is_best():
    rng = np.random.default_rng(4)
    for accuracy, factor in (
        (flat_sweep(rng).accuracy_PB[:, :2], math.sqrt(1 + 1 / math.pi)),
        (np.add(rng.random((60, 2)), [[5, 0]]), 1),
    ):
        nothing = np.zeros_like(accuracy)
        sweep = Sweep(np.arange(60), np.asarray([1.0, 2.0]), accuracy, nothing, nothing, np.ones(2), ())
        values = rng.permutation(np.tile([0.0, 2.0], 30))  # kurtosis 1: all 59 degrees of freedom
        found = against_best(pick_budgets(sweep, seed=0), lambda best, values=values: values)
        half = t.ppf(0.975, 59) * values.std(ddof=1) / 60**0.5
        assert found.value == pytest.approx(values.mean())
        assert found.high - found.value == pytest.approx(factor * half)
        assert found.value - found.low == pytest.approx(factor * half)


def test_each_half_uses_the_best_budget_of_the_other_half():
    rng = np.random.default_rng(3)
    accuracy = rng.random((30, 4))
    nothing = np.zeros_like(accuracy)
    sweep = Sweep(np.arange(30), np.arange(1.0, 5), accuracy, nothing, nothing, np.ones(4), ())
    # With a difference that is the budget's number, the mean tells how many problems each pick served: 15 and 15.
    found = against_best(pick_budgets(sweep, seed=7), lambda best: np.full(30, float(best)))
    half = np.random.default_rng(7).permutation(30) % 2
    means = [accuracy[half == h].mean(axis=0) for h in (0, 1)]
    assert found.value == pytest.approx((np.argmax(means[0]) + np.argmax(means[1])) / 2)


def test_a_rising_curve_loses_nothing_and_says_how_much_it_might():
    rng = np.random.default_rng(1)
    lead = rng.choice([0.125, 0.25, 0.5], 60)
    accuracy = np.stack([np.zeros(60), np.full(60, 0.25), 0.25 + lead], axis=1)
    nothing = np.zeros_like(accuracy)
    swept = Sweep(np.arange(60), np.arange(1.0, 4), accuracy, nothing, nothing, np.ones(3), ())
    found = overthinking_loss(swept, pick_budgets(swept, seed=0))
    # The largest leads in every problem, so no bound lies below 0.
    assert (found.value, found.low, found.high) == (0, 0, 0)
    accuracy[:26, 2] = 0.0  # now many problems lose: the largest still leads in both halves, but not for sure
    swept = Sweep(np.arange(60), np.arange(1.0, 4), accuracy, nothing, nothing, np.ones(3), ())
    found = overthinking_loss(swept, pick_budgets(swept, seed=0))
    difference = accuracy[:, 2] - accuracy[:, 1]
    bound = difference.mean() - t.ppf(0.975, 59) * difference.std(ddof=1) / 60**0.5
    assert (found.value, found.high) == (0, 0)
    assert found.low == pytest.approx(min(bound, 0))
    assert bound < 0


def test_best_budget_is_the_highest_mean_and_the_smaller_of_a_tie():
    accuracy = np.asarray([[0.5, 1.0, 1.0], [0.5, 0.0, 0.0], [0.2, 0.8, 0.8]])
    nothing = np.zeros_like(accuracy)
    sweep = Sweep(np.arange(3), np.asarray([10.0, 20.0, 30.0]), accuracy, nothing, nothing, np.ones(3), ())
    assert best_budget(sweep, pick_budgets(sweep, seed=0)).value == 20
    sure = np.tile([[0.1, 0.9, 0.3]], (12, 1))
    sweep = Sweep(
        np.arange(12), np.asarray([10.0, 20.0, 30.0]), sure, np.zeros_like(sure), np.zeros_like(sure), np.ones(3), ()
    )
    found = best_budget(sweep, pick_budgets(sweep, seed=0))
    assert (found.low, found.value, found.high) == (20, 20, 20)


def test_two_budgets_cannot_show_an_optimum():
    numbers = estimates_of([row for row in HAND if row["budget"] < 400])
    found = find(numbers, "overthinking_loss")
    assert found.value is None
    assert "found 2" in found.missing
    assert find(numbers, "accuracy", budget=200).value is not None


@pytest.mark.parametrize("column", ["budget", "correct"])
def test_what_is_missing_is_named(column):
    rows = [{name: value for name, value in row.items() if name != column} for row in HAND]
    [found] = estimates_of(rows)
    assert found.value is None
    assert column in found.missing


def test_single_samples_and_missing_answers_leave_what_needs_them_out():
    single = [row for row in random_sweep(0) if row["sample_index"] == 0]
    numbers = estimates_of(single)
    assert find(numbers, "disagreement_rise").value is None
    assert "two or more answers" in find(numbers, "disagreement_rise").missing
    assert find(numbers, "overthinking_loss").value is not None
    silent = [{name: value for name, value in row.items() if name != "answer"} for row in random_sweep(0)]
    numbers = estimates_of(silent)
    assert find(numbers, "parallel_gain").value is None
    assert not [number for number in numbers if number.name == "answer_entropy"]


def test_problems_that_share_no_budget():
    rows = samples("p", 1, "ab") + samples("q", 2, "ab") + samples("r", 3, "ab")
    [found] = estimates_of(rows)
    assert found.value is None
    assert "same problems" in found.missing


def test_each_strategy_has_its_own_sweep():
    rows = [row | {"strategy": name} for name in ("single", "vote") for row in HAND]
    numbers = estimates_of(rows)
    assert find(numbers, "accuracy", budget=200, strategy="vote").value == pytest.approx(0.625)
    assert find(numbers, "overthinking_loss", strategy="single").value is not None


def test_against_a_baseline_at_the_same_budgets():
    base = [row | {"correct": row["sample_index"] == 0} for row in HAND if row["budget"] > 100]
    numbers = estimates_of(HAND, baseline=base)
    found = find(numbers, "accuracy_vs_baseline", budget=200)
    assert found.value == pytest.approx(((0.75 - 0.25) + (0.5 - 0.25)) / 2)
    assert found.at["against"] == "baseline"
    assert [n.at["budget"] for n in numbers if n.name == "accuracy_vs_baseline"] == [200, 400]
    two = base + [row | {"strategy": "vote"} for row in base]
    assert "one condition" in find(estimates_of(HAND, baseline=two), "accuracy_vs_baseline").missing


def test_the_same_seed_gives_the_same_numbers():
    rows = random_sweep(5)
    assert estimates_of(rows, seed=3) == estimates_of(rows, seed=3)
