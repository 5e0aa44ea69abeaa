"""Arms against each other and against the base model's temperature curve. Axes: S seeds, T temperatures, P problems, D draws.

A seed's policies answer the same problems, and were trained on the same ones. So differences are taken problem by problem
within a seed, and then averaged over the seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import stats

from equipoise.lab.study_outcomes import Outcomes
from equipoise.measures.intervals import LEVEL, Floats, Interval, mean_of_prompts, paired_difference

MIN_SEEDS = 3  # with 2, an interval over seeds covers as little as 87 %
DRAWS = 1000
MAX_UNDEFINED = 0.05  # share of resamples beyond the curve above which no interval is shown

BOTH = "problems and seeds both vary: variance of the problems' means + variance of the seeds' means, t with Satterthwaite's degrees of freedom"
ONE = "over problems, for these seeds alone: an interval over seeds needs 3"


@dataclass(frozen=True)
class Policies:
    """An arm's evaluations, one per seed; the base model has one, which stands for every seed."""

    arm: str
    seeds: tuple[int | None, ...]
    outcomes: tuple[Outcomes, ...]

    @property
    def ks(self) -> tuple[int, ...]:
        return min((each.ks for each in self.outcomes), key=len)

    def passes(self, k: int) -> Floats:
        """pass@k (S, T, P)."""
        return np.stack([each.passes(k) for each in self.outcomes])

    def values(self, name: str) -> Floats:
        return np.stack([each.values_TP[name] for each in self.outcomes])

    @cached_property
    def temperatures(self) -> tuple[float, ...]:
        return self.outcomes[0].temperatures


@dataclass(frozen=True, slots=True)
class Compared:
    """A number over seeds, with the value of every seed. `over_problems` is its interval if these were the only seeds."""

    value: float | None
    low: float | None
    high: float | None
    n: int  # problems
    per_seed: tuple[float | None, ...]
    over_problems: tuple[float, float] | None
    how: str
    missing: str | None = None


def mean_over(values_SP: Floats, *, bounded: bool) -> Compared:
    """Mean of one value per seed and problem. `bounded`: it lies between 0 and 1, as pass@k does."""
    inside = mean_of_prompts(values_SP.mean(axis=0), bounds=(0, 1) if bounded else None)
    found = _over_both(values_SP, inside)
    if bounded and found.low is not None and found.high is not None:
        return _replaced(found, max(0.0, found.low), min(1.0, found.high))
    return found


def difference(a_SP: Floats, b_SP: Floats) -> Compared:
    """Mean of a − b over the same problems and seeds; one row of b stands for every seed."""
    b_SP = np.broadcast_to(b_SP, a_SP.shape)
    return _over_both(a_SP - b_SP, paired_difference(a_SP.mean(axis=0), b_SP.mean(axis=0)))


def _over_both(values_SP: Floats, inside: Interval) -> Compared:
    n_seeds, n = values_SP.shape
    per_seed_S = values_SP.mean(axis=1)
    over_problems = None if inside.low is None or inside.high is None else (inside.low, inside.high)
    low, high, how = inside.low, inside.high, f"{inside.how}; {ONE}"
    if n_seeds >= MIN_SEEDS and n > 1:
        of_problems = float(values_SP.mean(axis=0).var(ddof=1)) / n
        low, high = bounds(float(per_seed_S.mean()), of_problems, n, per_seed_S)
        how = f"mean over problems and seeds; {BOTH}"
        if low is None:
            how = "mean over problems and seeds; no interval: nothing varies"
    return Compared(inside.value, low, high, n, tuple(map(float, per_seed_S)), over_problems, how)


def bounds(value: float, of_problems: float, n: int, per_seed_S: Floats) -> tuple[float, float] | tuple[None, None]:
    """value ± t √(variance over problems + variance over seeds). The part of a problem in a seed is in both: a little wide."""
    n_seeds = len(per_seed_S)
    of_seeds = float(per_seed_S.var(ddof=1)) / n_seeds
    variance = of_problems + of_seeds
    if variance <= (1e-12 * value) ** 2:
        return None, None
    degrees = variance**2 / (of_problems**2 / (n - 1) + of_seeds**2 / (n_seeds - 1))
    half = float(stats.t.ppf((1 + LEVEL) / 2, degrees)) * variance**0.5
    return value - half, value + half


def _replaced(found: Compared, low: float, high: float) -> Compared:
    return Compared(found.value, low, high, found.n, found.per_seed, found.over_problems, found.how)


def unsolved_by_both(a: Policies, b: Policies, at: int) -> np.ndarray:
    """Problems that no completion of either arm solves, in any seed."""
    solved_SP = np.concatenate([p.values("correct")[:, at] > 0 for p in (a, b)])
    return np.asarray(~solved_SP.any(axis=0))


def matched(arm: Policies, curve: Policies, *, by: str, k: int, at: int, seed: int = 0) -> Compared:
    """pass@k of an arm minus that of another arm at the temperature at which that one has the same `by`, pass@1 or kl_to_base."""
    return _matched(arm, curve, lambda policies: policies.passes(k), f"pass@{k}", by=by, at=at, seed=seed)


def matched_values(arm: Policies, curve: Policies, name: str, *, by: str, at: int, seed: int = 0) -> Compared:
    """The same of a column, say of different answers."""
    return _matched(arm, curve, lambda policies: policies.values(name), name, by=by, at=at, seed=seed)


def _matched(
    arm: Policies, curve: Policies, of: Callable[[Policies], Floats], name: str, *, by: str, at: int, seed: int
) -> Compared:
    """What `of` gives, (S, T, P), of an arm minus that of another arm at the temperature at which that one has the same `by`.

    The other arm's points at neighbouring temperatures are joined by straight lines in (`by`, `of`), seeds averaged first; where
    several temperatures give the same `by`, the highest value counts. The arm itself is taken at the headline temperature.
    Interval: problems are resampled, arm and curve alike; seeds enter by the spread of their own values, from 3 on.
    """
    n = len(arm.outcomes[0].problems)
    weights_DP = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=DRAWS).astype(np.float64)

    def gap(a: Policies, b: Policies, weights_DP: Floats) -> Floats:
        x_D = _coordinate(a, by, weights_DP)[:, at]
        y_D = _weighted(of(a), weights_DP)[:, at]
        return np.asarray(y_D - reach(x_D, _coordinate(b, by, weights_DP), _weighted(of(b), weights_DP)))

    alone = np.ones((1, n))
    value = float(gap(arm, curve, alone)[0])
    if not np.isfinite(value):
        x = float(_coordinate(arm, by, alone)[0, at])
        xs_T = _coordinate(curve, by, alone)[0]
        side = "above" if x > xs_T.max() else "below"
        missing = f"a temperature at which {curve.arm} has {by} {x:.3f}: that is {side} its {xs_T.min():.3f} to {xs_T.max():.3f}"
        return Compared(None, None, None, n, (None,) * len(arm.seeds), None, "", missing)
    each_S = np.array([float(gap(one, other, alone)[0]) for one, other in _pairs(arm, curve)])
    drawn_D = gap(arm, curve, weights_DP)
    known_D = drawn_D[np.isfinite(drawn_D)]
    per_seed = tuple(float(v) if np.isfinite(v) else None for v in each_S)
    how = f"{name} at the same {by}, on straight lines between temperatures; {DRAWS} resamples of problems"
    if len(known_D) < (1 - MAX_UNDEFINED) * DRAWS or None in per_seed:
        return Compared(value, None, None, n, per_seed, None, f"{how}; no interval: often beyond the curve")
    return over_resamples(value, each_S, known_D, n, how)


def over_resamples(value: float, each_S: Floats, drawn_D: Floats, n: int, how: str) -> Compared:
    """A number that is no mean over problems, by its resamples of problems and its values in single seeds."""
    per_seed = tuple(map(float, each_S))
    if np.ptp(drawn_D) <= 1e-9:  # what is left of equal policies is rounding
        return Compared(value, None, None, n, per_seed, None, f"{how}; no interval: nothing varies")
    tail = (1 - LEVEL) / 2
    low, high = (float(q) for q in np.quantile(drawn_D, [tail, 1 - tail]))
    if len(each_S) < MIN_SEEDS:
        return Compared(value, low, high, n, per_seed, (low, high), f"{how}; {ONE}")
    lowest, highest = bounds(value, float(drawn_D.var(ddof=1)), n, each_S)
    return Compared(value, lowest, highest, n, per_seed, (low, high), f"{how}; {BOTH}")


def reach(x_D: Floats, xs_DT: Floats, ys_DT: Floats) -> Floats:
    """The highest y at x on the lines between neighbouring points; nan where no line reaches x."""
    best_D = np.full(len(x_D), -np.inf)
    for i in range(xs_DT.shape[1] - 1):
        x0, x1, y0, y1 = xs_DT[:, i], xs_DT[:, i + 1], ys_DT[:, i], ys_DT[:, i + 1]
        inside = (np.minimum(x0, x1) <= x_D) & (x_D <= np.maximum(x0, x1))
        run = np.where(x1 == x0, 1.0, x1 - x0)
        y_D = np.where(x1 == x0, np.maximum(y0, y1), y0 + (x_D - x0) / run * (y1 - y0))
        best_D = np.where(inside, np.maximum(best_D, y_D), best_D)
    return np.where(np.isfinite(best_D), best_D, np.nan)


def _weighted(values_STP: Floats, weights_DP: Floats) -> Floats:
    """(D, T): weighted means over problems, of means over seeds."""
    return np.asarray(weights_DP @ values_STP.mean(axis=0).T / weights_DP.sum(axis=1, keepdims=True))


def _coordinate(policies: Policies, by: str, weights_DP: Floats) -> Floats:
    """(D, T): pass@1, or the KL per token, of an arm over its temperatures, seeds averaged."""
    if by == "pass@1":
        return _weighted(policies.passes(1), weights_DP)
    sums_STP, tokens_STP = policies.values("kl_sum"), policies.values("kl_tokens")
    ratios = [weights_DP @ sums.T / (weights_DP @ tokens.T) for sums, tokens in zip(sums_STP, tokens_STP, strict=True)]
    return np.asarray(np.mean(ratios, axis=0))


def _pairs(arm: Policies, curve: Policies) -> Sequence[tuple[Policies, Policies]]:
    """Each seed of an arm with the same seed of the other, or with its only one."""
    others = curve.outcomes if len(curve.outcomes) == len(arm.outcomes) else curve.outcomes * len(arm.outcomes)
    return [
        (Policies(arm.arm, (seed,), (mine,)), Policies(curve.arm, (seed,), (other,)))
        for seed, mine, other in zip(arm.seeds, arm.outcomes, others, strict=True)
    ]
