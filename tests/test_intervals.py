"""Intervals against scipy, statsmodels and slow loops; their coverage is counted in benchmarks/coverage."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import stats
from statsmodels.stats.proportion import confint_proportions_2indep, proportion_confint

from equipoise.measures.intervals import (
    Interval,
    cluster_bootstrap,
    difference_of_means,
    mean_of_prompts,
    paired_difference,
    ratio_of_sums,
)


def bounds_of(found: Interval) -> tuple[float, float]:
    assert found.low is not None
    assert found.high is not None
    return found.low, found.high


@pytest.mark.parametrize(("right", "prompts"), [(0, 20), (2, 7), (13, 50), (47, 50), (200, 200)])
def test_zeros_and_ones_have_wilsons_interval(right: int, prompts: int) -> None:
    found = mean_of_prompts([1.0] * right + [0.0] * (prompts - right), bounds=(0, 1))
    assert bounds_of(found) == pytest.approx(proportion_confint(right, prompts, method="wilson"), abs=1e-12)
    assert (found.value, found.n) == (right / prompts, prompts)


def students_wilson(m: float, trials: float, degrees: float) -> list[float]:
    """The shares whose distance to m is t standard errors of a share: roots of (m − x)² = t² x(1 − x) / trials."""
    square = stats.t.ppf(0.975, degrees) ** 2 / trials
    return sorted(np.roots([1 + square, -2 * m - square, m**2]))


def test_values_between_the_bounds_count_as_more_trials() -> None:
    # m = 1/2, s² = 1/12 over four prompts: m(1 − m) / (s²/4) = 12 trials. Kurtosis 1: all three degrees of freedom.
    found = mean_of_prompts([0.25, 0.25, 0.75, 0.75], bounds=(0, 1))
    assert bounds_of(found) == pytest.approx(students_wilson(1 / 2, 12, 3))
    moved = mean_of_prompts([7.5, 7.5, 12.5, 12.5], bounds=(5, 15))
    assert bounds_of(moved) == pytest.approx([5 + 10 * each for each in students_wilson(1 / 2, 12, 3)])


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([1.0] + [0.0] * 49, False),  # one trial of the rarer kind
        ([1.0] * 2 + [0.0] * 48, True),
        ([0.0] + [1.0] * 49, False),
        ([0.005, 0.012] * 25, False),  # many trials, and yet less than half a prompt of the rarer kind
        ([0.01, 0.02] * 25, True),
    ],
)
def test_next_to_an_edge_no_interval_is_shown(values: list[float], shown: bool) -> None:
    found = mean_of_prompts(values, bounds=(0, 1))
    assert (found.low is not None, found.high is not None) == (shown, shown)
    assert shown or f"50 prompts are too few so close to {round(found.value)}" in found.how


def test_equal_values_inside_the_bounds_are_as_uncertain_as_zeros_and_ones() -> None:
    found = mean_of_prompts([0.5] * 10, bounds=(0, 1))
    assert bounds_of(found) == pytest.approx(proportion_confint(5, 10, method="wilson"))


def test_unbounded_mean_has_students_interval() -> None:
    values = np.tile([1.0, 4.0], 10)  # kurtosis 1: all 19 degrees of freedom
    expected = stats.t.interval(0.95, 19, loc=2.5, scale=stats.sem(values))
    assert bounds_of(mean_of_prompts(values, bounds=None)) == pytest.approx(expected)


def test_heavy_tails_cost_degrees_of_freedom() -> None:
    values = np.random.default_rng(0).standard_t(3, 60)
    kurtosis = stats.kurtosis(values, fisher=False)
    assert kurtosis > 4
    expected = stats.t.interval(0.95, 2 * 60 / (kurtosis - 1), loc=values.mean(), scale=stats.sem(values))
    assert bounds_of(mean_of_prompts(values, bounds=None)) == pytest.approx(expected)


def test_log_scale_is_symmetric_in_ratios_and_stays_positive() -> None:
    values = np.tile([0.1, 3.9], 10)
    low, high = bounds_of(mean_of_prompts(values, bounds=(0, np.inf)))
    assert low * high == pytest.approx(values.mean() ** 2)
    assert np.log(high / 2) == pytest.approx(stats.t.ppf(0.975, 19) * stats.sem(values) / 2)
    assert low > 0
    low_1, high_1 = bounds_of(mean_of_prompts(values + 1, bounds=(1, np.inf)))
    assert (low_1, high_1) == pytest.approx((low + 1, high + 1))


@pytest.mark.parametrize("bounds", [(0, 1), None])
def test_one_prompt_has_a_value_and_no_interval(bounds: tuple[float, float] | None) -> None:
    found = mean_of_prompts([0.5], bounds=bounds)
    assert (found.value, found.low, found.high, found.n) == (0.5, None, None, 1)
    assert "2 prompts" in found.how


def test_equal_unbounded_values_have_no_interval() -> None:
    found = mean_of_prompts([3.0] * 9, bounds=None)
    assert (found.low, found.high) == (None, None)
    assert "equal" in found.how


@pytest.mark.parametrize("values", [[0.5, np.nan], [], [[0.5, 0.5]], [0.5, 1.2]])
def test_bad_values_are_the_callers_error(values: list[float]) -> None:
    with pytest.raises(ValueError, match="value"):
        mean_of_prompts(values, bounds=(0, 1))


def test_paired_difference_is_the_paired_t_test() -> None:
    a, b = np.tile([3.0, 1.0], 20), np.ones(40)  # kurtosis 1: all 39 degrees of freedom
    expected = stats.ttest_rel(a, b).confidence_interval(0.95)
    found = paired_difference(a, b)
    assert bounds_of(found) == pytest.approx((expected.low, expected.high))
    turned = paired_difference(b, a)
    assert (turned.value, turned.low, turned.high) == pytest.approx((-found.value, -found.high, -found.low))


def test_a_difference_of_shares_reaches_no_further_than_1() -> None:
    a, b = [1.0, 0.5], [0.0, 0.5]  # two prompts: t of one degree of freedom is 12.7, half the width 6.4
    assert bounds_of(paired_difference(a, b)) == pytest.approx((0.5 - 12.7062 * 0.5, 0.5 + 12.7062 * 0.5), abs=1e-3)
    assert bounds_of(paired_difference(a, b, bounds=(0, 1))) == (-1, 1)
    assert bounds_of(paired_difference(a, b, bounds=(0, np.inf)))[1] > 6


def test_few_large_differences_cost_degrees_of_freedom() -> None:
    d = np.concatenate([[-1.0, -1.0], np.tile([0.1, 0.3], 24)])
    expected = stats.t.interval(0.95, 2 * 50 / (stats.kurtosis(d, fisher=False) - 1), loc=d.mean(), scale=stats.sem(d))
    assert bounds_of(paired_difference(d, np.zeros(50))) == pytest.approx(expected)


@pytest.mark.parametrize(("differing", "shown"), [(0, False), (1, False), (7, False), (8, True), (50, True)])
def test_a_difference_of_few_prompts_is_not_shown(differing: int, shown: bool) -> None:
    a = np.zeros(50)
    a[:differing] = np.where(np.arange(differing) % 3, 1.0, -1.0)
    found = paired_difference(a, np.zeros(50))
    assert (found.low is not None) == shown
    assert found.value == pytest.approx(a.mean())
    assert shown or f"{differing} of 50 prompts differ" in found.how


def test_tiny_differences_and_rounding_do_not_count_as_differing_prompts() -> None:
    a, b = np.full(50, 0.3), np.full(50, 0.1 + 0.2)
    a[:3] = 1.0
    b[3:20] += 1e-6
    assert paired_difference(a, b).low is None
    rounded = np.where(np.arange(50) % 2, 0.3, 0.1 + 0.2)
    assert "0 of 50" in paired_difference(rounded, np.full(50, 0.3)).how


def test_few_prompts_with_continuous_differences_are_shown() -> None:
    a = np.random.default_rng(2).normal(size=10)
    assert paired_difference(a, np.zeros(10)).low is not None


def test_paired_needs_the_same_prompts() -> None:
    with pytest.raises(ValueError, match="3 and 2"):
        paired_difference([1, 2, 3], [1, 2])


def test_difference_of_means_is_welchs() -> None:
    a, b = np.tile([0.0, 1.0], 8), np.tile([2.0, 5.0], 20)
    expected = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert bounds_of(difference_of_means(a, b)) == pytest.approx((expected.low, expected.high))


def test_difference_of_shares_is_newcombes() -> None:
    a, b = np.repeat([1.0, 0.0], [18, 2]), np.repeat([1.0, 0.0], [25, 15])
    expected = confint_proportions_2indep(18, 20, 25, 40, method="newcomb")
    found = difference_of_means(a, b, bounds=(0, 1))
    assert bounds_of(found) == pytest.approx(expected)
    assert found.n == 20


def test_difference_of_means_without_spread_or_prompts() -> None:
    assert difference_of_means([1, 1, 1], [2, 2]).low is None
    assert difference_of_means([1, 1, 1], [2]).low is None
    assert difference_of_means([1, 1, 1], [2, 3]).low is not None


def clustered(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    clusters = np.repeat(np.arange(30), rng.integers(1, 9, 30))
    den = rng.integers(20, 200, len(clusters)).astype(float)
    rate = 0.3 * np.exp(0.3 * rng.standard_normal(30))[clusters] * np.exp(0.2 * rng.standard_normal(len(clusters)))
    return rate * den, den, clusters


def test_equal_denominators_give_the_cluster_robust_error() -> None:
    rng = np.random.default_rng(3)
    clusters = np.repeat(np.arange(25), 4)
    y = rng.uniform(-1, 1, 25)[clusters] + rng.uniform(-1, 1, 100)
    fit = sm.OLS(y, np.ones(100)).fit(cov_type="cluster", cov_kwds={"groups": clusters}, use_t=True)
    means = y.reshape(25, 4).mean(axis=1)
    degrees = min(24, 2 * 25 / (stats.kurtosis(means, fisher=False) - 1))
    low, high = bounds_of(ratio_of_sums(y, np.ones(100), clusters))
    assert (low + high) / 2 == pytest.approx(fit.params[0])
    assert (high - low) / 2 == pytest.approx(stats.t.ppf(0.975, degrees) * fit.bse[0])


def test_ratio_of_sums_is_near_weighted_cluster_regression_and_equals_leaving_prompts_out() -> None:
    num, den, clusters = clustered(4)
    found = ratio_of_sums(num, den, clusters)
    low, high = bounds_of(found)
    assert found.value == pytest.approx(num.sum() / den.sum())
    without = [num[clusters != c].sum() / den[clusters != c].sum() for c in range(30)]
    error = np.sqrt(29 / 30 * np.sum((without - np.mean(without)) ** 2))
    degrees = min(29, 2 * 30 / (stats.kurtosis(without, fisher=False) - 1))
    half = stats.t.ppf(0.975, degrees) * error / found.value
    assert (low, high) == pytest.approx((found.value * np.exp(-half), found.value * np.exp(half)))
    robust = sm.WLS(num / den, np.ones(len(num)), weights=den).fit(cov_type="cluster", cov_kwds={"groups": clusters})
    assert error == pytest.approx(robust.bse[0], rel=0.1)


def test_ratio_of_sums_ignores_the_order_of_rows_and_the_names_of_prompts() -> None:
    num, den, clusters = clustered(5)
    order = np.random.default_rng(0).permutation(len(num))
    named = np.asarray([f"prompt {c}" for c in clusters])
    assert bounds_of(ratio_of_sums(num, den, clusters)) == pytest.approx(
        bounds_of(ratio_of_sums(num[order], den[order], named[order]))
    )


def test_a_share_with_bounds_has_wilsons_interval() -> None:
    # One row a prompt: 8 of 10, and the jackknife's variance is the sample's.
    found = ratio_of_sums([1.0] * 8 + [0.0] * 2, np.ones(10), np.arange(10), bounds=(0, 1))
    assert bounds_of(found) == pytest.approx(proportion_confint(8, 10, method="wilson"))


def test_ratio_of_sums_without_spread_or_denominator() -> None:
    assert ratio_of_sums([1, 2, 4], [2, 4, 8], [0, 1, 2]).low is None
    assert ratio_of_sums([1, 2], [2, 4], [0, 0]).low is None
    assert ratio_of_sums([1, 0], [2, 0], [0, 1]).low is None
    with pytest.raises(ValueError, match="denominators"):
        ratio_of_sums([1, 2], [0, 0], [0, 1])


def test_bootstrap_resamples_whole_clusters() -> None:
    clusters = np.asarray(["b", "a", "b", "c", "a", "b"])
    seen = []

    def watch(weight_R: np.ndarray) -> float:
        seen.append(weight_R.copy())
        return float(weight_R.mean())

    found = cluster_bootstrap(watch, clusters, draws=40, seed=0)
    assert found.n == 3
    assert (seen[0] == 1).all()
    for weight in seen:
        by_cluster = {name: set(weight[clusters == name]) for name in "abc"}
        assert all(len(values) == 1 for values in by_cluster.values())
        assert sum(min(values) for values in by_cluster.values()) == 3
    assert any((weight != 1).any() for weight in seen[1:])


@pytest.mark.parametrize("kind", ["percentile", "basic", "bca"])
def test_bootstrap_agrees_with_scipys(kind: Literal["percentile", "basic", "bca"]) -> None:
    values = np.random.default_rng(6).exponential(size=40)  # its variance is skewed: the three kinds lie far apart

    def variance(weight: np.ndarray) -> float:
        mean = values @ weight / weight.sum()
        return float((values - mean) ** 2 @ weight / weight.sum())

    found = cluster_bootstrap(variance, np.arange(40), draws=9999, seed=1, kind=kind)
    method = {"bca": "BCa"}.get(kind, kind)
    # 9,999 draws, with the tails of 40 clusters.
    tail = stats.norm.cdf(-np.sqrt(40 / 39) * stats.t.ppf(0.975, 39))
    expected = stats.bootstrap(
        (values,), np.var, confidence_level=1 - 2 * tail, method=method, rng=np.random.default_rng(2)
    ).confidence_interval
    low, high = bounds_of(found)
    # The long tail of the variance is the noisier end; BCa's other end shows whether bias and acceleration are right.
    assert low == pytest.approx(expected.low, abs=(0.012 if kind == "bca" else 0.04) * (high - low))
    assert high == pytest.approx(expected.high, abs=0.04 * (high - low))


def test_bootstrap_of_a_mean_over_few_clusters_is_as_wide_as_students() -> None:
    values = np.random.default_rng(7).uniform(size=12)
    found = cluster_bootstrap(lambda w: float(values @ w / w.sum()), np.arange(12), draws=20_000, seed=3)
    low, high = bounds_of(found)
    expected = stats.t.interval(0.95, 11, loc=values.mean(), scale=stats.sem(values))
    assert high - low == pytest.approx(expected[1] - expected[0], rel=0.05)


def test_bootstrap_is_reproducible_and_hides_what_is_often_undefined() -> None:
    right = np.asarray([True, False, False, False])

    def odds(weight: np.ndarray) -> float:
        hits = float(weight[right].sum())
        return float(weight[~right].sum()) / hits if hits else float("nan")

    found = cluster_bootstrap(odds, np.arange(4), draws=200, seed=5)
    assert found == cluster_bootstrap(odds, np.arange(4), draws=200, seed=5)
    assert (found.value, found.low) == (3.0, None)
    assert "not defined in" in found.how
    with pytest.raises(ValueError, match="nan"):
        cluster_bootstrap(lambda w: float("nan"), np.arange(4), draws=10, seed=0)


def test_an_interval_becomes_an_estimate() -> None:
    number = mean_of_prompts([0.0, 0.0, 1.0, 1.0], bounds=(0, 1)).named("pass@1", {"k": 1})
    assert (number.name, number.value, number.n, dict(number.at)) == ("pass@1", 0.5, 4, {"k": 1})
    assert number.width is not None


def test_coverage_smoke() -> None:
    """200 simulations of one case; 92 to 98 % over 1,000 is counted in benchmarks/coverage."""
    from benchmarks.coverage.run import simulate

    found = simulate("intervals", "pass@k", 50, 8, 0, 200)
    for name in ("pass@1", "pass@4", "pass@n"):
        low, high, truth = np.asarray(found[name]).T
        assert 0.90 <= ((low <= truth) & (truth <= high)).mean() <= 0.99
