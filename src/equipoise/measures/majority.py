"""Exact maj@k: how often a vote among k of a problem's rollouts is right, over all subsets of k. Axes: P problems, M kinds.

A rollout without a readable answer takes a place in the subset and casts no vote; a subset with no vote at all is wrong.
Ties are broken uniformly. Several kinds of answer may be right, and a kind whose rollouts the checker judged differently
is right in the share of them that were: the reply is any rollout of the winning kind.

The count of subsets is a coefficient of a generating polynomial. Among k of n, kind b with c_b rollouts contributes
Σ_i C(c_b, i) x^i. Let the winners have j votes each. Kinds with fewer than j rollouts can neither win nor tie, so with
the abstentions they make one factor (1 + x)^rest. The others have at most j votes, and those with exactly j tie:

    F_j(x, y) = (1 + x)^rest Π_{b: c_b ≥ j} (Σ_{i<j} C(c_b, i) x^i + y C(c_b, j) x^j)

With s ties besides the target the target wins in 1/(1 + s) of the cases, and 1/(1 + s) = ∫₀¹ y^s dy. So

    maj@k = Σ_j ∫₀¹ [x^k] G_j(x, y) dy / C(n, k),   G_j = Σ_t right_t C(c_t, j) x^j · F_j without its factor t

and G_j is the derivative of F_j along "target", which one pass over the kinds carries with it. [x^k] G_j has a degree in
y below k/j, so Gauss–Legendre nodes give the integral exactly. Weighting the coefficients by θ^i (1 − θ)^(c−i), θ = k/n,
turns them into binomial probabilities, which changes nothing after division by that of k in n (draws without
replacement are independent binomials given their sum) and keeps every number between 0 and 1, whatever n is. All terms
are positive: nothing cancels, and the result is exact to about 12 digits.

Cost per problem and k: Σ_j (kinds with ≥ j rollouts) ≤ n products of a polynomial of degree k by one of degree j.
256 rollouts with 70 kinds take about 10 ms at k = 128 when computed alone, and 1.5 ms each in a batch of hundreds.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.polynomial.legendre import leggauss
from scipy.special import gammaln

from equipoise.errors import UsageError

CELLS = 2_000_000  # floats that one batch of problems may hold
NEGLIGIBLE = 1e-17  # a number of votes that wins less often than this is passed over


def maj_at_k(*, counts: Sequence[int], right: Sequence[float], abstained: int = 0, k: int) -> float:
    """maj@k of one problem: `counts` of each kind of answer, and whether that kind is right (or the share that is)."""
    drawn = sum(counts) + abstained
    if k > drawn:
        raise UsageError(f"maj@{k} needs {k} completions, this problem has {drawn}: draw more, or use k <= {drawn}")
    offsets, drawn_P = np.asarray([0, len(counts)]), np.asarray([drawn])
    return float(majority_share(np.asarray(counts, np.int64), np.asarray(right, float), offsets, drawn_P, k)[0])


def majority_share(
    kind_count: np.ndarray, kind_right: np.ndarray, offsets: np.ndarray, drawn_P: np.ndarray, k: int
) -> np.ndarray:
    """maj@k of every problem, nan where fewer than k were drawn.

    Problem p has the kinds offsets[p]:offsets[p + 1]; `kind_right` is the share of a kind's rollouts that are right.
    """
    share_P = np.where(
        drawn_P < k, np.nan, np.where(drawn_P == k, full_vote_share(kind_count, kind_right, offsets), 0.0)
    )
    kinds_P = np.diff(offsets)
    todo = np.flatnonzero((drawn_P > k) & (kinds_P > 0))
    todo = todo[np.argsort(-kinds_P[todo], kind="stable")]  # alike in width, so that padding costs little
    start = 0
    while start < len(todo):
        width = int(kinds_P[todo[start]])
        rows = max(1, CELLS // max(width, (k + 1) * min(width, k)))
        chunk = todo[start : start + rows]
        count_PM, right_PM = _padded(kind_count, kind_right, offsets, chunk, width)
        share_P[chunk] = _subset_vote(count_PM, right_PM, drawn_P[chunk], k)
        start += rows
    return share_P


def full_vote_share(kind_count: np.ndarray, kind_right: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """How often the vote of all of a problem's rollouts is right, over the ways to break a tie; 0 without any vote."""
    n = len(offsets) - 1
    problem = np.repeat(np.arange(n), np.diff(offsets))
    most_P = np.zeros(n, dtype=np.int64)
    np.maximum.at(most_P, problem, kind_count)
    leads = (kind_count == most_P[problem]).astype(float)
    right_P = np.bincount(problem, weights=leads * kind_right, minlength=n)
    return np.asarray(right_P / np.maximum(np.bincount(problem, weights=leads, minlength=n), 1))


def _padded(
    kind_count: np.ndarray, kind_right: np.ndarray, offsets: np.ndarray, chunk: np.ndarray, width: int
) -> tuple[np.ndarray, np.ndarray]:
    """The kinds of some problems, largest count first, padded with kinds of count 0."""
    inside = np.arange(width) < np.diff(offsets)[chunk, None]
    at = np.where(inside, offsets[chunk, None] + np.arange(width), 0)
    count_PM, right_PM = np.where(inside, kind_count[at], 0), np.where(inside, kind_right[at], 0.0)
    order = np.argsort(-count_PM, axis=1, kind="stable")
    return np.take_along_axis(count_PM, order, 1), np.take_along_axis(right_PM, order, 1)


def _subset_vote(count_PM: np.ndarray, right_PM: np.ndarray, drawn_P: np.ndarray, k: int) -> np.ndarray:
    share_P, theta_P = np.zeros(len(drawn_P)), k / drawn_P
    of_k_P = _log_binomial(k, drawn_P, theta_P)
    best_right_P = np.max(count_PM * (right_PM > 0), axis=1, initial=0)
    at_most_PM = np.exp(_log_drawn(0, count_PM, drawn_P, k, of_k_P))
    for j in range(1, min(k, int(best_right_P.max(initial=0))) + 1):
        exactly_PM = np.exp(_log_drawn(j, count_PM, drawn_P, k, of_k_P))
        at_most_PM += exactly_PM
        # No kind has more than j votes: at most the product over kinds, whose votes are negatively associated.
        likely_P = np.minimum(np.prod(at_most_PM, axis=1), (exactly_PM * (right_PM > 0)).sum(axis=1))
        rows = np.flatnonzero((best_right_P >= j) & (likely_P > NEGLIGIBLE))
        if len(rows):
            able_P = (count_PM[rows] >= j).sum(axis=1)
            rows, able_P = rows[np.argsort(-able_P, kind="stable")], -np.sort(-able_P)
            share_P[rows] += _wins_with(j, count_PM[rows], right_PM[rows], able_P, drawn_P[rows], k)
    return np.asarray(share_P / np.exp(of_k_P))


def _wins_with(
    j: int, count_PM: np.ndarray, right_PM: np.ndarray, able_P: np.ndarray, drawn_P: np.ndarray, k: int
) -> np.ndarray:
    """The probability that k in n fall so that a right kind wins with j votes. Problems in descending order of `able_P`."""
    theta_P = k / drawn_P
    node_Q, weight_Q = leggauss(-(-min(int(able_P[0]), k // j) // 2))
    node_Q, weight_Q = (node_Q + 1) / 2, weight_Q / 2
    rest_P = drawn_P - np.where(np.arange(count_PM.shape[1]) < able_P[:, None], count_PM, 0).sum(axis=1)
    degree = np.arange(k + 1)
    # Axes of both: F and G, problems, nodes of y, power of x.
    both = np.zeros((2, len(drawn_P), len(node_Q), k + 1))
    both[0] = np.exp(_log_binomial(degree, rest_P[:, None], theta_P[:, None]))[:, None, :]
    for b in range(int(able_P[0]) - 1, 0, -1):
        n = int(np.searchsorted(-able_P, -b))  # those with more than b able kinds
        below, tie = _factor(j, count_PM[:n, b], theta_P[:n])
        old = both[:, :n]
        new = _times(old, below)
        new[..., j:] += (tie[:, None] * node_Q)[:, :, None] * old[..., : k + 1 - j]
        new[1, ..., j:] += (tie * right_PM[:n, b])[:, None, None] * old[0, ..., : k + 1 - j]
        both[:, :n] = new
    # Of the last factor only the coefficient of x^k is needed.
    below, tie = _factor(j, count_PM[:, 0], theta_P)
    tail = both[1, ..., k - np.arange(j)]  # (j, P, Q)
    wins_PQ = np.einsum("ipq,pi->pq", tail, below)
    wins_PQ += tie[:, None] * (node_Q * both[1, ..., k - j] + right_PM[:, :1] * both[0, ..., k - j])
    return np.asarray(wins_PQ @ weight_Q)


def _factor(j: int, count_P: np.ndarray, theta_P: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A kind's probabilities of 0 … j − 1 votes, and that of j."""
    share = np.exp(_log_binomial(np.arange(j + 1), count_P[:, None], theta_P[:, None]))
    return share[:, :j], share[:, j]


def _times(polynomial: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """The product with a factor of lower degree, cut at the polynomial's own degree."""
    j = factor.shape[1]
    padded = np.concatenate([np.zeros((*polynomial.shape[:-1], j - 1)), polynomial], axis=-1)
    return np.asarray(np.einsum("spqdi,pi->spqd", sliding_window_view(padded, j, axis=-1), factor[:, ::-1]))


def _log_drawn(j: int, count_PM: np.ndarray, drawn_P: np.ndarray, k: int, of_k_P: np.ndarray) -> np.ndarray:
    """log of the share of k-subsets that hold exactly j of a kind (hypergeometric)."""
    theta, drawn = (k / drawn_P)[:, None], drawn_P[:, None]
    return np.asarray(
        _log_binomial(j, count_PM, theta) + _log_binomial(k - j, drawn - count_PM, theta) - of_k_P[:, None]
    )


def _log_binomial(i: np.ndarray | int, n: np.ndarray, theta: np.ndarray) -> np.ndarray:
    """log P(Binomial(n, θ) = i), −inf outside 0 … n."""
    left = n - i
    inside = np.maximum(left, 0)
    factorial = _log_factorials(int(max(np.max(n, initial=0), np.max(i, initial=0))).bit_length())
    value = factorial[n] - factorial[i] - factorial[inside] + i * np.log(theta) + inside * np.log1p(-theta)
    return np.where(left >= 0, value, -np.inf)


@lru_cache(maxsize=32)
def _log_factorials(bits: int) -> np.ndarray:
    return np.asarray(gammaln(np.arange(2**bits) + 1.0))
