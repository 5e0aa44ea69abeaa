"""PKPO: rewards and advantages whose policy gradient is that of pass@k, or of the best of k (https://arxiv.org/abs/2505.15201).

    max@k = E[max of k rewards],   ∇ max@k = E[Σ_i s_i ∇log π(o_i)],   s_i = (1/C(n,k)) Σ_{S∋i, |S|=k} max_S R

over a group of n >= k completions. `pkpo_rewards` and `pkpo_right_rewards` are s_i, the paper's scale: a sum over the group.
`pkpo` is n times s_i less its baseline: a mean over the group, as every advantage here. Axes: P groups, G completions each.

Rewards not known (nan) and padding are outside n and get 0; so does a group with fewer than k rewards, which says nothing of k.
"""

from __future__ import annotations

from collections.abc import Callable
from math import comb

import numpy as np

from equipoise.measures.subsets import missed_share
from equipoise.shaping.advantages import leave_one_out
from equipoise.shaping.inputs import group_size, numbers, verdicts


def pkpo_right_rewards(correct_PG: np.ndarray | None, keep_PG: np.ndarray, *, k: int) -> np.ndarray:
    """s_i for right and wrong. A subset with a right i counts; one with a wrong i counts where the rest holds a right one.

    s_i = k/n · (1 where right, else ρ(n−1, c, k−1)),   ρ(n, c, k) = 1 − C(n−c, k)/C(n, k)
    """
    correct_PG = verdicts(keep_PG, correct_PG=correct_PG)
    group_size(keep_PG, k)
    n_P1 = (~np.isnan(correct_PG)).sum(axis=1, keepdims=True)
    c_P1 = np.nansum(correct_PG, axis=1, keepdims=True).astype(np.int64)
    known_PG = ~np.isnan(correct_PG) & (n_P1 >= k)
    others_P1 = 1 - missed_share(c_P1, np.maximum(n_P1 - 1, 0), k - 1)
    return np.where(known_PG, k / np.maximum(n_P1, 1) * np.where(correct_PG == 1, 1.0, others_P1), 0.0)


def pkpo_rewards(reward_PG: np.ndarray | None, keep_PG: np.ndarray, *, k: int) -> np.ndarray:
    """s_i for rewards of any kind. With the rewards in rising order, r = 0 … n−1 the rank:

    s_r = (R_r C(r, k−1) + Σ_{j>r} R_j C(j−1, k−2)) / C(n, k)

    because R_j is the largest of a subset of k if the rest comes from the j below it, i among them.
    """

    def weigh(sorted_MN: np.ndarray) -> np.ndarray:
        n = sorted_MN.shape[1]
        own_N = np.array([comb(r, k - 1) / comb(n, k) for r in range(n)])
        above_N = np.array([0.0 if k < 2 or j < 1 else comb(j - 1, k - 2) / comb(n, k) for j in range(n)])
        terms_MN = sorted_MN * above_N
        return np.asarray(sorted_MN * own_N + np.cumsum(terms_MN[:, ::-1], axis=1)[:, ::-1] - terms_MN)

    return _by_rank(reward_PG, keep_PG, k, weigh)


def pkpo(reward_PG: np.ndarray | None, keep_PG: np.ndarray, *, k: int) -> np.ndarray:
    """The advantage with the paper's recommended baseline, the best of the subset without i (its equation 33).

        A_i = n/C(n,k) · Σ_{S∋i, |S|=k} (max_S R − max_{S∖i} R)

    What i adds to the best of k is never negative: with right and wrong, only right ones move, and only where at least k−1 are
    wrong. In rising order each step up to R_i counts with the subsets that fit below it:
    A_r = n/C(n,k) · Σ_{i<=r} (R_i − R_{i−1}) C(i, k−1). k = 1 has no subset without i: there it is the leave-one-out advantage.
    """
    if k == 1:
        return leave_one_out(reward_PG, keep_PG)

    def weigh(sorted_MN: np.ndarray) -> np.ndarray:
        n = sorted_MN.shape[1]
        share_N = np.array([n * comb(i, k - 1) / comb(n, k) for i in range(n)])
        return np.cumsum(np.diff(sorted_MN, axis=1, prepend=sorted_MN[:, :1]) * share_N, axis=1)

    return _by_rank(reward_PG, keep_PG, k, weigh)


def _by_rank(
    reward_PG: np.ndarray | None, keep_PG: np.ndarray, k: int, weigh: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """`weigh` on the sorted rewards of the groups of each size n >= k, back in their places."""
    reward_PG = numbers(keep_PG, reward_PG=reward_PG)
    group_size(keep_PG, k)
    n_P = (~np.isnan(reward_PG)).sum(axis=1)
    order_PG = np.argsort(reward_PG, axis=1, kind="stable")  # nan sorts last
    result_PG = np.zeros(reward_PG.shape)
    for n in np.unique(n_P[n_P >= k]):
        rows = np.flatnonzero(n_P == n)[:, None]
        places = order_PG[rows[:, 0], :n]
        result_PG[rows, places] = weigh(reward_PG[rows, places])
    return result_PG
