"""Splitting one budget over questions: against enumeration, numerical integration and the duality bound."""

from __future__ import annotations

import json
from itertools import product

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import minimize_scalar
from scipy.stats import beta, betabinom

from equipoise.errors import UsageError
from equipoise.infer.allocation import Prior, allocate, best_action, fit_prior, success_gains
from equipoise.infer.policy import Bin, Option, Policy


def by_enumeration(value_QA, cost_QA, budget):
    """The best value of any split, and None where there is none."""
    best = None
    for actions in product(*(range(len(row)) for row in value_QA)):
        cost = sum(cost_QA[q][a] for q, a in enumerate(actions))
        value = sum(value_QA[q][a] for q, a in enumerate(actions))
        if cost <= budget + 1e-9 and (best is None or value > best):
            best = value
    return best


# --- the gain of a further sample ------------------------------------------------------------------------------------------


def test_a_gain_is_the_integral_over_what_the_pilot_leaves_open():
    found = success_gains([1, 0], [4, 4], most=3, prior=Prior(0.7, 1.9))
    for q, right in enumerate((1, 0)):
        left = beta(0.7 + right, 1.9 + 4 - right)
        for j in range(1, 4):
            expected, _ = quad(lambda p, j=j, left=left: left.pdf(p) * p * (1 - p) ** (j - 1), 0, 1)
            assert found[q, j - 1] == pytest.approx(expected, rel=1e-6)


def test_at_a_known_success_rate_it_is_geometric():
    (found,) = success_gains([0], [0], most=5, prior=Prior(0.3e6, 0.7e6))
    assert found == pytest.approx([0.3, 0.21, 0.147, 0.1029, 0.07203], rel=1e-5)


def test_gains_do_not_rise_and_add_up_to_the_chance_of_a_success():
    found = success_gains([0, 2, 4], [4, 4, 4], most=200, prior=Prior(0.5, 0.5))
    assert (np.diff(found, axis=1) <= 0).all()
    for row, right in zip(found, (0, 2, 4), strict=True):
        # No success among the next 200: the Beta-binomial's chance of 0.
        assert 1 - row.sum() == pytest.approx(betabinom.pmf(0, 200, 0.5 + right, 0.5 + 4 - right))


def test_a_pilot_without_success_still_expects_something():
    (found,) = success_gains([0], [4], most=1, prior=Prior(1, 1))
    assert found[0] == pytest.approx(1 / 6)  # the rule of succession: (0 + 1) / (4 + 2)


def test_the_prior_is_the_likeliest_one():
    rng = np.random.default_rng(3)
    drawn = rng.integers(3, 9, 300)
    right = rng.binomial(drawn, rng.beta(0.6, 1.4, 300))
    found = fit_prior(right, drawn)

    def surprise(a, b):
        return -betabinom.logpmf(right, drawn, a, b).sum()

    here = surprise(*found)
    for a, b in product((0.9, 1, 1.1), repeat=2):
        assert here <= surprise(found.a * a, found.b * b) + 1e-6
    assert found.a == pytest.approx(0.6, abs=0.25)
    assert found.b == pytest.approx(1.4, abs=0.5)


@pytest.mark.parametrize("right", [0, 4])
def test_a_prior_of_questions_that_are_all_alike_is_finite(right):
    found = fit_prior([right] * 12, [4] * 12)
    assert 0 < found.a < 1000
    assert 0 < found.b < 1000
    (gain,) = success_gains([0], [4], most=1, prior=found)
    assert 0 < gain[0] < 1


def test_counts_that_cannot_be_are_refused():
    with pytest.raises(UsageError, match="0 ≤ right ≤ drawn"):
        fit_prior([3], [2])


# --- one question at a price -----------------------------------------------------------------------------------------------


def test_a_price_of_nothing_buys_the_most_accurate_and_a_high_one_the_cheapest():
    value, cost = [0.2, 0.5, 0.6, 0.6], [1.0, 2.0, 5.0, 4.0]
    assert best_action(value, cost, price=0) == 3  # as accurate as the third, and cheaper
    assert best_action(value, cost, price=1e-9) == 3
    assert best_action(value, cost, price=10) == 0
    assert best_action(value, cost, price=0.1) == 1  # 0.1, 0.3, 0.1, 0.2
    assert best_action([np.nan, 0.1], [0.0, 1.0], price=0) == 1


# --- many questions --------------------------------------------------------------------------------------------------------


def test_with_falling_gains_and_equal_costs_no_split_is_better():
    rng = np.random.default_rng(0)
    for _ in range(20):
        gains = -np.sort(-rng.random((4, 3)), axis=1)
        value = np.concatenate([np.zeros((4, 1)), np.cumsum(gains, axis=1)], axis=1)
        cost = np.tile(np.arange(4.0), (4, 1))
        for budget in range(13):
            found = allocate(value, cost, budget=budget)
            assert found.spent == budget
            assert found.value == pytest.approx(by_enumeration(value, cost, budget))


@pytest.mark.parametrize("seed", range(30))
def test_any_curves_and_costs(seed):
    rng = np.random.default_rng(seed)
    value, cost = rng.random((5, 4)), rng.integers(1, 30, (5, 4)).astype(float)
    budget = float(rng.uniform(cost.min(axis=1).sum(), cost.max(axis=1).sum()))
    found = allocate(value, cost, budget=budget)
    rows = np.arange(5)
    assert found.spent == pytest.approx(cost[rows, found.chosen_Q].sum())
    assert found.value == pytest.approx(value[rows, found.chosen_Q].sum())
    assert found.spent <= budget
    best = by_enumeration(value, cost, budget)
    assert found.value <= best + 1e-12

    def dual(price):
        return (
            sum(max(v - price * c for v, c in zip(*row, strict=True)) for row in zip(value, cost, strict=True))
            + price * budget
        )

    # The multiplier that bisection would find is the one that makes the dual least.
    bound = minimize_scalar(dual, bounds=(0, 5), method="bounded", options={"xatol": 1e-12})
    assert best <= bound.fun + 1e-6
    assert dual(found.price) == pytest.approx(bound.fun, abs=1e-4)
    # Within one action of the budget: nobody's next better action fits into what is left.
    for q in range(5):
        mine = found.chosen_Q[q]
        steps = [
            (value[q, a] - value[q, mine]) / (cost[q, a] - cost[q, mine])
            for a in range(4)
            if cost[q, a] > cost[q, mine] and cost[q, a] - cost[q, mine] <= budget - found.spent
        ]
        assert all(worth <= found.price + 1e-12 for worth in steps)


def test_the_price_parts_what_fits_from_what_does_not():
    rng = np.random.default_rng(5)
    value, cost = np.sort(rng.random((40, 6)), axis=1), np.cumsum(rng.integers(1, 9, (40, 6)), axis=1).astype(float)
    found = allocate(value, cost, budget=600.0)

    def spent_at(price):
        return sum(cost[q, best_action(value[q], cost[q], price=price)] for q in range(40))

    assert spent_at(found.price * 1.000001) <= 600 < spent_at(found.price * 0.999999)
    assert 600 - found.spent < 9


def test_more_budget_is_never_worth_less_and_the_price_falls():
    rng = np.random.default_rng(1)
    gains = -np.sort(-rng.random((10, 5)), axis=1)
    value, cost = np.cumsum(gains, axis=1), np.tile(np.arange(1.0, 6), (10, 1))
    found = [allocate(value, cost, budget=b) for b in range(10, 51)]
    assert (np.diff([one.value for one in found]) >= -1e-12).all()
    assert (np.diff([one.price for one in found]) <= 1e-12).all()
    assert found[-1].price == 0
    assert (found[-1].chosen_Q == 4).all()


def test_the_order_of_the_questions_does_not_matter():
    rng = np.random.default_rng(2)
    value, cost = rng.random((12, 5)), rng.random((12, 5))
    budget = float(cost.mean(axis=1).sum())
    found, shuffle = allocate(value, cost, budget=budget), rng.permutation(12)
    again = allocate(value[shuffle], cost[shuffle], budget=budget)
    assert (again.chosen_Q == found.chosen_Q[shuffle]).all()
    assert (again.price, again.spent) == pytest.approx((found.price, found.spent))


def test_a_step_that_gains_late_is_taken_whole():
    # One more vote against a lead of two changes nothing, three more may: 0.5, 0.5, 0.5, 0.8.
    value, cost = [[0.5, 0.5, 0.5, 0.8]], [[0.0, 1.0, 2.0, 3.0]]
    assert allocate(value, cost, budget=2).chosen_Q.tolist() == [0]
    assert allocate(value, cost, budget=3).chosen_Q.tolist() == [3]
    assert allocate(value, cost, budget=2).price == pytest.approx(0.1)


def test_a_step_that_does_not_fit_is_not_jumped_over():
    # The second step costs 1 and would fit, but only from the first, which costs 10; the other question may use the rest.
    value, cost = [[0.0, 1.0, 1.05], [0.0, 0.02, 0.03]], [[0.0, 10.0, 11.0], [0.0, 2.0, 4.0]]
    found = allocate(value, cost, budget=5)
    assert (found.chosen_Q.tolist(), found.spent, found.value) == ([0, 2], 4, pytest.approx(0.03))
    assert found.price == pytest.approx(0.1)


def test_what_a_question_does_not_have_is_not_chosen():
    found = allocate([[0.1, np.nan, 0.9], [0.2, 0.8, 0.3]], [[1, 1, np.nan], [1, 2, 9]], budget=100)
    assert found.chosen_Q.tolist() == [0, 1]


def test_a_budget_below_the_cheapest_is_refused():
    with pytest.raises(UsageError, match=r"costs 5 and the budget is 4"):
        allocate([[0.1], [0.2]], [[2.0], [3.0]], budget=4)
    with pytest.raises(UsageError, match="no action at all"):
        allocate([[np.nan]], [[1.0]], budget=4)
    with pytest.raises(UsageError, match="shapes"):
        allocate([[1.0]], [[1.0, 2.0]], budget=4)


# --- the policy ------------------------------------------------------------------------------------------------------------

POLICY = Policy(
    "vote",
    pilot=4,
    cap=None,
    price=0.001,
    bins=(
        Bin(0, 2, 0.4, 50.0, (Option(4, None, 0.30, 0.0), Option(8, None, 0.52, 200.0), Option(16, None, 0.60, 600.0))),
        Bin(4, 4, 0.6, 20.0, (Option(4, None, 0.95, 0.0), Option(8, None, 0.96, 80.0))),
    ),
)


def test_a_question_takes_what_its_bin_is_worth_at_the_price():
    # Net of 0.001 a token: 0.30, 0.32, 0.00 where the pilot is split; 0.95, 0.88 where it agrees.
    assert POLICY.choose(1).samples == 8
    assert POLICY.choose(4).samples == 4
    # Twice as long: 0.30, 0.12, ...; half as long: 0.30, 0.42, 0.30.
    assert POLICY.choose(1, sample_tokens=100).samples == 4
    assert POLICY.choose(1, sample_tokens=25).samples == 8


def test_a_state_that_was_never_seen_belongs_to_the_nearest_bin():
    assert POLICY.find_bin(3) in POLICY.bins
    assert POLICY.find_bin(7) is POLICY.bins[1]
    assert POLICY.find_bin(2) is POLICY.bins[0]


def test_a_policy_survives_its_file():
    assert Policy.of(json.loads(json.dumps(POLICY.to_dict()))) == POLICY
    with pytest.raises(UsageError, match=r"equipoise\.policy/1"):
        Policy.of({"schema": "other"})
