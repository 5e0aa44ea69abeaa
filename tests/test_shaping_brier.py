"""Brier rewards: hand values, the best confidence to state by search, and the shipped form as an affine map of the paper's."""

from __future__ import annotations

import math

import numpy as np
import pytest

from equipoise.errors import UsageError
from equipoise.shaping.brier import brier, brier_with_format

NAN = math.nan
GRID = np.linspace(0, 1, 1001)  # confidences to choose from
CHANCES = [0.0, 0.1, 0.3, 0.5, 0.75, 1.0]


def scored(right: float, confidences: np.ndarray, **how) -> np.ndarray:
    """The reward of each confidence, were the answer right (1) or wrong (0)."""
    how = {"weight": 1.0, "malformed": "unscored"} | how
    return brier(np.full((1, len(confidences)), right), confidences[None], np.ones((1, len(confidences)), bool), **how)[
        0
    ]


def value(chance: float, **how) -> tuple[float, float]:
    """The best confidence for a chance of being right, found by search, and what it is worth."""
    expected = chance * scored(1.0, GRID, **how) + (1 - chance) * scored(0.0, GRID, **how)
    return float(GRID[expected.argmax()]), float(expected.max())


def test_the_corners_by_hand():
    np.testing.assert_allclose(scored(1.0, np.array([1.0, 0.5, 0.0])), [1, 0.75, 0])
    np.testing.assert_allclose(scored(0.0, np.array([0.0, 0.5, 1.0])), [0, -0.25, -1])
    np.testing.assert_allclose(scored(1.0, np.array([0.5]), weight=0.4), [0.9])


@pytest.mark.parametrize("weight", [0.2, 1.0])
@pytest.mark.parametrize("chance", CHANCES)
def test_the_best_confidence_is_the_chance_of_being_right(chance, weight):
    best, worth = value(chance, weight=weight)
    assert best == pytest.approx(chance, abs=1e-9)
    if weight == 1:
        assert worth == pytest.approx(chance**2, abs=1e-9)


def test_being_right_more_often_always_pays():
    for weight in (0.3, 1.0):
        worth = [value(chance, weight=weight)[1] for chance in np.linspace(0, 1, 21)]
        assert (np.diff(worth) > 0).all()


def test_a_weight_above_1_would_pay_for_a_wrong_answer_and_is_refused():
    # By hand, weight 2: the honest value p − 2 p (1 − p) is −0.12 at p = 0.3, and 0 for a wrong answer with q = 0.
    for weight in (2.0, -0.1, NAN):
        with pytest.raises(UsageError, match="use 0 to 1"):
            scored(1.0, GRID, weight=weight)


def test_a_log_score_pays_for_a_deliberately_wrong_answer():
    def log_value(chance: float) -> float:
        inner = GRID[1:-1]
        options = chance * (1 + np.log(inner)) + (1 - chance) * np.log(1 - inner)
        sure_and_wrong = 0.0 if chance == 0 else -math.inf  # q = 0: ln 1 when wrong, −∞ when right
        return max(float(options.max()), sure_and_wrong)

    assert log_value(0.0) == 0
    assert log_value(0.3) == pytest.approx(-0.3109, abs=1e-4)  # worse than giving up
    assert (value(0.0)[1], value(0.3)[1]) == pytest.approx((0, 0.09), abs=1e-9)  # the Brier form pays for the guess


def test_the_shipped_reward_is_an_affine_map_of_the_papers():
    rng = np.random.default_rng(0)
    right, confidence = rng.integers(0, 2, (4, 8)).astype(float), rng.random((4, 8))
    keep = np.ones((4, 8), bool)
    paper = brier(right, confidence, keep, weight=1.0, malformed="unscored")
    shipped = brier_with_format(right, confidence, keep)
    np.testing.assert_allclose(shipped, 1 + 0.5 * paper, atol=1e-12)
    assert shipped.min() >= 0.5
    # Without the standard deviation, advantages are those of the paper's reward, halved.
    np.testing.assert_allclose(
        shipped - shipped.mean(axis=1, keepdims=True), (paper - paper.mean(axis=1, keepdims=True)) / 2, atol=1e-12
    )


def test_the_shipped_reward_by_hand():
    right, confidence = np.array([[1.0, 0, 1, 0]]), np.array([[0.8, 0.8, 1.2, 0.0]])
    keep = np.ones((1, 4), bool)
    # 0.5 + 0.5 + 0.5 · 0.96; 0.5 + 0.5 · 0.36; malformed; 0.5 + 0.5
    np.testing.assert_allclose(brier_with_format(right, confidence, keep), [[1.48, 0.68, 0, 1]])
    bad_format = np.array([[0.0, 1, 1, NAN]])
    np.testing.assert_allclose(brier_with_format(right, confidence, keep, bad_format), [[0, 0.68, 0, 0]])


@pytest.mark.parametrize("confidence", [NAN, -0.01, 1.01, 80.0, math.inf, -math.inf])
@pytest.mark.parametrize("right", [0.0, 1.0])
def test_a_confidence_outside_0_to_1_is_malformed(confidence, right):
    given = np.array([confidence])
    assert scored(right, given, weight=0.7, malformed="worst").tolist() == [-0.7]
    assert np.isnan(scored(right, given, malformed="unscored")).all()
    assert brier_with_format(np.array([[right]]), given[None], np.ones((1, 1), bool)).tolist() == [[0.0]]


def test_worst_is_the_least_that_a_stated_confidence_earns():
    least = min(scored(right, GRID, weight=0.6).min() for right in (0.0, 1.0))
    assert scored(1.0, np.array([NAN]), weight=0.6, malformed="worst")[0] == pytest.approx(least)


def test_unknown_correctness_and_padding_are_not_scored():
    right, confidence = np.array([[1.0, NAN, 1.0, NAN]]), np.array([[0.5, 0.5, 0.5, NAN]])
    keep = np.array([[True, True, False, True]])
    np.testing.assert_array_equal(
        brier(right, confidence, keep, weight=1.0, malformed="worst"), [[0.75, NAN, NAN, NAN]]
    )
    np.testing.assert_array_equal(brier_with_format(right, confidence, keep), [[1.375, NAN, NAN, NAN]])


def test_weight_0_is_plain_correctness_and_order_does_not_matter():
    rng = np.random.default_rng(1)
    right, confidence, keep = rng.integers(0, 2, (3, 5)).astype(float), rng.random((3, 5)), rng.random((3, 5)) < 0.8
    np.testing.assert_array_equal(
        brier(right, confidence, keep, weight=0.0, malformed="worst"), np.where(keep, right, NAN)
    )
    mixed = np.ix_(rng.permutation(3), rng.permutation(5))
    found = brier(right, confidence, keep, weight=1.0, malformed="worst")
    np.testing.assert_array_equal(
        brier(right[mixed], confidence[mixed], keep[mixed], weight=1.0, malformed="worst"), found[mixed]
    )


def test_bad_input():
    one = np.ones((1, 2))
    with pytest.raises(UsageError, match="confidence_PG is needed"):
        brier(one, None, one == 1, weight=1.0, malformed="worst")
    with pytest.raises(UsageError, match="never a shaped reward"):
        brier(one * 0.5, one, one == 1, weight=1.0, malformed="worst")
    with pytest.raises(UsageError, match="did you mean 'worst'"):
        brier(one, one, one == 1, weight=1.0, malformed="worse")
    with pytest.raises(UsageError, match="share one shape"):
        brier(one, np.ones((1, 1)), one == 1, weight=1.0, malformed="worst")
    with pytest.raises(UsageError, match="share one shape"):
        brier_with_format(one, one, one == 1, np.ones((1, 1)))
