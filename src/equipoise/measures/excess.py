"""The excess curve Σ max(H − τ, 0) of every rollout, and what it says of the top share of tokens.

The mean of the top ρ of the tokens is the least value of a curve (https://doi.org/10.21314/JOR.2000.038),

    fork mean = min_τ [ τ + E(τ) / (ρ n) ],   E(τ) = Σ_t max(H_t − τ, 0),

reached at the (1 − ρ) quantile, so to first order an error in τ does not move it. E is a sum over rollouts, which gives
the mean of the top share an interval over problems, and a value for any subset of rollouts. Axes: R rollouts, K edges.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from scipy.interpolate import PchipInterpolator

from equipoise.measures.tokens import EDGES, TokenTable

KNOTS = np.concatenate([[0.0], EDGES])  # at 0 the excess is Σ H itself


def curve_of(table: TokenTable, rows: np.ndarray) -> np.ndarray:
    """E_r at every knot, (R, K + 1)."""
    return np.column_stack([table.rows["entropy"][rows], table.rows["excess"][rows].astype(np.float64)])


def excess_at(curve_RK: np.ndarray, threshold: float) -> np.ndarray:
    """E_r(τ) on a straight line between the two nearest knots, (R,)."""
    j, weight = _between(threshold)
    found: np.ndarray = (1 - weight) * curve_RK[:, j] + weight * curve_RK[:, j + 1]
    return found


def count_above(curve_RK: np.ndarray, threshold: float) -> np.ndarray:
    """Tokens of each rollout above τ, averaged over the thresholds between the two nearest knots: −dE/dτ, (R,)."""
    j, _ = _between(threshold)
    found: np.ndarray = (curve_RK[:, j] - curve_RK[:, j + 1]) / (KNOTS[j + 1] - KNOTS[j])
    return found


def _between(threshold: float) -> tuple[int, float]:
    j = int(np.clip(np.searchsorted(KNOTS, threshold, side="right") - 1, 0, len(KNOTS) - 2))
    return j, float(np.clip((threshold - KNOTS[j]) / (KNOTS[j + 1] - KNOTS[j]), 0, 1))


def top_mean_of(curve_RK: np.ndarray, tokens: float, share: float) -> tuple[float, float]:
    """(threshold, mean of the top share), by a monotone cubic through the knots of the summed curve."""
    fine = np.unique(np.concatenate([np.linspace(a, b, 33) for a, b in pairwise(KNOTS)]))
    mean = fine + PchipInterpolator(KNOTS, curve_RK.sum(axis=0))(fine) / (share * tokens)
    best = int(np.argmin(mean))
    return float(fine[best]), float(mean[best])
