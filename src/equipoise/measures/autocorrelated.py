"""Least squares on a training curve, with intervals that cover although its errors follow each other. Axes: T rows, K columns.

The errors are taken as AR(1): e_t = ρ e_{t−1} + noise. Coefficients, means and forecasts are all linear in the errors, L·e, so
for a known ρ their error is a t with variance s² L′V(ρ)L. ρ is not known, and with ρ = 0.8 a curve of 60 steps is worth 7
independent ones: plugging in one estimate of ρ covers about 89 %, resampling blocks of residuals 70 %. So every ρ is taken, each
with the weight that the residuals give it (the restricted likelihood under a flat prior, https://doi.org/10.1093/biomet/58.3.545),
and the interval is the middle 95 % of that mixture of t distributions. It is not random: no seed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, signal, special

from equipoise.measures.intervals import LEVEL, Floats, Interval

HOW = "AR(1) errors, t interval averaged over the autocorrelation"

# Finer towards 1, where the variance changes fast. Rows that alternate in sign more than −0.98 do not occur in curves.
_RHO_G = np.concatenate([np.linspace(-0.98, 0.88, 63), np.linspace(0.9, 0.99, 19), [0.995]])


@dataclass(frozen=True, slots=True)
class Regression:
    """y = X β + e. `rho_G` are the autocorrelations considered, with their weights and the noise variance under each."""

    coefficients_K: Floats
    r2: float | None  # None: y does not vary
    reach_TK: Floats  # X (X′X)⁻¹: the coefficients are β + reach′ e
    weight_G: Floats
    variance_G: Floats

    @property
    def rows(self) -> int:
        return len(self.reach_TK)

    @property
    def autocorrelation(self) -> float:
        return float(self.weight_G @ _RHO_G)

    def interval(self, contrast_K: NDArray[np.float64]) -> Interval:
        """contrast · β, as one coefficient or the curve's mean at one point."""
        value = float(contrast_K @ self.coefficients_K)
        half = self._half(self.reach_TK @ contrast_K)
        return Interval(value, value - half, value + half, self.rows, f"least squares over rows; {HOW}")

    def forecast(self, x_FK: NDArray[np.float64], *, after: int) -> Interval:
        """The mean of y over F later rows with known columns, `after` rows past the last: an interval for what is observed."""
        point_K = x_FK.mean(axis=0)
        value = float(point_K @ self.coefficients_K)
        seen, later = self.reach_TK @ point_K, np.full(len(x_FK), -1 / len(x_FK))
        half = self._half(np.concatenate([seen, np.zeros(after), later]))
        return Interval(value, value - half, value + half, self.rows, f"least squares forecast; {HOW}")

    def _half(self, reach_S: Floats) -> float:
        """h with P(|L·e| ≤ h) = 95 %, where L′VL = (c_0 + 2 Σ_k c_k ρ^k) / (1 − ρ²), c_k the autocovariance of L."""
        c_S = signal.correlate(reach_S, reach_S)[len(reach_S) - 1 :]
        c_S[1:] *= 2
        spread_G = np.polynomial.polynomial.polyval(_RHO_G, c_S) / (1 - _RHO_G**2)
        scale_G = np.sqrt(self.variance_G * np.maximum(spread_G, 0.0))
        if not scale_G.any():
            return 0.0
        degrees = self.rows - self.reach_TK.shape[1]

        def held(h: float) -> float:
            return float(self.weight_G @ (2 * special.stdtr(degrees, h / scale_G) - 1)) - LEVEL

        widest = float(scale_G.max()) * float(special.stdtrit(degrees, (1 + LEVEL) / 2))
        return float(optimize.brentq(held, 0.0, 1.001 * widest, xtol=1e-9 * widest))


def regress(x_TK: NDArray[np.float64], y_T: NDArray[np.float64]) -> Regression:
    """Least squares of y on the columns of x, rows in order of time and taken as equally spaced."""
    rows, columns = x_TK.shape
    if rows < columns + 2:
        raise ValueError(f"{columns} coefficients with an interval need {columns + 2} rows, found {rows}")
    if np.linalg.matrix_rank(x_TK) < columns:
        raise ValueError("the columns depend on each other: no coefficients")
    reach_TK: Floats = np.linalg.pinv(x_TK).T.astype(np.float64)
    coefficients_K = reach_TK.T @ y_T
    residual_T = y_T - x_TK @ coefficients_K
    total = float(((y_T - y_T.mean()) ** 2).sum())
    r2 = 1 - float(residual_T @ residual_T) / total if total > 0 else None
    weight_G, variance_G = _weigh(x_TK, residual_T, floor=1e-24 * float(y_T @ y_T) + 1e-300)
    return Regression(coefficients_K, r2, reach_TK, weight_G, variance_G)


def _weigh(x_TK: Floats, residual_T: Floats, *, floor: float) -> tuple[Floats, Floats]:
    """Weight of each ρ and noise variance under it, from Z = [X, e] with every row less ρ times the row before.

    The sum of the squared differences is Z′Z − ρ (Σ z_t z_{t−1}′ + its transpose) + ρ² Z′Z without the first and last rows.
    """
    z_TJ = np.column_stack([x_TK, residual_T])
    lagged_JJ = z_TJ[1:].T @ z_TJ[:-1]
    inner_JJ = z_TJ[1:-1].T @ z_TJ[1:-1]
    rho = _RHO_G[:, None, None]
    m_GJJ = z_TJ.T @ z_TJ - rho * (lagged_JJ + lagged_JJ.T) + rho**2 * inner_JJ
    a_GKK, v_GK = m_GJJ[:, :-1, :-1], m_GJJ[:, :-1, -1]
    fitted_G = np.einsum("gk,gk->g", v_GK, np.linalg.solve(a_GKK, v_GK[..., None])[..., 0])
    squares_G = np.maximum(m_GJJ[:, -1, -1] - fitted_G, floor)
    degrees = len(residual_T) - x_TK.shape[1]
    log_G = (np.log(1 - _RHO_G**2) - np.linalg.slogdet(a_GKK).logabsdet - degrees * np.log(squares_G)) / 2
    weight_G = np.exp(log_G - log_G.max()) * np.gradient(_RHO_G)
    return weight_G / weight_G.sum(), squares_G / degrees
