"""Least squares of the law R = −a·exp(H) + b on one stretch of a run, and when to refuse it. Axes: S steps, F final steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from equipoise.measures.autocorrelated import HOW, Regression, regress
from equipoise.measures.intervals import Floats, Interval
from equipoise.measures.rivals import Rival, fit_line, fit_saturating

MIN_STEPS = 24  # with residuals that follow each other, fewer rows leave the intervals too narrow
MIN_R2 = 0.5
MIN_MOVE = 6.0  # range of smoothed exp(H) in step noises; noise with autocorrelation 0.5 alone stays below 5

State = Literal["fit", "no fit"]


@dataclass(frozen=True, slots=True)
class Curve:
    step_S: Floats
    entropy_S: Floats
    reward_S: Floats

    def __len__(self) -> int:
        return len(self.step_S)

    def rows(self, part: slice) -> Curve:
        return Curve(self.step_S[part], self.entropy_S[part], self.reward_S[part])

    @property
    def x_S(self) -> Floats:
        return np.asarray(np.exp(self.entropy_S), dtype=np.float64)

    def rivals(self) -> tuple[Rival | None, Rival | None]:
        """The straight line in H and the saturating curve in steps."""
        return fit_line(self.entropy_S, self.reward_S), fit_saturating(self.step_S, self.reward_S)


@dataclass(frozen=True, slots=True)
class Stretch:
    """`law` gives the values. `trend` gives the intervals: it has exp(H) in two columns, smoothed and the rest.

    Part of a step's entropy is noise of its batch, to which the reward does not answer. In one column with the trend, that noise
    can only be explained by errors that wander off, and the interval grows several times too wide. Where the reward does answer
    to it the two columns have the same coefficient and little is lost.
    """

    state: State
    reason: str
    law: Regression | None
    trend: Regression | None

    def interval(self, slope: float, constant: float) -> Interval | None:
        if self.law is None:
            return None
        value = float(np.asarray([slope, constant]) @ self.law.coefficients_K)
        around = None if self.trend is None else self.trend.interval(np.asarray([slope, 0.0, constant]))
        return _around(value, around, self.law.rows)

    def forecast(self, final: Curve, *, after: int) -> Interval | None:
        if self.law is None or after < 0:
            return None
        x = float(final.x_S.mean())
        value = float(np.asarray([x, 1.0]) @ self.law.coefficients_K)
        rows_FK = np.tile([x, 0.0, 1.0], (len(final), 1))
        return _around(value, None if self.trend is None else self.trend.forecast(rows_FK, after=after), self.law.rows)


def _around(value: float, interval: Interval | None, rows: int) -> Interval:
    how = "least squares of the reward on exp(H), n counts rows"
    if interval is None or interval.low is None or interval.high is None:
        return Interval(value, None, None, rows, f"{how}; no interval: it needs {MIN_STEPS} rows")
    return Interval(value, min(value, interval.low), max(value, interval.high), rows, f"{how}; on its trend, {HOW}")


def fit_stretch(curve: Curve) -> Stretch:
    rows, x_S = len(curve), curve.x_S
    if rows < 5 or np.ptp(x_S) <= 1e-9 * np.abs(x_S).max():
        why = f"{rows} steps, it needs {MIN_STEPS}" if rows < 5 else "the entropy does not move"
        return Stretch("no fit", why, None, None)
    law = regress(np.column_stack([x_S, np.ones(rows)]), curve.reward_S)
    trend_S = _smooth(x_S, max(7, rows // 20) | 1)
    columns_SK = np.column_stack([trend_S, x_S - trend_S, np.ones(rows)])
    whole = rows >= MIN_STEPS and np.linalg.matrix_rank(columns_SK) == columns_SK.shape[1]
    trend = regress(columns_SK, curve.reward_S) if whole else None
    fit = Stretch("fit", "", law, trend)
    reasons = _refusals(curve, fit)
    return Stretch("no fit", "; ".join(reasons), law, trend) if reasons else fit


def _refusals(curve: Curve, fit: Stretch) -> list[str]:
    assert fit.law is not None
    reasons = []
    if len(curve) < MIN_STEPS:
        reasons.append(f"{len(curve)} steps, it needs {MIN_STEPS}")
    if fit.law.coefficients_K[0] >= 0:
        reasons.append("the reward rises with the entropy (a ≤ 0)")
    if fit.law.r2 is None or fit.law.r2 < MIN_R2:
        reasons.append(f"R² is {fit.law.r2 or 0:.2f}, it needs {MIN_R2}")
    move = _movement(curve.x_S)
    if move < MIN_MOVE:
        reasons.append(f"the entropy hardly moves: exp(H) ranges over {move:.1f} step noises, it needs {MIN_MOVE:.0f}")
    ceiling, reach = fit.interval(1, 1), float(np.ptp(curve.reward_S))
    if (
        ceiling is not None
        and ceiling.low is not None
        and ceiling.high is not None
        and ceiling.high - ceiling.low > reach
    ):
        width = ceiling.high - ceiling.low
        reasons.append(f"the interval of the ceiling is wider ({width:.2f}) than the reward ranges ({reach:.2f})")
    return reasons


def _movement(x_S: Floats) -> float:
    """Range of the moving average over a tenth of the rows, against the noise between neighbouring rows."""
    width = min(len(x_S), max(3, len(x_S) // 10))
    noise = float(np.diff(x_S).std()) / 2**0.5
    reach = float(np.ptp(np.convolve(x_S, np.full(width, 1 / width), mode="valid")))
    return reach / noise if noise > 0 else float("inf")


def _smooth(x_S: Floats, width: int) -> Floats:
    """Moving average over `width` rows, fewer at the ends."""
    window = np.ones(min(width, len(x_S)))
    counts = np.convolve(np.ones(len(x_S)), window, mode="same")
    return np.asarray(np.convolve(x_S, window, mode="same") / counts, dtype=np.float64)
