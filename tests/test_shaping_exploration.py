"""Outcome-based exploration, against hand values and full enumeration of what a group may answer."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from equipoise.errors import UsageError
from equipoise.shaping.exploration import all_right, batch_exploration, rarity, ucb_constant, ucb_mean, ucb_naive
from equipoise.shaping.tokens import all_answer, spread_bonus

NAN = math.nan
TERMS = {
    "naive": lambda visits, keep, right, **how: ucb_naive(visits, keep, right, weight=0.2, **how),
    "mean": lambda visits, keep, right, **how: ucb_mean(visits, keep, right, weight=0.2, **how),
    "constant": lambda visits, keep, right, **how: ucb_constant(visits, keep, right, weight=0.2, baseline=0.5, **how),
    # Counts double as answer codes here; nan is no answer.
    "batch": lambda visits, keep, right, **how: batch_exploration(
        np.where(np.isnan(visits), -1, visits).astype(int), keep, right, weight=0.2, **how
    ),
}
every_term = pytest.mark.parametrize("term", TERMS.values(), ids=TERMS)


def full(shape: tuple[int, ...]) -> np.ndarray:
    return np.ones(shape, dtype=bool)


def wrong(shape: tuple[int, ...]) -> np.ndarray:
    return np.zeros(shape)


def test_a_first_visit_is_worth_1_and_every_further_one_less():
    assert rarity(np.array([0.0, 1, 4, 16, 100])).tolist() == [1, 1, 0.5, 0.25, 0.1]
    assert np.isnan(rarity(np.array([NAN]))).all()
    assert (np.diff(rarity(np.arange(1.0, 50))) < 0).all()


def test_the_three_historical_terms_by_hand():
    visits = np.array([[0.0, 4, 16, NAN]])  # b = 1, 1/2, 1/4 and an answer that cannot be read
    keep, right = full((1, 4)), wrong((1, 4))
    np.testing.assert_allclose(ucb_naive(visits, keep, right, weight=0.2), [[0.2, 0.1, 0.05, 0]])
    # 1 − 3/8, 1/2 − 5/8, 1/4 − 3/4
    np.testing.assert_allclose(ucb_mean(visits, keep, right, weight=1.0), [[0.625, -0.125, -0.5, 0]])
    np.testing.assert_allclose(ucb_constant(visits, keep, right, weight=0.2, baseline=0.5), [[0.1, 0, -0.05, 0]])


def test_a_baseline_of_a_half_turns_at_4_visits_and_one_of_1_never_pays():
    visits, keep, right = np.arange(0.0, 40)[None], full((1, 40)), wrong((1, 40))
    half = ucb_constant(visits, keep, right, weight=1.0, baseline=0.5)[0]
    assert (half[:4] > 0).all()
    assert half[4] == 0
    assert (half[5:] < 0).all()
    one = ucb_constant(visits, keep, right, weight=1.0, baseline=1.0)[0]
    assert one[:2].tolist() == [0, 0]
    assert (one[2:] < 0).all()


@pytest.mark.parametrize("seed", range(3))
def test_the_mean_of_the_others_is_a_slow_loop_and_sums_to_0(seed):
    rng = np.random.default_rng(seed)
    visits = rng.integers(0, 30, (5, 6)).astype(float)
    visits[rng.random((5, 6)) < 0.2] = NAN
    keep = rng.random((5, 6)) < 0.9
    found = ucb_mean(visits, keep, None, weight=0.3, unless_all_right=False)
    for p in range(5):
        known = [g for g in range(6) if keep[p, g] and not math.isnan(visits[p, g])]
        for g in range(6):
            others = [min(1, 1 / math.sqrt(visits[p, j] or 1)) for j in known if j != g]
            own = min(1, 1 / math.sqrt(visits[p, g] or 1)) if g in known else None
            expected = 0.3 * (own - sum(others) / len(others)) if own is not None and others else 0.0
            assert found[p, g] == pytest.approx(expected, abs=1e-12)
    np.testing.assert_allclose(found.sum(axis=1), 0, atol=1e-12)


def test_one_completion_has_no_others_to_compare_with():
    assert ucb_mean(np.array([[3.0]]), full((1, 1)), wrong((1, 1)), weight=1.0).tolist() == [[0]]
    assert batch_exploration(np.array([[7]]), full((1, 1)), wrong((1, 1)), weight=1.0).tolist() == [[0]]


def test_batch_exploration_by_hand():
    answers = np.array([[0, 1, 2, 3], [5, 5, 5, 5], [4, 4, 9, -1], [-1, -1, -1, -1]])
    found = batch_exploration(answers, full((4, 4)), wrong((4, 4)), weight=1.0)
    np.testing.assert_allclose(found, [[0] * 4, [-3 / 4] * 4, [-1 / 4, -1 / 4, 0, 0], [0] * 4])


def test_padding_is_no_part_of_the_group():
    answers, keep = np.array([[4, 4, -1, -1], [4, 4, 4, 4]]), np.array([[1, 1, 0, 0], [1, 1, 0, 0]], dtype=bool)
    # G = 2: one other of two gave the same answer.
    np.testing.assert_allclose(batch_exploration(answers, keep, wrong((2, 4)), weight=1.0), [[-0.5, -0.5, 0, 0]] * 2)


@pytest.mark.parametrize("probabilities", [(0.5, 0.3, 0.2), (1.0,), (0.25,) * 4])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_expected_batch_term_is_the_collision_probability(probabilities, size):
    groups = np.array(list(product(range(len(probabilities)), repeat=size)))
    chance = np.prod(np.array(probabilities)[groups], axis=1)
    terms = batch_exploration(groups, full(groups.shape), wrong(groups.shape), weight=1.0)
    expected = -(size - 1) / size * sum(p * p for p in probabilities)
    np.testing.assert_allclose(chance @ terms, [expected] * size, atol=1e-12)


def test_unreadable_answers_never_collide_in_expectation():
    # Answers 0.5, 0.3, and 0.2 that cannot be read: only the readable ones collide.
    groups = np.array(list(product([0, 1, -1], repeat=3)))
    chance = np.prod(np.array([0.5, 0.3, 0.2])[groups], axis=1)
    terms = batch_exploration(groups, full(groups.shape), wrong(groups.shape), weight=1.0)
    np.testing.assert_allclose(chance @ terms, [-(2 / 3) * (0.25 + 0.09)] * 3, atol=1e-12)


@every_term
def test_a_group_that_is_all_right_is_left_alone(term):
    visits = np.array([[4.0, 4, 9]] * 4)
    right = np.array([[1, 1, 1], [1, 1, 0], [1, 1, NAN], [NAN, NAN, NAN]])
    keep = full((4, 3))
    found = term(visits, keep, right)
    assert not found[0].any()
    assert found[1].any()
    assert not found[2].any()  # what was not checked does not count
    assert found[3].any()  # nothing is known to be right
    assert term(visits, keep, right, unless_all_right=False)[0].any()
    with pytest.raises(UsageError, match="unless_all_right=False"):
        term(visits, keep, None)


def test_all_right_looks_past_padding():
    keep = np.array([[True, True, False], [False, False, False]])
    assert all_right(np.array([[1, 1, NAN], [NAN, NAN, NAN]]), keep).tolist() == [True, False]


@every_term
def test_order_padding_and_scale(term):
    rng = np.random.default_rng(0)
    visits, right = rng.integers(0, 5, (6, 8)).astype(float), rng.integers(0, 2, (6, 8)).astype(float)
    keep = rng.random((6, 8)) < 0.8
    found = term(visits, keep, right)
    rows, columns = rng.permutation(6), rng.permutation(8)
    mixed = np.ix_(rows, columns)
    np.testing.assert_allclose(term(visits[mixed], keep[mixed], right[mixed]), found[mixed], atol=1e-15)
    # What stands under the padding is invisible, and its own term is 0.
    other = np.where(keep, visits, 3.0), keep, np.where(keep, right, NAN)
    np.testing.assert_array_equal(term(*other), found)
    assert not found[~keep].any()
    wide = [np.concatenate([x, fill], axis=1) for x, fill in ((visits, np.full((6, 2), NAN)), (keep, np.zeros((6, 2), bool)), (right, np.full((6, 2), NAN)))]  # fmt: skip
    np.testing.assert_allclose(term(*wide)[:, :8], found, atol=1e-15)


@every_term
def test_wrong_shapes_and_empty_batches(term):
    with pytest.raises(UsageError, match="share one shape"):
        term(np.ones((2, 3)), full((2, 1)), wrong((2, 1)))
    with pytest.raises(UsageError, match="share one shape"):
        term(np.ones((2, 3)), full((2, 3)), wrong((2, 1)))
    assert term(np.ones((0, 3)), full((0, 3)), wrong((0, 3))).shape == (0, 3)


def test_a_weight_of_0_is_no_term_and_missing_answers_are_told():
    visits, keep, right = np.array([[1.0, 4, 4]]), full((1, 3)), wrong((1, 3))
    assert not ucb_constant(visits, keep, right, weight=0.0, baseline=0.5).any()
    assert not batch_exploration(visits.astype(int), keep, right, weight=0.0).any()
    with pytest.raises(UsageError, match="answer_PG is needed"):
        batch_exploration(None, keep, right, weight=0.2)
    with pytest.raises(UsageError, match="never a shaped reward"):
        ucb_naive(visits, keep, right + 0.3, weight=0.2)


def test_the_answer_s_tokens_get_none_of_the_bonus():
    bonus = batch_exploration(np.array([[5, 5]]), full((1, 2)), wrong((1, 2)), weight=1.0)
    mask = np.array([[True, True, True, False], [True, True, False, False]])
    answer = np.array([[False, False, True, False], [True, True, False, False]])  # the second is all answer
    assert spread_bonus(bonus, full((1, 2)), mask, answer).tolist() == [[-0.5, -0.5, 0, 0], [0, 0, 0, 0]]
    assert all_answer(mask, answer).tolist() == [False, True]
