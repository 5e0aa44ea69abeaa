"""Accuracy when only the most confident share of the replies is kept, over that share. Axes: P problems, L levels of confidence, C shares, D draws.

All points of a curve come from the same resamples of problems, so the curve costs as much as one of its points.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from equipoise.measures.calibration import Ranked
from equipoise.measures.intervals import Interval, bootstrap_tails
from equipoise.measures.means import quotient

DRAWS = 400
MOST_LEVELS = 256  # of confidence, in resamples: neighbours beyond it are drawn together
MOST_CELLS = 4_000_000  # problems × levels, and draws × problems, held at once
# Problems with a reply of the rarer verdict among those kept, below which no interval is shown: where resamples hardly vary,
# as with 2 wrong replies among the surest 20, it covers 60 to 90 %.
MIN_RARER = 5


@dataclass(frozen=True, slots=True)
class CoverageCurve:
    """`at_C` with an interval for each of `coverage_C`; `gain_C`: the accuracy there minus that of all replies."""

    coverage_C: np.ndarray
    at_C: tuple[Interval, ...]
    gain_C: tuple[Interval, ...]


def selective_accuracy(right_L: np.ndarray, all_L: np.ndarray, coverage_C: np.ndarray) -> np.ndarray:
    """Right ones among the surest `coverage` of all, as a share; replies tied at the cut count in proportion.

    `right_L`, `all_L`: replies at each level, the surest first. nan where there is none.
    """
    drawn, right = np.cumsum(all_L), np.cumsum(right_L)
    room_C = coverage_C * drawn[-1]
    kept_C = np.interp(room_C, np.append(0, drawn), np.append(0, right))
    return quotient(kept_C, room_C)


def coverage_curve(ranked: Ranked, coverage_C: np.ndarray, *, seed: int) -> CoverageCurve:
    """The exact curve; intervals by resampling problems, percentiles widened for few of them."""
    right_L, wrong_L = (counts[::-1] for counts in ranked.by_level())  # surest first
    value_C = selective_accuracy(right_L, right_L + wrong_L, coverage_C)
    overall = float(right_L.sum() / (right_L + wrong_L).sum())
    prompt, place_N = np.unique(ranked.prompt_N, return_inverse=True)
    n = len(prompt)
    if n < 2:
        none = [Interval(float(v), None, None, n, "no interval: it needs 2 prompts") for v in value_C]
        gain = [Interval(float(v) - overall, None, None, n, "no interval: it needs 2 prompts") for v in value_C]
        return CoverageCurve(coverage_C, tuple(none), tuple(gain))
    right_PL, all_PL = _by_problem(ranked, place_N, n)
    rng, drawn_DC, overall_D = np.random.default_rng(seed), [], []
    block = max(1, MOST_CELLS // n)
    for first in range(0, DRAWS, block):
        weights_DP = rng.multinomial(n, np.full(n, 1 / n), size=min(block, DRAWS - first)).astype(float)
        right_DL, all_DL = weights_DP @ right_PL, weights_DP @ all_PL
        drawn_DC += [selective_accuracy(r, a, coverage_C) for r, a in zip(right_DL, all_DL, strict=True)]
        overall_D.append(right_DL.sum(axis=1) / all_DL.sum(axis=1))
    tails, curves_DC, overalls_D = bootstrap_tails(n), np.asarray(drawn_DC), np.concatenate(overall_D)
    rarer_C = _rarer(right_PL, all_PL, coverage_C)

    def intervals(values_C: np.ndarray, resampled_DC: np.ndarray) -> tuple[Interval, ...]:
        low_C, high_C = np.quantile(resampled_DC, tails, axis=0)
        bounds = zip(values_C.tolist(), low_C.tolist(), high_C.tolist(), rarer_C.tolist(), strict=True)
        return tuple(_interval(value, low, high, n, rarer) for value, low, high, rarer in bounds)

    gains = intervals(value_C - overall, curves_DC - overalls_D[:, None])
    return CoverageCurve(coverage_C, intervals(value_C, curves_DC), gains)


def _interval(value: float, low: float, high: float, n: int, rarer: int) -> Interval:
    if rarer < MIN_RARER:
        how = f"no interval: {rarer} problems have a reply of the rarer verdict among those kept, it needs {MIN_RARER}"
        return Interval(value, None, None, n, how)
    return Interval(value, low, high, n, f"percentile bootstrap of prompts, {DRAWS} draws")


def _rarer(right_PL: np.ndarray, all_PL: np.ndarray, coverage_C: np.ndarray) -> np.ndarray:
    """How many problems have a right reply among those kept, or how many a wrong one: the fewer of the two."""
    drawn_L = np.cumsum(all_PL.sum(axis=0))
    last_C = np.minimum(np.searchsorted(drawn_L, coverage_C * drawn_L[-1] * (1 - 1e-12)), len(drawn_L) - 1)
    fewest = np.full(len(coverage_C), len(all_PL))
    for counts_PL in (right_PL, all_PL - right_PL):
        held_PL = np.cumsum(counts_PL, axis=1) > 0
        fewest = np.minimum(fewest, held_PL[:, last_C].sum(axis=0))
    return fewest


def _by_problem(ranked: Ranked, place_N: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Right and all replies of each problem at each level, the surest first; many levels in groups of nearly equal size."""
    right_L, wrong_L = ranked.by_level()
    levels = min(MOST_LEVELS, max(32, MOST_CELLS // n), len(right_L))
    before_L = np.cumsum(right_L + wrong_L) - (right_L + wrong_L) / 2
    group_L = np.minimum((before_L / (right_L + wrong_L).sum() * levels).astype(np.int64), levels - 1)
    if levels == len(right_L):
        group_L = np.arange(levels)
    cell_N = place_N * levels + (levels - 1 - group_L[ranked.level_N])
    right = np.bincount(cell_N, weights=ranked.right_N, minlength=n * levels).reshape(n, levels)
    wrong = np.bincount(cell_N, weights=ranked.wrong_N, minlength=n * levels).reshape(n, levels)
    return right, right + wrong
