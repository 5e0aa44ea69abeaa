"""The plain curves that a law must beat: a straight line in the entropy, a saturating curve in the steps. Axes: S steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize

from equipoise.measures.intervals import Floats


@dataclass(frozen=True, slots=True)
class Rival:
    parameters: dict[str, float]
    r2: float | None  # None: the reward does not vary
    predict: Callable[[Floats], Floats]


def fit_line(x_S: Floats, reward_S: Floats) -> Rival | None:
    """R = slope·x + constant by least squares. None: fewer than 3 rows, or x does not vary."""
    if len(x_S) < 3 or np.ptp(x_S) == 0:
        return None
    slope, constant = (float(each) for each in np.polyfit(x_S, reward_S, 1))

    def predict(x: Floats) -> Floats:
        return slope * x + constant

    return Rival({"slope": slope, "constant": constant}, r_squared(reward_S, predict(x_S)), predict)


def fit_saturating(step_S: Floats, reward_S: Floats) -> Rival | None:
    """R = c − d·exp(−(step − first step)/τ) by least squares. None: fewer than 4 rows, or one step only.

    It is linear for a given τ, so only τ is searched, from a hundredth of the run to ten times its length.
    """
    span = float(np.ptp(step_S)) if len(step_S) else 0.0
    if len(step_S) < 4 or span == 0:
        return None
    first, centred_S = float(step_S[0]), reward_S - reward_S.mean()

    def solve(log_tau: Floats) -> tuple[Floats, Floats, Floats]:
        """c, d and the squares left for each τ: a simple regression on −exp(−(step − first step)/τ)."""
        x_GS = -np.exp(-(step_S - first) / np.exp(log_tau)[:, None])
        spread_GS = x_GS - x_GS.mean(axis=1, keepdims=True)
        squares_G, products_G = (spread_GS**2).sum(axis=1), spread_GS @ centred_S
        d_G = products_G / squares_G
        return reward_S.mean() - d_G * x_GS.mean(axis=1), d_G, (centred_S**2).sum() - d_G * products_G

    grid_G = np.log(span) + np.linspace(np.log(0.01), np.log(10), 40)
    best = int(np.argmin(solve(grid_G)[2]))
    around = (grid_G[max(0, best - 1)], grid_G[min(len(grid_G) - 1, best + 1)])
    found = optimize.minimize_scalar(lambda each: solve(np.asarray([each]))[2][0], bounds=around, method="bounded")
    (c,), (d,), _ = solve(np.asarray([found.x]))
    tau = float(np.exp(found.x))

    def predict(step: Floats) -> Floats:
        return np.asarray(c - d * np.exp(-(step - first) / tau), dtype=np.float64)

    return Rival({"c": float(c), "d": float(d), "tau": tau}, r_squared(reward_S, predict(step_S)), predict)


def r_squared(reward_S: ArrayLike, predicted_S: ArrayLike) -> float | None:
    reward, predicted = np.asarray(reward_S), np.asarray(predicted_S)
    total = float(((reward - reward.mean()) ** 2).sum())
    return 1 - float(((reward - predicted) ** 2).sum()) / total if total > 0 else None
