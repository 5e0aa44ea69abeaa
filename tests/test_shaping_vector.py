"""Vector rewards, against exact Dirichlet expectations, slow loops and another library's draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad

from equipoise.errors import UsageError
from equipoise.shaping.vector_rewards import draw_weights, first_of_each, set_advantage, set_reward, vector_advantage

NAN = math.nan
EXACT = {"draws": 4096, "alpha": 1.0, "seed": 0, "how": "sobol"}


def worth(*answers: tuple[float, ...], **how) -> float:
    """The reward of one set of answers."""
    vectors = np.array(answers, dtype=float)[None, None]
    weights = draw_weights(["p"], parts=vectors.shape[-1], **(EXACT | how))
    return float(set_reward(vectors, np.ones(vectors.shape[:3], bool), np.ones((1, 1), bool), weights)[0, 0])


def test_two_specialists_beat_two_compromises_and_a_better_single_one():
    # max(w, 1 − w) of a uniform w has mean 3/4.
    assert worth((1, 0), (0, 1)) == pytest.approx(3 / 4, abs=1e-3)
    assert worth((0.5, 0.5), (0.5, 0.5)) == pytest.approx(1 / 2, abs=1e-12)
    assert worth((0.6, 0.6)) == pytest.approx(0.6, abs=1e-12)
    # Three pieces of a stick broken evenly: the longest has mean (1 + 1/2 + 1/3) / 3.
    assert worth((1, 0, 0), (0, 1, 0), (0, 0, 1)) == pytest.approx(11 / 18, abs=1e-3)


@pytest.mark.parametrize("alpha", [0.3, 1.0, 5.0])
def test_other_concentrations_against_an_integral(alpha):
    density = stats.beta(alpha, alpha).pdf  # symmetric: the half above 1/2 counts twice
    exact = 2 * quad(lambda w: w * density(w), 0.5, 1)[0]
    assert worth((1, 0), (0, 1), alpha=alpha) == pytest.approx(exact, abs=2e-3)
    assert worth((1, 0), (0, 1), alpha=alpha, how="random", draws=20_000) == pytest.approx(exact, abs=0.01)


@pytest.mark.parametrize("how", ["random", "sobol"])
@pytest.mark.parametrize("alpha", [0.5, 1.0, 3.0])
def test_weights_are_dirichlet(how, alpha):
    weights = draw_weights(["p"], parts=4, draws=8192, alpha=alpha, seed=1, how=how)[0]
    truth = stats.dirichlet([alpha] * 4)
    np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-12)
    assert (weights >= 0).all()
    np.testing.assert_allclose(weights.mean(axis=0), truth.mean(), atol=0.01)
    np.testing.assert_allclose(np.cov(weights.T), truth.cov(), atol=0.005)
    for part in range(4):  # every piece has the same law, the first broken off as well as the last
        assert stats.kstest(weights[:, part], stats.beta(alpha, 3 * alpha).cdf).statistic < 0.03


def test_one_part_has_one_weight():
    assert (draw_weights(["a", "b"], parts=1, draws=8, alpha=1.0, seed=0) == 1).all()
    assert (draw_weights(["a"], parts=1, draws=8, alpha=1.0, seed=0, how="sobol") == 1).all()


def test_a_group_s_draws_follow_its_prompt_and_the_seed():
    both = draw_weights(["a", "b"], parts=3, draws=16, alpha=1.0, seed=4)
    np.testing.assert_array_equal(draw_weights(["b", "a"], parts=3, draws=16, alpha=1.0, seed=4), both[::-1])
    assert not np.allclose(both[0], both[1])
    assert not np.allclose(draw_weights(["a", "b"], parts=3, draws=16, alpha=1.0, seed=5), both)


def test_shared_draws_and_sobol_points_make_comparisons_quieter():
    better, worse = np.array([[1.0, 0], [0, 1]]), np.array([[0.9, 0], [0, 1]])

    def score(answers: np.ndarray, seed: int, how: str) -> float:
        weights = draw_weights(["p"], parts=2, draws=64, alpha=1.0, seed=seed, how=how)
        return float(set_reward(answers[None, None], np.ones((1, 1, 2), bool), np.ones((1, 1), bool), weights)[0, 0])

    shared = [score(better, s, "random") - score(worse, s, "random") for s in range(60)]
    apart = [score(better, s, "random") - score(worse, 1000 + s, "random") for s in range(60)]
    even = [score(better, s, "sobol") - score(worse, s, "sobol") for s in range(60)]
    assert np.std(shared) < np.std(apart) / 2
    assert np.std(even) < np.std(shared) / 2


@pytest.mark.parametrize("missing", ["zero", "left_out"])
@pytest.mark.parametrize("seed", range(3))
def test_the_reward_is_a_slow_loop(seed, missing):
    rng = np.random.default_rng(seed)
    vectors, present, keep = rng.normal(size=(3, 4, 5, 2)), rng.random((3, 4, 5)) < 0.6, rng.random((3, 4)) < 0.8
    present[0, 0] = False
    vectors[~present] = NAN
    weights = draw_weights(["a", "b", "c"], parts=2, draws=7, alpha=1.0, seed=seed)
    found = set_reward(vectors, present, keep, weights, missing=missing)
    for p in range(3):
        for g in range(4):
            rows = [vectors[p, g, m] for m in range(5) if present[p, g, m]]
            if not rows or (missing == "zero" and len(rows) < 5):
                rows.append(np.zeros(2))
            expected = sum(max(float(w @ row) for row in rows) for w in weights[p]) / 7 if keep[p, g] else NAN
            assert found[p, g] == pytest.approx(expected, abs=1e-12, nan_ok=True)


def test_another_answer_never_hurts_and_a_repeated_one_changes_nothing():
    rng = np.random.default_rng(0)
    for _ in range(20):
        answers = [tuple(row) for row in rng.random((4, 3))]
        sizes = [worth(*answers[: n + 1], draws=64) for n in range(4)]
        assert (np.diff(sizes) >= 0).all()
        assert worth(*answers, answers[1], draws=64) == pytest.approx(sizes[-1], abs=1e-12)


def test_parts_that_move_together_put_no_pressure_on_variety():
    assert worth((0.2, 0.2), (0.7, 0.7)) == pytest.approx(worth((0.7, 0.7), (0.7, 0.7)), abs=1e-12)
    assert worth((0.2, 0.4), (0.35, 0.7)) == pytest.approx(worth((0.35, 0.7)), abs=1e-12)


def test_first_of_each_by_hand():
    codes = np.array([[[3, 3, 5, 3], [-1, -1, 2, 2], [1, 2, 3, 4], [-1, -1, -1, -1]]])
    expected = [[True, False, True, False], [False, False, True, False], [True] * 4, [False] * 4]
    assert first_of_each(codes).tolist() == [expected]


def test_repeated_and_unreadable_answers_are_rows_of_zeros():
    # The second answer repeats the first and would score more; the third cannot be read.
    vectors, codes = np.array([[[[0.2], [0.9], [0.8]]]]), np.array([[[4, 4, -1]]])
    weights = np.ones((1, 1, 1))
    assert set_reward(vectors, first_of_each(codes), np.ones((1, 1), bool), weights).tolist() == [[0.2]]
    assert set_reward(-vectors, first_of_each(codes), np.ones((1, 1), bool), weights).tolist() == [[0]]
    assert set_reward(-vectors, first_of_each(codes), np.ones((1, 1), bool), weights, missing="left_out").tolist() == [
        [-0.2]
    ]
    nothing = np.zeros((1, 1, 3), bool)
    for missing in ("zero", "left_out"):
        assert set_reward(vectors * NAN, nothing, np.ones((1, 1), bool), weights, missing=missing).tolist() == [[0]]
    empty = set_reward(np.zeros((1, 2, 0, 1)), np.zeros((1, 2, 0), bool), np.ones((1, 2), bool), weights)
    assert empty.tolist() == [[0, 0]]


def test_the_z_score_by_hand():
    reward = np.array([[1.0, 3, NAN], [2, 2, 2], [1, 1 + 1e-7, 5]])
    keep = np.array([[True, True, True], [True, True, True], [True, True, False]])
    found = set_advantage(reward, keep, eps=0.5)
    np.testing.assert_allclose(found, [[-1 / 1.5, 1 / 1.5, 0], [0, 0, 0], [0, 0, 0]])  # std 1 in the first group
    assert not set_advantage(reward, keep, eps=1e-6)[1:].any()
    assert not set_advantage(np.array([[7.0]]), np.ones((1, 1), bool), eps=1e-6).any()
    assert set_advantage(np.ones((0, 2)), np.ones((0, 2), bool), eps=1e-6).shape == (0, 2)


def test_one_answer_with_one_part_is_grpo():
    rng = np.random.default_rng(0)
    reward, keep = rng.integers(0, 2, (4, 8)).astype(float), np.ones((4, 8), bool)
    found = vector_advantage(
        reward[:, :, None, None], np.zeros((4, 8, 1), int), keep, "abcd", draws=3, alpha=1.0, seed=0
    )
    np.testing.assert_allclose(found, stats.zscore(reward, axis=1, ddof=0), atol=1e-5)


def test_order_and_padding():
    rng = np.random.default_rng(1)
    vectors, codes = rng.random((3, 4, 5, 2)), rng.integers(-1, 4, (3, 4, 5))
    keep, ids = rng.random((3, 4)) < 0.8, ["a", "b", "c"]
    how = {"draws": 16, "alpha": 1.0, "seed": 2}
    found = vector_advantage(vectors, codes, keep, ids, **how)
    rows, columns = rng.permutation(3), rng.permutation(4)
    mixed = np.ix_(rows, columns)
    np.testing.assert_allclose(
        vector_advantage(vectors[mixed], codes[mixed], keep[mixed], [ids[r] for r in rows], **how),
        found[mixed],
        atol=1e-12,
    )
    dirty = np.where(keep[:, :, None, None], vectors, NAN)
    np.testing.assert_array_equal(vector_advantage(dirty, codes, keep, ids, **how), found)
    assert not found[~keep].any()
    assert np.abs(found.sum(axis=1)).max() < 1e-9


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: draw_weights(["a"], parts=0, draws=4, alpha=1.0, seed=0), "at least 1"),
        (lambda: draw_weights(["a"], parts=2, draws=4, alpha=0.0, seed=0), "above 0"),
        (lambda: draw_weights(["a"], parts=2, draws=100, alpha=1.0, seed=0, how="sobol"), "use 128 draws instead of 100"),
        (lambda: draw_weights(["a"], parts=2, draws=4, alpha=1.0, seed=0, how="sobl"), "did you mean 'sobol'"),
        (lambda: set_reward(np.ones((1, 2, 3)), np.ones((1, 2, 3), bool), np.ones((1, 2), bool), np.ones((1, 4, 3))), "found (1, 2, 3)"),
        (lambda: set_reward(np.ones((1, 2, 3, 2)), np.ones((1, 2, 1), bool), np.ones((1, 2), bool), np.ones((1, 4, 2))), "found (1, 2, 1)"),
        (lambda: set_reward(np.ones((1, 2, 3, 2)), np.ones((1, 2, 3), bool), np.ones((1, 1), bool), np.ones((1, 4, 2))), "(1, 1)"),
        (lambda: set_reward(np.full((1, 1, 1, 1), NAN), np.ones((1, 1, 1), bool), np.ones((1, 1), bool), np.ones((1, 1, 1))), "nan or infinite"),
        (lambda: set_reward(np.ones((1, 1, 1, 1)), np.ones((1, 1, 1), bool), np.ones((1, 1), bool), np.ones((1, 1, 1)), missing="no"), "unknown rule"),
    ],
)  # fmt: skip
def test_bad_input_is_told_in_one_line(ask, message):
    with pytest.raises(UsageError) as caught:
        ask()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
