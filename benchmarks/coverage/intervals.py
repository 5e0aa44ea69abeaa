"""Intervals over prompts: means, paired and unpaired differences, ratios of sums, the cluster bootstrap.

What is outside, and why. A paired difference is shown when six prompts differ, and of 50 prompts that many differ more often
when the difference came out large: pass@n of a much better policy at 50 × 8 is then covered 99 % of the time, a point too
often. Lengths with a log standard deviation of 1 between prompts and no cap leave the interval of a mean over tokens too narrow,
because few prompts hold most tokens and a sample may miss them; only more prompts help.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from scipy import stats

from benchmarks.coverage import worlds
from benchmarks.coverage.case import Case, Shown
from equipoise.measures.intervals import (
    Interval,
    cluster_bootstrap,
    difference_of_means,
    mean_of_prompts,
    paired_difference,
    ratio_of_sums,
)

DRAWS = 500


def _ks(samples: int) -> list[int]:
    return sorted({1, 4, samples // 2, samples})


def _k_name(k: int, samples: int) -> str:
    return "pass@n" if k == samples else f"pass@{k}"


def _row(name: str, found: Interval, truth: float) -> Shown:
    return name, found.low, found.high, truth


def pass_rates(rng: np.random.Generator, prompts: int, samples: int) -> Iterator[Shown]:
    correct_P = rng.binomial(samples, worlds.success_rates(rng, prompts))
    for k in (1, 4, samples):
        values_P, truth = worlds.pass_at_k(correct_P, samples, k), worlds.true_pass_at_k(k)
        yield _row(_k_name(k, samples), mean_of_prompts(values_P, bounds=(0, 1)), truth)
        if k == samples:
            half = stats.t.ppf(0.975, prompts - 1) * values_P.std(ddof=1) / prompts**0.5
            yield "rejected: t interval, pass@n", values_P.mean() - half, values_P.mean() + half, truth


def paired(rng: np.random.Generator, prompts: int, samples: int, *, shift: float, noise: float) -> Iterator[Shown]:
    base_P = worlds.success_rates(rng, prompts)
    base_correct = rng.binomial(samples, base_P)
    run_correct = rng.binomial(samples, worlds.shifted_rates(rng, base_P, shift=shift, noise=noise))
    for k in _ks(samples):
        run_P, start_P = (worlds.pass_at_k(each, samples, k) for each in (run_correct, base_correct))
        truth = worlds.true_pass_at_k(k, shift=shift, noise=noise) - worlds.true_pass_at_k(k)
        yield _row(_k_name(k, samples), paired_difference(run_P, start_P), truth)
        if k == samples:
            half = stats.t.ppf(0.975, prompts - 1) * (run_P - start_P).std(ddof=1) / prompts**0.5
            mean = float((run_P - start_P).mean())
            yield "rejected: t interval however few differ, pass@n", mean - half, mean + half, truth


def unpaired(rng: np.random.Generator, prompts: int, samples: int, *, shift: float) -> Iterator[Shown]:
    a_correct = rng.binomial(
        samples, worlds.shifted_rates(rng, worlds.success_rates(rng, prompts), shift=shift, noise=0.0)
    )
    b_correct = rng.binomial(samples, worlds.success_rates(rng, 200))
    for k in (1, 4, samples):
        a_P, b_Q = (worlds.pass_at_k(each, samples, k) for each in (a_correct, b_correct))
        truth = worlds.true_pass_at_k(k, shift=shift) - worlds.true_pass_at_k(k)
        yield _row(_k_name(k, samples), difference_of_means(a_P, b_Q, bounds=(0, 1)), truth)
        if k < samples:
            yield _row(f"{_k_name(k, samples)}, Welch", difference_of_means(a_P, b_Q), truth)
        else:
            yield _row(f"rejected: {_k_name(k, samples)}, Welch", difference_of_means(a_P, b_Q), truth)


def distinct(rng: np.random.Generator, prompts: int, samples: int) -> Iterator[Shown]:
    rates_PA = worlds.answer_rates(rng, prompts)
    base_P = worlds.distinct_answers(rng, rates_PA, samples)
    yield _row("distinct answers", mean_of_prompts(base_P, bounds=None), worlds.true_distinct(samples))
    for power in (1.0, 1.3):
        run_P = worlds.distinct_answers(rng, worlds.sharpened(rates_PA, power), samples)
        truth = worlds.true_distinct(samples, power=power) - worlds.true_distinct(samples)
        yield _row(f"difference, rates^{power}", paired_difference(run_P, base_P), truth)


def tokens(
    rng: np.random.Generator, prompts: int, samples: int, *, between: float, within: float, cap: float
) -> Iterator[Shown]:
    sums_PG, tokens_PG = worlds.token_sums(rng, prompts, samples, between=between, within=within, cap=cap)
    prompt_R = np.repeat(np.arange(prompts), samples)
    found = ratio_of_sums(sums_PG.ravel(), tokens_PG.ravel(), prompt_R)
    yield _row("mean token entropy", found, worlds.true_token_entropy(between=between, within=within, cap=cap))


def lengths(rng: np.random.Generator, prompts: int, samples: int) -> Iterator[Shown]:
    log_P1 = 6.5 + 0.6 * rng.standard_normal((prompts, 1))
    mean_P = np.exp(log_P1 + 0.5 * rng.standard_normal((prompts, samples))).mean(axis=1)
    truth = float(np.exp(6.5 + (0.6**2 + 0.5**2) / 2))
    yield _row("mean length, log scale", mean_of_prompts(mean_P, bounds=(0, np.inf)), truth)


def shares(rng: np.random.Generator, prompts: int, samples: int) -> Iterator[Shown]:
    """Unequal samples per prompt, and a share near 1."""
    drawn_P = rng.integers(samples // 2, samples + 1, prompts)
    right_P = rng.binomial(drawn_P, 1 - worlds.success_rates(rng, prompts) ** 8)
    ratio = ratio_of_sums(right_P, drawn_P, np.arange(prompts), bounds=(0, 1))
    yield _row("share with bounds", ratio, worlds.true_pass_at_k(8))


def auroc(rng: np.random.Generator, prompts: int, samples: int) -> Iterator[Shown]:
    confidence, right = worlds.stated_confidence(rng, prompts, samples)
    order = np.argsort(confidence, axis=None)
    right_R, prompt_R = right.ravel()[order], np.repeat(np.arange(prompts), samples)[order]

    def area(weight_R: np.ndarray) -> float:
        hits_R, misses_R = weight_R * right_R, weight_R * ~right_R
        below_R = np.cumsum(misses_R) - misses_R  # confidences are continuous: no ties
        pairs = int(hits_R.sum()) * int(misses_R.sum())
        return float(hits_R @ below_R) / pairs if pairs else float("nan")

    found = cluster_bootstrap(area, prompt_R, draws=DRAWS, seed=int(rng.integers(2**32)))
    yield _row("AUROC, percentile bootstrap", found, worlds.true_auroc())


CASES = [
    Case("pass@k", pass_rates),
    Case("paired, same policy", partial(paired, shift=0.0, noise=0.0)),
    Case("paired, similar policy", partial(paired, shift=0.0, noise=0.5)),
    Case("paired, better policy", partial(paired, shift=0.5, noise=0.5)),
    Case("paired, much better policy", partial(paired, shift=1.5, noise=1.0)),
    Case("paired, worse policy", partial(paired, shift=-1.0, noise=0.0)),
    Case("against 200 other prompts, same policy", partial(unpaired, shift=0.0)),
    Case("against 200 other prompts, better policy", partial(unpaired, shift=1.5)),
    Case("distinct answers", distinct),
    Case("lengths, log sd .6", lengths),
    Case("share", shares),
    Case("entropy, lengths log sd .6 cut at 4096", partial(tokens, between=0.6, within=0.5, cap=4096.0)),
    Case("entropy, lengths log sd .6", partial(tokens, between=0.6, within=0.5, cap=np.inf)),
    Case("stress: entropy, lengths log sd 1", partial(tokens, between=1.0, within=0.7, cap=np.inf)),
    Case("confidence", auroc),
]
