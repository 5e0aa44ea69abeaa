"""Group-relative advantages: what a completion's reward says beside those of its group. Axes: P groups, G completions each.

The mean over a group's completions of A_i ∇log π(o_i) is the group's gradient: advantages carry no 1/G of their own.

A completion without a reward (nan) is left out of its group's baseline and gets exactly 0, as does padding; `filters.scored`
takes it out of the loss too. A group of one has no baseline and gets 0. A group whose rewards are equal up to the rounding of
float32 gets exactly 0, whatever the divisor.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from equipoise.errors import UsageError
from equipoise.shaping.inputs import numbers

Std = Literal["population", "unbiased"]

EQUAL = 1e-6  # rewards closer than this share of the largest are one reward: float32 sums differ in their last digits


def group_std(
    reward_PG: np.ndarray | None, keep_PG: np.ndarray, *, std: Std = "unbiased", eps: float = 1e-6
) -> np.ndarray:
    """GRPO (https://arxiv.org/abs/2402.03300).

        A_i = (R_i − mean) / (std + eps)

    `std` divides the squares by n ("population") or n − 1 ("unbiased", what TRL and verl do). The scale of the rewards drops
    out, so a lone success among G gets √(G−1) ("population") however small the chance that it was more than an accident.
    """
    reward_PG = numbers(keep_PG, reward_PG=reward_PG)
    return _divided(_above_mean(reward_PG), reward_PG, std, eps)


def group_mean(reward_PG: np.ndarray | None, keep_PG: np.ndarray) -> np.ndarray:
    """A_i = R_i − mean: no division by the spread, Dr.GRPO (https://arxiv.org/abs/2503.20783)."""
    return _above_mean(numbers(keep_PG, reward_PG=reward_PG))


def leave_one_out(reward_PG: np.ndarray | None, keep_PG: np.ndarray) -> np.ndarray:
    """A_i = R_i − mean_{j≠i} R_j = n/(n−1) · (R_i − mean): unbiased, RLOO (https://arxiv.org/abs/2402.14740)."""
    reward_PG = numbers(keep_PG, reward_PG=reward_PG)
    n_P1 = _count(reward_PG)
    return np.asarray(_above_mean(reward_PG) * n_P1 / np.maximum(n_P1 - 1, 1))


def quantile_baseline(
    reward_PG: np.ndarray | None,
    keep_PG: np.ndarray,
    *,
    quantile: float = 0.4,
    std: Std = "unbiased",
    eps: float = 1e-6,
) -> np.ndarray:
    """Quantile advantage estimation, QAE (https://arxiv.org/abs/2509.22611).

        A_i = (R_i − b) / (std + eps),   b = inf{x : share of the group with R <= x is at least `quantile`}

    For rewards of 0 and 1 with a share p right, b = 0 where p <= 1 − quantile, else 1: hard groups move only their successes,
    easy ones only their failures. The quantile is a reward of the group; interpolating between two would blur that gate.
    """
    if not 0 < quantile < 1:
        raise UsageError(f"quantile must lie between 0 and 1, found {quantile:g}: the paper uses 0.4")
    reward_PG = numbers(keep_PG, reward_PG=reward_PG)
    if not reward_PG.shape[1]:
        return np.zeros(reward_PG.shape)
    n_P1 = _count(reward_PG)
    # The smallest rank r with r / n >= quantile; a hair below, so that 0.7 · 10 is rank 7 in floating point too.
    rank_P1 = np.maximum(np.ceil(quantile * n_P1 - 1e-9).astype(np.int64), 1)
    baseline_P1 = np.take_along_axis(np.sort(reward_PG, axis=1), rank_P1 - 1, axis=1)  # nan sorts last
    return _divided(np.where(_spread(reward_PG), reward_PG - baseline_P1, 0.0), reward_PG, std, eps)


def _count(reward_PG: np.ndarray) -> np.ndarray:
    return np.asarray((~np.isnan(reward_PG)).sum(axis=1, keepdims=True))


def _spread(reward_PG: np.ndarray) -> np.ndarray:
    """(P, G): scored, in a group whose rewards differ."""
    known_PG = ~np.isnan(reward_PG)
    high_P1 = np.max(reward_PG, axis=1, keepdims=True, initial=-np.inf, where=known_PG)
    low_P1 = np.min(reward_PG, axis=1, keepdims=True, initial=np.inf, where=known_PG)
    largest_P1 = np.maximum(np.abs(high_P1), np.abs(low_P1))
    return np.asarray(known_PG & (high_P1 - low_P1 > EQUAL * largest_P1))


def _above_mean(reward_PG: np.ndarray) -> np.ndarray:
    """R_i − mean, 0 where there is no reward or nothing to compare it with."""
    total_P1 = np.nansum(reward_PG, axis=1, keepdims=True)
    return np.where(_spread(reward_PG), reward_PG - total_P1 / np.maximum(_count(reward_PG), 1), 0.0)


def _divided(above_PG: np.ndarray, reward_PG: np.ndarray, std: Std, eps: float) -> np.ndarray:
    """By the standard deviation of the group's rewards plus eps."""
    if std not in ("population", "unbiased"):
        raise UsageError(f"std is 'population' (divides by n) or 'unbiased' (by n − 1), found '{std}'")
    if eps < 0:
        raise UsageError(f"eps is added to the standard deviation and must be 0 or more, found {eps:g}")
    less = 1 if std == "unbiased" else 0
    squares_P1 = (_above_mean(reward_PG) ** 2).sum(axis=1, keepdims=True)
    std_P1 = np.sqrt(squares_P1 / np.maximum(_count(reward_PG) - less, 1))
    return np.where(above_PG == 0, 0.0, above_PG / np.where(std_P1 > 0, std_P1 + eps, 1.0))
