"""Likelihood rewards from a reference answer and their prompt filters, against slow loops and hand values."""

from __future__ import annotations

import math

import numpy as np
import pytest

from equipoise.errors import UsageError
from equipoise.shaping.reference_filter import carry_over, varied, within_reach
from equipoise.shaping.reference_likelihood import (
    length_term,
    propagate,
    reference_likelihood,
    spread_weight,
    token_spread,
    weighted_likelihood,
)

NAN = math.nan


def drawn(seed: int = 0, shape: tuple[int, int, int] = (4, 5, 6)) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Log-probs with holes: padded references, padded groups, and one completion without a score."""
    rng = np.random.default_rng(seed)
    logp = -rng.exponential(size=shape)
    token = np.arange(shape[2]) < rng.integers(2, shape[2], (shape[0], 1), endpoint=True)
    keep = np.arange(shape[1]) < rng.integers(2, shape[1], (shape[0], 1), endpoint=True)
    logp[0, 0, 0] = NAN
    return logp, token, keep


def by_group(reward: np.ndarray) -> np.ndarray:
    return reward - np.nanmean(reward, axis=1, keepdims=True)


def test_the_reward_by_hand():
    # Token 0: log-probs −1 and −3, spread 1. Token 1: −2 and −2, spread 0. Token 2: 0 and −4, spread 2.
    logp = np.array([[[-1.0, -2, 0], [-3.0, -2, -4]]])
    token, keep = np.ones((1, 3), bool), np.ones((1, 2), bool)
    np.testing.assert_allclose(token_spread(logp, token, keep), [[1, 0, 2]])
    np.testing.assert_allclose(reference_likelihood(logp, token, keep, power=1.0), [[-1, -11]])
    np.testing.assert_allclose(reference_likelihood(logp, token, keep, power=2.0), [[-1, -19]])
    np.testing.assert_allclose(reference_likelihood(logp, token, keep, power=0.0), [[-3, -9]])  # plain log-likelihood


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_the_reward_is_a_slow_loop(seed, power):
    logp, token, keep = drawn(seed)
    masked, _, _ = drawn(seed + 100)
    masked[1, 0, 0] = NAN  # scored with its chain of thought, but not without
    found = reference_likelihood(logp, token, keep, power=power)
    apart = reference_likelihood(logp, token, keep, masked, power=power)
    for p in range(4):
        real = [j for j in range(6) if token[p, j]]
        scored = [g for g in range(5) if keep[p, g] and all(not math.isnan(logp[p, g, j]) for j in real)]
        spread = {j: float(np.std([logp[p, g, j] for g in scored])) for j in real}
        for g in range(5):
            if g not in scored:
                assert math.isnan(found[p, g])
                continue
            assert found[p, g] == pytest.approx(sum(spread[j] ** power * logp[p, g, j] for j in real), abs=1e-12)
            gain = sum(spread[j] ** power * (logp[p, g, j] - masked[p, g, j]) for j in real)
            assert apart[p, g] == pytest.approx(gain, abs=1e-12, nan_ok=True)


def test_tokens_without_spread_leave_the_advantages():
    logp, token, keep = drawn(1)
    logp[0, 0, 0] = -1.0
    for power in (0.0, 1.0):
        flat = logp.copy()
        flat[:, :, 1] = -0.7
        other = logp.copy()
        other[:, :, 1] = -5.0
        np.testing.assert_allclose(
            by_group(reference_likelihood(flat, token, keep, power=power)),
            by_group(reference_likelihood(other, token, keep, power=power)),
            atol=1e-12,
        )


def test_a_masked_chain_equal_to_the_chain_gives_0_and_a_shared_one_changes_no_advantage():
    logp, token, keep = drawn(2)
    assert np.nanmax(np.abs(reference_likelihood(logp, token, keep, logp, power=1.0))) == 0
    shared = np.broadcast_to(drawn(3)[0][:, 1:2], logp.shape)
    plain, moved = (reference_likelihood(logp, token, keep, m, power=1.0) for m in (None, shared))
    assert np.nanmax(np.abs(plain - moved)) > 0.1
    np.testing.assert_allclose(by_group(plain), by_group(moved), atol=1e-12)


def test_order_and_padding():
    logp, token, keep = drawn(4)
    found = reference_likelihood(logp, token, keep, power=1.0)
    rng = np.random.default_rng(0)
    rows, columns = rng.permutation(4), rng.permutation(5)
    mixed = reference_likelihood(logp[rows][:, columns], token[rows], keep[np.ix_(rows, columns)], power=1.0)
    np.testing.assert_allclose(mixed, found[np.ix_(rows, columns)], atol=1e-12)
    dirty = np.where(
        keep[:, :, None] & token[:, None, :], logp, rng.choice([NAN, math.inf, -math.inf, 3.0], logp.shape)
    )
    np.testing.assert_array_equal(reference_likelihood(dirty, token, keep, power=1.0), found)
    np.testing.assert_array_equal(token_spread(dirty, token, keep), token_spread(logp, token, keep))
    weight = rng.random(token.shape)
    np.testing.assert_array_equal(
        weighted_likelihood(dirty, np.where(token, weight, NAN), token, keep),
        weighted_likelihood(logp, weight, token, keep),
    )


def test_few_completions():
    alone = np.array([[[-1.0, -2]]])
    token, keep = np.ones((1, 2), bool), np.ones((1, 1), bool)
    assert np.isnan(token_spread(alone, token, keep)).all()
    assert reference_likelihood(alone, token, keep, power=1.0).tolist() == [[0]]  # nothing to compare with
    assert reference_likelihood(alone, token, keep, power=0.0).tolist() == [[-3]]
    assert np.isnan(reference_likelihood(alone, token, ~keep, power=1.0)).all()
    assert np.isnan(reference_likelihood(alone, ~token, keep, power=1.0)).all()  # no reference
    assert reference_likelihood(np.ones((0, 3, 2)), np.ones((0, 2), bool), np.ones((0, 3), bool), power=1.0).shape == (
        0,
        3,
    )


def test_weights_grow_with_the_spread():
    sigma = np.array([[0.0, 0.1, 0.5, 2.0, NAN]])
    assert (np.diff(spread_weight(sigma, power=0.5)[0, :4]) > 0).all()
    assert spread_weight(sigma, power=0.0).tolist() == [[1] * 5]
    assert spread_weight(sigma, power=1.0)[0, 4] == 0


@pytest.mark.parametrize("gamma", [0.3, 2.0])
def test_doubt_is_handed_on_as_in_a_slow_loop(gamma):
    logp, token, keep = drawn(5)
    reflective = np.random.default_rng(5).random(token.shape) < 0.5
    found = propagate(logp, reflective, token, keep, gamma=gamma)
    for p, g in zip(*np.nonzero(keep), strict=True):
        if np.isnan(logp[p, g]).any():
            continue
        for j in np.flatnonzero(token[p]):
            chance = math.exp(logp[p, g, j])
            for k in range(j):
                if reflective[p, k] and token[p, k]:
                    before = math.exp(logp[p, g, k])
                    chance *= before + (1 - before) * (1 - math.exp(-gamma * (j - k)))
            assert found[p, g, j] == pytest.approx(math.log(chance), abs=1e-12)


def test_the_handed_on_doubt_is_p_at_no_distance_and_fades():
    # The first token has probability 0.2; the factor on a later one of probability 1 is that token's own probability.
    logp = np.zeros((1, 1, 60))
    logp[0, 0, 0] = math.log(0.2)
    first, token, keep = np.arange(60)[None] == 0, np.ones((1, 60), bool), np.ones((1, 1), bool)
    factors = np.exp(propagate(logp, first, token, keep, gamma=0.5))[0, 0]
    assert factors[0] == pytest.approx(0.2)
    assert (np.diff(factors[1:]) > 0).all()
    assert factors[1] == pytest.approx(0.2 + 0.8 * (1 - math.exp(-0.5)))
    assert factors[-1] == pytest.approx(1, abs=1e-9)
    slow = np.exp(propagate(logp, first, token, keep, gamma=1e-9))[0, 0]  # as if there were no distance
    np.testing.assert_allclose(slow, 0.2, rtol=1e-6)
    assert np.array_equal(propagate(logp, ~token, token, keep, gamma=0.5), logp)


def test_the_length_term_by_hand():
    lengths = np.array([[10.0, 15, 5, 40, NAN]])
    found = length_term(lengths, np.array([10]), np.ones((1, 5), bool), beta=0.4)
    np.testing.assert_allclose(found, [[1, 0.8, 0.8, -0.2, NAN]])
    assert np.isnan(length_term(lengths, np.array([10]), np.zeros((1, 5), bool), beta=0.4)).all()


def test_within_reach_by_hand():
    # References of 4, 4, 2 tokens; the worst half is 2, 2, 1 of them.
    rank = np.array(
        [
            [[1, 9, 1, 11], [1, 1, 300, 1]],  # means of the worst two: 10 and 150.5
            [[1, 9, 1, 13], [500, 500, 1, 1]],  # 11 and 500
            [[10, 1, 999, 999], [900, 1, 999, 999]],  # padding holds anything: 10 and 900
        ]
    )
    token = np.array([[True] * 4, [True] * 4, [True, True, False, False]])
    keep = np.ones((3, 2), bool)
    assert within_reach(rank, token, keep, worst_share=0.5, top=10).tolist() == [True, False, True]
    assert within_reach(rank, token, keep, worst_share=0.0, top=10).tolist() == [False, False, True]  # at least one
    keep[2, 0] = False
    assert within_reach(rank, token, keep, worst_share=0.5, top=10).tolist() == [True, False, False]
    assert within_reach(rank, token, np.zeros((3, 2), bool), worst_share=0.5, top=10).all()  # nothing is known
    unscored = np.where(np.arange(2)[:, None] == 0, rank, NAN)  # no second completion was scored
    assert within_reach(unscored, token, np.ones((3, 2), bool), worst_share=0.5, top=10).tolist() == [True, False, True]
    assert within_reach(rank * NAN, token, np.ones((3, 2), bool), worst_share=0.5, top=10).all()


def test_the_prompts_of_least_spread_are_dropped():
    token = np.ones((5, 2), bool)
    sigma = np.array([[0.1, 0.3], [0.9, 0.0], [0.2, 0.2], [NAN, NAN], [0.5, 0.1]])
    # The largest spreads are 0.3, 0.9, 0.2, unknown, 0.5: half of the four that are known go.
    assert varied(sigma, token, drop_share=0.5).tolist() == [False, True, False, True, True]
    assert varied(sigma, token, drop_share=0.0).all()
    assert varied(sigma, token, drop_share=1.0).tolist() == [False, False, False, True, False]
    assert varied(np.full((4, 1), 0.3), np.ones((4, 1), bool), drop_share=0.5).all()  # level ones stay together
    hidden = np.array([[0.1, 9.0], [0.2, 0.0]])  # 9.0 stands under padding
    assert varied(hidden, np.array([[True, False], [True, True]]), drop_share=0.5).tolist() == [False, True]
    assert varied(np.ones((0, 2)), np.ones((0, 2), bool), drop_share=0.5).tolist() == []


def test_a_tenth_of_the_previous_set_is_carried_over():
    previous = [f"p{i}" for i in range(40)]
    kept = ["new", *previous[:30]]
    found = carry_over(kept, previous, seed=3)
    assert found[:31] == tuple(kept)
    assert len(found) == 31 + 4
    assert set(found[31:]) <= set(previous[30:])
    assert found == carry_over(kept, previous[::-1], seed=3)
    assert len({carry_over(kept, previous, seed=s) for s in range(8)}) > 1
    assert carry_over(kept, previous[:30], seed=0) == tuple(kept)  # nothing was dropped
    assert carry_over(["a"], [], seed=0) == ("a",)
    assert carry_over([], ["b", "a"], seed=0, share=1.0) == ("a", "b")


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda x, t, k: reference_likelihood(x, t, k, power=-1.0), "use 0 or more"),
        (lambda x, t, k: reference_likelihood(x[:, :1], t, k, power=1.0), "found (4, 1, 6), (4, 5) and (4, 6)"),
        (lambda x, t, k: reference_likelihood(x, t, k, x[:, :1], power=1.0), "share one shape"),
        (lambda x, t, k: reference_likelihood(-x, t, k, power=1.0), "infinite or above 0"),
        (lambda x, t, k: reference_likelihood(x - math.inf, t, k, power=1.0), "infinite or above 0"),
        (lambda x, t, k: weighted_likelihood(x, np.ones((4, 1)), t, k), "share one shape"),
        (lambda x, t, k: propagate(x, t, t, k, gamma=0.0), "use a value above 0"),
        (lambda x, t, k: propagate(x, t[:1], t, k, gamma=1.0), "share one shape"),
        (lambda x, t, k: length_term(np.ones((4, 5)), np.array([1, 2, 3, 0]), k, beta=1.0), "one length above 0"),
        (lambda x, t, k: within_reach(x, t, k[:, :2], worst_share=0.1, top=1), "found (4, 5, 6), (4, 2)"),
        (lambda x, t, k: varied(t * 1.0, t, drop_share=1.2), "a share lies between 0 and 1"),
        (lambda x, t, k: carry_over([], [], seed=0, share=-0.1), "a share lies between 0 and 1"),
    ],
)
def test_bad_input_is_told_in_one_line(ask, message):
    with pytest.raises(UsageError) as caught:
        ask(*drawn())
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
