"""95 % intervals for numbers that come from prompts. Axes: P, Q prompts, R rollouts, C clusters (the prompts of R).

The independent unit is the prompt, not the rollout: the rollouts of one prompt resemble each other. Every function takes one
value per prompt, or rows with their prompt in `clusters_R`. `benchmarks/coverage` counts how often each interval holds the
truth; where 92 to 98 % cannot be reached the bounds are None and `how` says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from equipoise.base import Estimate

Floats = NDArray[np.float64]

LEVEL = 0.95
MIN_DIFFERING = 8  # prompts that must differ, see `paired_difference`
DIFFERS = 0.2  # a prompt differs if it does by more than this share of the largest difference
MIN_TRIALS = 2.0  # of the rarer kind, and
MIN_PROMPTS = 0.5  # prompts' worth of them, see `_wilson`
MAX_UNDEFINED = 0.05  # share of resamples without a value (one class left in an AUROC) above which no interval is shown

_TAIL = (1 - LEVEL) / 2
_Z = float(stats.norm.ppf(1 - _TAIL))


@dataclass(frozen=True, slots=True)
class Interval:
    """A number, its bounds and the words for how both were made. `n`: independent units. Bounds None: not shown, see `how`."""

    value: float
    low: float | None
    high: float | None
    n: int
    how: str

    def named(self, name: str, at: Mapping[str, Any] | None = None) -> Estimate:
        return Estimate(name, self.value, self.low, self.high, self.n, at or {}, self.how)


def mean_of_prompts(values_P: ArrayLike, *, bounds: tuple[float, float] | None) -> Interval:
    """Mean over prompts.

    Finite `bounds`, as (0, 1) for pass@k: Wilson's interval, see `_wilson`. A t interval covers 86 % where pass@64 is 0.93
    over 50 prompts, this one 97 %. (low, inf), as for lengths: a t interval on the log scale. None: a t interval. All take
    their degrees of freedom from the kurtosis, see `t_quantile`.
    """
    values = _finite(values_P)
    mean, n = float(values.mean()), len(values)
    if n < 2:
        return Interval(mean, None, None, n, "mean over prompts; no interval: it needs 2 prompts")
    variance = float(values.var(ddof=1)) / n
    if bounds is not None and np.isfinite(bounds).all():
        low, high, how = _wilson(mean, variance, values - mean, _held(values, bounds))
        return Interval(mean, low, high, n, f"mean over prompts; {how}")
    if _constant(values):
        return Interval(mean, None, None, n, f"mean over prompts; no interval: all {n} values are equal")
    half = t_quantile(values - mean) * variance**0.5
    if bounds is None:
        return Interval(mean, mean - half, mean + half, n, "mean over prompts; t interval")
    above = mean - _held(values, bounds)[0]
    factor = float(np.exp(half / above))
    low, high = mean - above * (1 - 1 / factor), mean + above * (factor - 1)
    return Interval(mean, low, high, n, "mean over prompts; t interval on the log scale")


def paired_difference(a_P: ArrayLike, b_P: ArrayLike, *, bounds: tuple[float, float] = (-np.inf, np.inf)) -> Interval:
    """Mean of a − b over the same prompts, t interval with the degrees of freedom that the kurtosis leaves.

    `bounds`: of the values. The interval reaches no further than their differences can.

    Shown when at least MIN_DIFFERING prompts differ (a quarter of them where that is less): over fewer, an interval that does
    not cover too little covers more than 99 %. Small differences count: hiding the samples in which a few large ones dominate
    would leave those in which the rare large ones are missing, and their intervals cover as little as 82 %.
    """
    a, b = _finite(a_P), _finite(b_P)
    if len(a) != len(b):
        raise ValueError(f"paired differences need the same prompts: {len(a)} and {len(b)} values")
    differences = a - b
    # Rounding, as in 0.3 − 0.1 − 0.2, is not a difference.
    differences[np.abs(differences) <= 1e-12 * np.maximum(np.abs(a), np.abs(b))] = 0.0
    mean, n = float(differences.mean()), len(differences)
    how = "mean difference over the same prompts"
    if n < 2:
        return Interval(mean, None, None, n, f"{how}; no interval: it needs 2 prompts")
    differing = int((np.abs(differences) > DIFFERS * np.abs(differences).max()).sum())
    if differing < min(MIN_DIFFERING, n / 4):
        return Interval(
            mean, None, None, n, f"{how}; no interval: {differing} of {n} prompts differ, too few to cover 95 %"
        )
    if _constant(differences):
        return Interval(mean, None, None, n, f"{how}; no interval: all {n} differences are equal")
    half = t_quantile(differences - mean) * float(differences.std(ddof=1)) / n**0.5
    furthest = bounds[1] - bounds[0]
    return Interval(mean, max(mean - half, -furthest), min(mean + half, furthest), n, f"{how}; t interval")


def difference_of_means(a_P: ArrayLike, b_Q: ArrayLike, *, bounds: tuple[float, float] | None = None) -> Interval:
    """Mean of a − mean of b, for different prompts.

    Finite `bounds`: Newcombe's square-and-add of the two generalised Wilson intervals
    (https://doi.org/10.1002/(SICI)1097-0258(19980430)17:8<873::AID-SIM779>3.0.CO;2-I). None: Welch's t.
    """
    a, b = _finite(a_P), _finite(b_Q)
    mean_a, mean_b, fewest = float(a.mean()), float(b.mean()), min(len(a), len(b))
    difference, how = mean_a - mean_b, f"difference of means over {len(a)} and {len(b)} prompts"
    if fewest < 2:
        return Interval(difference, None, None, fewest, f"{how}; no interval: it needs 2 prompts on each side")
    variance_a, variance_b = float(a.var(ddof=1)) / len(a), float(b.var(ddof=1)) / len(b)
    if bounds is not None:
        low_a, high_a, how_a = _wilson(mean_a, variance_a, a - mean_a, _held(a, bounds))
        low_b, high_b, how_b = _wilson(mean_b, variance_b, b - mean_b, _held(b, bounds))
        if low_a is None or high_a is None or low_b is None or high_b is None:
            return Interval(difference, None, None, fewest, f"{how}; {how_a if low_a is None else how_b}")
        low = difference - float(np.hypot(mean_a - low_a, high_b - mean_b))
        high = difference + float(np.hypot(high_a - mean_a, mean_b - low_b))
        return Interval(difference, low, high, fewest, f"{how}; square-and-add of generalised Wilson intervals")
    if _constant(a) and _constant(b):
        return Interval(difference, None, None, fewest, f"{how}; no interval: neither side varies")
    df_a, df_b = _degrees(a - mean_a), _degrees(b - mean_b)
    degrees = (variance_a + variance_b) ** 2 / (variance_a**2 / df_a + variance_b**2 / df_b)
    half = float(stats.t.ppf(1 - _TAIL, degrees)) * (variance_a + variance_b) ** 0.5
    return Interval(difference, difference - half, difference + half, fewest, f"{how}; Welch's t interval")


def ratio_of_sums(
    num_R: ArrayLike, den_R: ArrayLike, clusters_R: ArrayLike, *, bounds: tuple[float, float] | None = None
) -> Interval:
    """Σ num / Σ den over rollouts, as the mean token entropy ΣH / Σn, with prompts as clusters.

    The standard error is the delete-one-prompt jackknife's. Finite `bounds`, as (0, 1) for a share: a generalised Wilson
    interval. None: a t interval, on the log scale where no numerator is negative. Lengths that differ between prompts by a log
    standard deviation of 1 and have no cap leave it too narrow (88 % over 50 prompts): few prompts then hold most tokens.
    """
    num, den, clusters = _finite(num_R), _finite(den_R), np.asarray(clusters_R)
    if not len(num) == len(den) == len(clusters):
        raise ValueError(f"one row each: {len(num)} numerators, {len(den)} denominators, {len(clusters)} clusters")
    if (den < 0).any() or den.sum() == 0:
        raise ValueError("denominators must not be negative and must have a positive sum")
    num_C, den_C = _by_cluster(num, den, clusters)
    n, ratio = len(num_C), float(num.sum() / den.sum())
    how = "ratio of sums over rollouts, prompts as clusters"
    rest_C = den.sum() - den_C
    if n < 2 or (rest_C <= 0).any():
        return Interval(ratio, None, None, n, f"{how}; no interval: it needs 2 prompts with a denominator")
    without_C = (num.sum() - num_C) / rest_C
    spread_C = without_C - without_C.mean()
    variance = (n - 1) / n * float(spread_C @ spread_C)
    if bounds is not None:
        low, high, words = _wilson(ratio, variance, spread_C, _held(np.asarray([ratio]), bounds))
        return Interval(ratio, low, high, n, f"{how}; {words}, jackknife variance")
    if variance <= (1e-12 * ratio) ** 2:
        return Interval(ratio, None, None, n, f"{how}; no interval: the ratio is equal in every prompt")
    half = t_quantile(spread_C) * variance**0.5
    if (num < 0).any():
        return Interval(ratio, ratio - half, ratio + half, n, f"{how}; jackknife t interval")
    factor = float(np.exp(half / ratio))
    return Interval(ratio, ratio / factor, ratio * factor, n, f"{how}; jackknife t interval on the log scale")


def cluster_bootstrap(
    statistic: Callable[[NDArray[np.int64]], float],
    clusters_R: ArrayLike,
    *,
    draws: int = 1000,
    seed: int,
    kind: Literal["percentile", "basic", "bca"] = "percentile",
) -> Interval:
    """Any statistic of weighted rows, with whole clusters resampled.

    `statistic` gets an integer weight per row, 1 for the data as they are, and returns nan where it has no value. For a
    statistic of sums, pass one row of sums per prompt and `np.arange(P)`. Tails are widened for few clusters, from 2.5 % to
    Φ(−t √(C / (C − 1))), t with C − 1 degrees of freedom (https://arxiv.org/abs/1411.5279). A statistic that is biased in
    small samples, like a binned calibration error, is not covered by any `kind`.
    """
    _, cluster_R = np.unique(np.asarray(clusters_R), return_inverse=True)
    cluster_R = cluster_R.ravel()
    n = int(cluster_R.max()) + 1 if len(cluster_R) else 0
    value, how = (
        float(statistic(np.ones(len(cluster_R), dtype=np.int64))),
        f"{kind} bootstrap of prompts, {draws} draws",
    )
    if not np.isfinite(value):
        raise ValueError(
            f"the statistic is {value} on the rows as they are: check that it is defined before resampling"
        )
    if n < 2:
        return Interval(value, None, None, n, "no interval: it needs 2 prompts")
    weights_DC = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=draws)
    drawn_D = np.asarray([statistic(weights_C[cluster_R]) for weights_C in weights_DC], dtype=np.float64)
    known_D = drawn_D[np.isfinite(drawn_D)]
    if len(known_D) < (1 - MAX_UNDEFINED) * draws:
        return Interval(
            value, None, None, n, f"no interval: not defined in {draws - len(known_D)} of {draws} resamples"
        )
    tails = bootstrap_tails(n)
    if kind == "bca":
        without_C = np.asarray([statistic((cluster_R != c).astype(np.int64)) for c in range(n)], dtype=np.float64)
        tails = _accelerated(tails, value, known_D, without_C[np.isfinite(without_C)])
    low, high = (float(q) for q in np.quantile(known_D, tails))
    if kind == "basic":
        low, high = 2 * value - high, 2 * value - low
    return Interval(value, low, high, n, how)


def bootstrap_tails(n: int) -> Floats:
    """The two quantiles of resampled values that bound a 95 % interval over n clusters, see `cluster_bootstrap`."""
    tail = float(stats.norm.cdf(-stats.t.ppf(1 - _TAIL, n - 1) * (n / (n - 1)) ** 0.5))
    return np.asarray([tail, 1 - tail])


def _accelerated(tails: Floats, value: float, drawn_D: Floats, without_C: Floats) -> Floats:
    """BCa: tails moved by the bias z0 and the acceleration of the statistic (https://doi.org/10.1080/01621459.1987.10478410)."""
    below = float((drawn_D < value).mean() + (drawn_D == value).mean() / 2)
    z0 = stats.norm.ppf(np.clip(below, 1 / len(drawn_D), 1 - 1 / len(drawn_D)))
    spread_C = without_C.mean() - without_C
    squares = float(spread_C @ spread_C)
    acceleration = float((spread_C**3).sum()) / (6 * squares**1.5) if squares > 0 else 0.0
    shifted = z0 + stats.norm.ppf(tails)
    return np.asarray(stats.norm.cdf(z0 + shifted / (1 - acceleration * shifted)), dtype=np.float64)


def _wilson(
    mean: float, variance: float, spread: Floats, bounds: tuple[float, float]
) -> tuple[float | None, float | None, str]:
    """Wilson's interval (https://doi.org/10.1080/01621459.1927.10502953) for a mean of bounded values, and its name.

    Its number of trials is the one that would give a proportion m the variance seen, m(1 − m) / variance, at least the number
    of values n. With one trial of the rarer kind, as where 1 of 50 prompts is solved every time, it covers 83 %, and with
    n·m < ½, as where pass^32 is 0.009, 89 %: it is not shown. With none of the rarer kind it is a limit on one side.
    """
    low, high = bounds
    m, width, n = (mean - low) / (high - low), high - low, float(len(spread))
    # Values that do not vary say nothing of the variance; n prompts of 0 or 1 is the widest a bounded mean can be.
    trials = max(n, m * (1 - m) / (variance / width**2)) if variance > 0 else n
    rarer = min(m, 1 - m) * (1 + 1e-9)  # 1 − 0.9 is less than 0.1
    if m not in (0, 1) and (rarer * trials < MIN_TRIALS or rarer * n < MIN_PROMPTS):
        edge = low if m < 0.5 else high
        return None, None, f"no interval: {n:.0f} prompts are too few so close to {edge:g} to cover 95 %"
    factor = t_quantile(spread) if trials > n else _Z
    shrink = 1 + factor**2 / trials
    centre = (m + factor**2 / (2 * trials)) / shrink
    half = factor * (m * (1 - m) / trials + factor**2 / (4 * trials**2)) ** 0.5 / shrink
    # At an edge the bound is the edge itself; the formula leaves 1e-17 of rounding there.
    below, above = (0.0 if m <= 0 else max(0.0, centre - half)), (1.0 if m >= 1 else min(1.0, centre + half))
    return low + width * below, low + width * above, "generalised Wilson interval"


def t_quantile(spread: Floats) -> float:
    """Student's factor for a 95 % interval, with the degrees of freedom that these deviations from their mean leave."""
    return float(stats.t.ppf(1 - _TAIL, _degrees(spread)))


def _degrees(spread: Floats) -> float:
    """Degrees of freedom of the variance of n values with kurtosis κ, 2n / (κ − 1), at most n − 1.

    var(s²) = σ⁴ (κ − 1) / n for large n, against 2σ⁴ / df for a scaled χ²: heavy tails make s, and so t, less certain.
    """
    n = len(spread)
    centred = spread - spread.mean()
    squares = float((centred**2).sum())
    if squares == 0:
        return float(n - 1)
    kurtosis = n * float((centred**4).sum()) / squares**2
    return float(np.clip(2 * n / max(kurtosis - 1, 1e-9), 1.0, n - 1))


def _by_cluster(num: Floats, den: Floats, clusters: NDArray[Any]) -> tuple[Floats, Floats]:
    _, index = np.unique(clusters, return_inverse=True)
    index = index.ravel()
    sums = [np.asarray(np.bincount(index, weights=each), dtype=np.float64) for each in (num, den)]
    return sums[0], sums[1]


def _constant(values: Floats) -> bool:
    return bool(np.ptp(values) <= 1e-12 * np.abs(values).max())


def _finite(values: ArrayLike) -> Floats:
    array = np.array(values, dtype=np.float64)
    if array.ndim != 1 or not len(array) or not np.isfinite(array).all():
        raise ValueError(f"one finite value per row is needed, at least one row: found shape {array.shape}")
    return array


def _held(values: Floats, bounds: tuple[float, float]) -> tuple[float, float]:
    low, high = bounds
    slack = 1e-9 * max(1.0, abs(low))
    if values.min() < low - slack or values.max() > high + slack:
        raise ValueError(f"values from {values.min()} to {values.max()} are outside the bounds {bounds}")
    return bounds
