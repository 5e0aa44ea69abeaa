"""PKPO and Pass@k Training by enumeration: every subset of a group, and every group a small policy can draw."""

from __future__ import annotations

from itertools import combinations, product
from math import comb, sqrt

import numpy as np
import pytest

from equipoise.errors import UsageError
from equipoise.shaping.advantages import group_std, leave_one_out
from equipoise.shaping.passk_training import passk_training
from equipoise.shaping.pkpo import pkpo, pkpo_rewards, pkpo_right_rewards

NAN = np.nan
SIZES = [(n, k) for n in range(1, 8) for k in range(1, n + 1)]
GROUPS = [
    [0.0, 0.0, 0.0, 0.0, 0.0],
    [1.0, 0.0, 0.0, 1.0, 0.0],
    [0.3, -2.0, 0.3, 5.0, 1.5],
    [-1.0, -1.0, -3.0, -2.0, -2.0],
]


def of(function, values, k):
    values = np.asarray([values], dtype=float)
    return function(values, np.ones(values.shape, dtype=bool), k=k)[0]


def outcome(right, n):
    return [1.0] * right + [0.0] * (n - right)


# ---------------------------------------------------------------- PKPO


@pytest.mark.parametrize("values", GROUPS)
@pytest.mark.parametrize("k", range(1, 6))
def test_a_reward_is_the_sum_of_the_best_over_its_subsets(values, k):
    n = len(values)
    subsets = list(combinations(range(n), k))
    expected = [sum(max(values[j] for j in s) for s in subsets if i in s) / len(subsets) for i in range(n)]
    np.testing.assert_allclose(of(pkpo_rewards, values, k), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("n", "k"), SIZES)
def test_rewards_of_right_and_wrong_are_the_closed_form(n, k):
    for right in range(n + 1):
        values = outcome(right, n)
        subsets = list(combinations(range(n), k))
        expected = [sum(max(values[j] for j in s) for s in subsets if i in s) / len(subsets) for i in range(n)]
        np.testing.assert_allclose(of(pkpo_right_rewards, values, k), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("values", GROUPS)
@pytest.mark.parametrize("k", range(2, 6))
def test_the_advantage_is_what_a_completion_adds_to_its_subsets(values, k):
    n = len(values)
    subsets = list(combinations(range(n), k))
    added = [
        sum(max(values[j] for j in s) - max(values[j] for j in s if j != i) for s in subsets if i in s) / len(subsets)
        for i in range(n)
    ]
    found = of(pkpo, values, k)
    np.testing.assert_allclose(found, n * np.array(added), rtol=1e-12, atol=1e-12)
    assert (found >= 0).all()


@pytest.mark.parametrize(("n", "k"), [(n, k) for n, k in SIZES if k > 1])
def test_without_enough_wrong_ones_or_any_right_one_nothing_moves(n, k):
    for right in range(n + 1):
        found = of(pkpo, outcome(right, n), k)
        assert not found[right:].any()
        assert found[:right].any() == (right > 0 and n - right >= k - 1)


def test_k_of_one_is_the_leave_one_out_advantage_of_pass_at_1():
    for values in GROUPS:
        np.testing.assert_array_equal(of(pkpo, values, 1), of(lambda r, keep, k: leave_one_out(r, keep), values, 1))
        np.testing.assert_allclose(of(pkpo_rewards, values, 1), np.array(values) / 5, rtol=1e-15)


LOGITS = np.array([0.4, -0.3, 0.1])
PRIZES = {"right and wrong": np.array([0.0, 1.0, 0.0]), "graded": np.array([0.2, -1.0, 3.0])}


def softmax(logits):
    p = np.exp(logits - logits.max())
    return p / p.sum()


def best_of_k(logits, prize, k):
    p = softmax(logits)
    return sum(np.prod(p[list(draw)]) * prize[list(draw)].max() for draw in product(range(3), repeat=k))


def finite_differences(prize, k, step=1e-5):
    moves = step * np.eye(3)
    return np.array([(best_of_k(LOGITS + m, prize, k) - best_of_k(LOGITS - m, prize, k)) / (2 * step) for m in moves])


@pytest.mark.parametrize("prize", PRIZES.values(), ids=PRIZES.keys())
@pytest.mark.parametrize(("n", "k"), [(2, 1), (3, 1), (3, 2), (4, 2), (4, 3), (4, 4), (5, 3)])
def test_the_expected_gradient_is_that_of_the_best_of_k(n, k, prize):
    # Every group of n that a softmax over three completions can draw, with its probability.
    p = softmax(LOGITS)
    draws = np.array(list(product(range(3), repeat=n)))
    chance = np.prod(p[draws], axis=1)
    score = np.eye(3)[draws] - p  # ∇ log softmax
    keep = np.ones(draws.shape, dtype=bool)
    true = finite_differences(prize, k)

    def expected(weights):
        return np.einsum("d,dn,dnv->v", chance, weights, score)

    np.testing.assert_allclose(expected(pkpo_rewards(prize[draws], keep, k=k)), true, atol=1e-9)
    np.testing.assert_allclose(expected(pkpo(prize[draws], keep, k=k) / n), true, atol=1e-9)
    if set(prize) <= {0.0, 1.0}:
        np.testing.assert_allclose(expected(pkpo_right_rewards(prize[draws], keep, k=k)), true, atol=1e-9)


# ---------------------------------------------------------------- Pass@k Training


def test_worked_by_hand():
    # n = 4, one right, k = 2: 3 of 6 pairs hold it, ρ = 1/2, σ = 1/2. Right: (1/2)/(1/2). Wrong: (1/2 − 2/3)/(1/2).
    np.testing.assert_allclose(of(passk_training, [1, 0, 0, 0], 2), [1, -1 / 3, -1 / 3, -1 / 3], rtol=1e-12)


@pytest.mark.parametrize(("n", "k"), SIZES)
def test_advantages_are_the_normalised_means_over_a_completion_s_subsets(n, k):
    for right in range(n + 1):
        values = outcome(right, n)
        found = of(passk_training, values, k)
        prize = {s: float(any(values[j] for j in s)) for s in combinations(range(n), k)}
        mean, spread = np.mean(list(prize.values())), np.std(list(prize.values()))
        if right == 0 or n - right < k:
            assert not found.any()
            continue
        for i in range(n):
            own = [(value - mean) / spread for s, value in prize.items() if i in s]
            assert found[i] == pytest.approx(np.mean(own), abs=1e-12)
        assert found.sum() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(("n", "k"), SIZES)
def test_they_are_pkpo_s_rewards_in_another_dress(n, k):
    for right in range(1, n - k + 1):
        rho = 1 - comb(n - right, k) / comb(n, k)
        other = (n / k * of(pkpo_right_rewards, outcome(right, n), k) - rho) / sqrt(rho * (1 - rho))
        np.testing.assert_allclose(of(passk_training, outcome(right, n), k), other, atol=1e-12)


def test_k_of_one_is_grpo():
    for right in range(9):
        expected = of(lambda r, keep, k: group_std(r, keep, std="population", eps=0), outcome(right, 8), 1)
        np.testing.assert_allclose(of(passk_training, outcome(right, 8), 1), expected, atol=1e-12)


def test_verl_s_grpo_passk_is_another_method():
    """Its advantage, (best − second best) / std for the best alone, acts on one success only; ours on up to n − k."""
    for right in range(9):
        first, second = sorted(outcome(right, 8))[:-3:-1]
        assert (first - second != 0) == (right == 1)
        assert of(passk_training, outcome(right, 8), 2).any() == (1 <= right <= 6)


# ---------------------------------------------------------------- groups of unequal size


@pytest.mark.parametrize("function", [pkpo, pkpo_rewards, pkpo_right_rewards, passk_training])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_unequal_groups_unknown_cells_and_padding(function, k):
    rows = [[1, 0, 0, 1, 0], [0, 1, 1], [1], [0, 0, 0, 1]]
    values = np.full((4, 6), np.inf)
    keep = np.zeros((4, 6), dtype=bool)
    for p, row in enumerate(rows):
        keep[p, : len(row)] = True
        values[p, : len(row)] = row
    values[3, 5], keep[3, 5] = NAN, True  # drawn, but not checked
    found = function(values, keep, k=k)
    for p, row in enumerate(rows):
        expected = of(function, row, k) if len(row) >= k else np.zeros(len(row))
        np.testing.assert_allclose(found[p, : len(row)], expected, rtol=1e-12)
        assert not found[p, len(row) :].any()


@pytest.mark.parametrize("function", [pkpo, pkpo_rewards, pkpo_right_rewards, passk_training])
def test_order_does_not_matter(function):
    rng = np.random.default_rng(0)
    values, keep = (rng.random((5, 6)) < 0.4).astype(float), np.ones((5, 6), dtype=bool)
    order = rng.permutation(6)
    np.testing.assert_allclose(function(values[:, order], keep, k=3), function(values, keep, k=3)[:, order], atol=1e-15)
    np.testing.assert_array_equal(function(values[::-1], keep, k=3), function(values, keep, k=3)[::-1])


@pytest.mark.parametrize("function", [pkpo, pkpo_rewards, pkpo_right_rewards, passk_training])
@pytest.mark.parametrize("k", [0, -1, 5])
def test_a_k_that_no_group_can_fill_is_refused(function, k):
    with pytest.raises(UsageError, match=f"k = {k} does not fit groups of 4 completions"):
        function(np.ones((2, 4)), np.ones((2, 4), dtype=bool), k=k)


@pytest.mark.parametrize("function", [pkpo_right_rewards, passk_training])
def test_only_verdicts_are_taken(function):
    with pytest.raises(UsageError, match=r"found 0\.5: pass the raw verdicts"):
        function(np.array([[0.5, 1.0]]), np.ones((1, 2), dtype=bool), k=1)


def test_large_groups_stay_exact():
    # One right of 512, k = 64: it adds 1 in each of the C(511, 63) subsets that hold it.
    found = of(pkpo, outcome(1, 512), 64)
    assert found[0] == pytest.approx(64.0, rel=1e-12)
    assert of(pkpo_rewards, outcome(1, 512), 64)[0] == pytest.approx(64 / 512, rel=1e-12)
    assert of(passk_training, outcome(1, 512), 64).sum() == pytest.approx(0, abs=1e-9)
