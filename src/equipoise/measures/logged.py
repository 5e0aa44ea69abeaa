"""Numbers as a trainer logged them, one per step: their mean over the last and the first steps.

Neighbouring steps share weights and data, so a log of n rows holds fewer than n independent ones. The whole log is fitted by five
straight pieces, of which the first and the last are the windows, with AR(1) errors (see `autocorrelated`): all rows tell how
strongly neighbours agree, and a trend inside a window is not taken for noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from equipoise.base import Estimate
from equipoise.measures.autocorrelated import Regression, regress

PIECES = 5
MIN_ROWS = 10 * PIECES  # of the log: with fewer its autocorrelation is too uncertain
SHARE = 1 / PIECES


def logged_estimates(name: str, metrics: Sequence[Mapping[str, Any]], *, source: str = "") -> list[Estimate]:
    """Mean of a logged number in the last and the first fifth of the log, and its change; [] where it was not logged."""
    rows = sorted((row["step"], row[name]) for row in metrics if _finite(row.get("step")) and _finite(row.get(name)))
    if not rows:
        return []
    how = f"as logged by the trainer{source}; mean over log rows, which n counts"
    step, value = np.asarray(rows, dtype=np.float64).T
    if len(rows) < 2:
        return [Estimate(name, float(value[0]), n=1, at={"source": "log"}, how=f"{how}; no interval: one row")]
    log = Log.of(value)
    windows = {"late": step[-log.width :], "early": step[: log.width]}
    ends = {window: [int(steps[0]), int(steps[-1])] for window, steps in windows.items()}
    ends["change"] = [ends["early"][0], ends["late"][1]]
    late, early = float(value[-log.width :].mean()), float(value[: log.width].mean())
    found = [
        (name, "late", late, 1.0, 0.0),
        (name, "early", early, 0.0, 1.0),
        (f"{name}_change", "change", late - early, 1.0, -1.0),
    ]
    if late > 0 and early > 0:
        found.append((f"{name}_change_rel", "change", late / early - 1, 1 / late, -1 / early))
    estimates = []
    for each, window, mean, of_late, of_early in found:
        at = {"source": "log", "window": window, "step": ends[window]}
        half, why = log.half(of_late, of_early)
        low, high = (None, None) if half is None else (mean - half, mean + half)
        if half is not None and each.endswith("_rel"):
            low, high = (1 + mean) * float(np.exp(-half)) - 1, (1 + mean) * float(np.exp(half)) - 1
        estimates.append(Estimate(each, mean, low, high, log.width, at, f"{how}; {why}"))
    return estimates


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and bool(np.isfinite(value))


@dataclass(frozen=True, slots=True)
class Log:
    """A logged series cut into five pieces, the first and the last of `width` rows, each with a level and a slope."""

    width: int
    fit: Regression | None
    reason: str  # why there is no fit

    @classmethod
    def of(cls, value_S: np.ndarray) -> Log:
        n = len(value_S)
        width = max(1, round(SHARE * n))
        if n < MIN_ROWS:
            return cls(width, None, f"a log of {MIN_ROWS} rows is needed")
        if np.ptp(value_S) == 0:
            return cls(width, None, "all rows are equal")
        cuts = [0, *np.linspace(width, n - width, PIECES - 1).round().astype(int).tolist(), n]
        columns_SK = np.zeros((n, 2 * PIECES))
        for piece in range(PIECES):
            rows = slice(cuts[piece], cuts[piece + 1])
            place = np.arange(cuts[piece], cuts[piece + 1])
            columns_SK[rows, 2 * piece] = 1.0  # the level in the middle of the piece, which is its mean
            columns_SK[rows, 2 * piece + 1] = place - place.mean()
        return cls(width, regress(columns_SK, value_S), "")

    def half(self, of_late: float, of_early: float) -> tuple[float | None, str]:
        """Half the interval of of_late · late mean + of_early · early mean, and how it was made or why there is none."""
        if self.fit is None:
            return None, f"no interval: {self.reason}"
        contrast_K = np.zeros(2 * PIECES)
        contrast_K[-2], contrast_K[0] = of_late, of_early
        found = self.fit.interval(contrast_K)
        assert found.low is not None
        assert found.high is not None
        return (found.high - found.low) / 2, found.how
