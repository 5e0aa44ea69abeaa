"""Stated confidence against correctness. Axes: R judged rollouts with a confidence.

Rollouts of one problem are not independent, so every interval treats the problem as the unit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import expit, logit

from equipoise.base import Estimate
from equipoise.measures.answers import AnswerTable
from equipoise.measures.arms import Arm, Spread, Window, arms_of, summarise
from equipoise.measures.evidence import Evidence, Options
from equipoise.measures.intervals import Interval, cluster_bootstrap, mean_of_prompts, ratio_of_sums
from equipoise.measures.means import problem_means, quotient
from equipoise.measures.prompts import group_rows

COVERAGES = (0.25, 0.5, 0.75)  # of the risk–coverage curve
DRAWS = 400


@dataclass(frozen=True, slots=True)
class BrierParts:
    """Brier = reliability − resolution + uncertainty + within_bins (https://doi.org/10.1175/2007WAF2006116.1).

    `within_bins` is what the bins hide; it is 0 when every bin holds one confidence, and then the three terms are Murphy's.
    """

    reliability: float
    resolution: float
    uncertainty: float
    within_bins: float


def brier_score(confidence_R: np.ndarray, right_R: np.ndarray) -> float:
    """mean (q − y)²."""
    return float(np.mean((confidence_R - right_R) ** 2))


def brier_parts(confidence_R: np.ndarray, right_R: np.ndarray, *, bins: int) -> BrierParts:
    weight, confidence, accuracy = _binned(confidence_R, right_R, bins)
    overall = float(right_R.mean())
    reliability = float(np.sum(weight * (confidence - accuracy) ** 2))
    resolution = float(np.sum(weight * (accuracy - overall) ** 2))
    uncertainty = overall * (1 - overall)
    rest = brier_score(confidence_R, right_R) - (reliability - resolution + uncertainty)
    return BrierParts(reliability, resolution, uncertainty, rest)


def calibration_error(confidence_R: np.ndarray, right_R: np.ndarray, *, bins: int) -> float:
    """ECE = Σ_b n_b/n · |confidence_b − accuracy_b| over equally wide bins [low, high); the last holds 1."""
    weight, confidence, accuracy = _binned(confidence_R, right_R, bins)
    return float(np.sum(weight * np.abs(confidence - accuracy)))


def _binned(confidence_R: np.ndarray, right_R: np.ndarray, bins: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Share, mean confidence and accuracy of every bin that holds anything."""
    # Edges b / bins are the floats nearest to what a person writes: 0.29 · 100 is 28.999…, yet 0.29 belongs to [0.29, 0.30).
    index = np.searchsorted(np.arange(1, bins) / bins, confidence_R, side="right")
    count = np.bincount(index, minlength=bins)
    held = count > 0
    confidence = np.bincount(index, weights=confidence_R, minlength=bins)[held] / count[held]
    accuracy = np.bincount(index, weights=right_R, minlength=bins)[held] / count[held]
    return count[held] / len(confidence_R), confidence, accuracy


@dataclass(frozen=True, slots=True)
class Ranked:
    """Rollouts of one problem with one confidence, counted together. Axes: N such cells, L distinct confidences, 0 the lowest."""

    prompt_N: np.ndarray
    level_N: np.ndarray
    right_N: np.ndarray
    wrong_N: np.ndarray

    @classmethod
    def of(cls, confidence_R: np.ndarray, right_R: np.ndarray, prompt_R: np.ndarray) -> Ranked:
        _, level_R = np.unique(confidence_R, return_inverse=True)
        first, cell_R = group_rows([prompt_R, level_R])
        right = np.bincount(cell_R, weights=right_R, minlength=len(first))
        return cls(prompt_R[first], level_R[first], right, np.bincount(cell_R, minlength=len(first)) - right)

    def by_level(self, weight_N: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """(right, wrong) at each confidence."""
        weight = np.ones(len(self.level_N)) if weight_N is None else weight_N
        return np.bincount(self.level_N, weight * self.right_N), np.bincount(self.level_N, weight * self.wrong_N)


def area_under_roc(ranked: Ranked) -> float:
    """P(confidence of a right one > confidence of a wrong one), ties counting half; nan without both kinds."""
    right, wrong = ranked.by_level()
    pairs = right.sum() * wrong.sum()
    return float(np.sum(right * (np.cumsum(wrong) - wrong / 2)) / pairs) if pairs > 0 else float("nan")


def roc_interval(ranked: Ranked) -> Interval:
    """The area with an interval over problems, on the logit scale.

    A problem's influence is the sum of what its rollouts win or lose against the other kind (clustered DeLong,
    https://doi.org/10.2307/2533958), so its rollouts count as one unit.
    """
    area = area_under_roc(ranked)
    right, wrong = ranked.by_level()
    beaten = (np.cumsum(wrong) - wrong / 2) / wrong.sum()  # share of the wrong ones below a level
    beating = (right.sum() - np.cumsum(right) + right / 2) / right.sum()  # share of the right ones above it
    influence_N = ranked.right_N * (beaten[ranked.level_N] - area) / right.sum()
    influence_N += ranked.wrong_N * (beating[ranked.level_N] - area) / wrong.sum()
    _, problem = np.unique(ranked.prompt_N, return_inverse=True)
    influence_P = np.bincount(problem, weights=influence_N)
    how = "P(a right reply is more confident than a wrong one), all problems pooled"
    if not 0 < area < 1:
        return Interval(area, None, None, len(influence_P), f"{how}; no interval: every pair is ordered alike")
    found = mean_of_prompts(logit(area) + len(influence_P) * influence_P / (area * (1 - area)), bounds=None)
    if found.low is None or found.high is None:
        return Interval(area, None, None, found.n, f"{how}; no interval: it needs problems that differ")
    low, high = float(expit(found.low)), float(expit(found.high))
    return Interval(area, low, high, found.n, f"{how}; clustered DeLong interval on the logit scale")


def within_question(ranked: Ranked) -> tuple[np.ndarray, np.ndarray]:
    """(problems, P(a right reply is more confident than a wrong one of the same problem)), ties half, nan without both kinds.

    https://arxiv.org/abs/2502.06233: pooled AUROC also rewards knowing which questions are easy; a vote cannot use that.
    """
    prompt_P, problem_N = np.unique(ranked.prompt_N, return_inverse=True)  # cells are sorted by problem, then level
    below = np.cumsum(ranked.wrong_N) - ranked.wrong_N / 2
    first = np.searchsorted(problem_N, np.arange(len(prompt_P)))
    before = (np.cumsum(ranked.wrong_N) - ranked.wrong_N)[first]  # wrong ones of the problems before
    won = np.bincount(problem_N, weights=ranked.right_N * (below - before[problem_N]))
    right, wrong = np.bincount(problem_N, weights=ranked.right_N), np.bincount(problem_N, weights=ranked.wrong_N)
    return prompt_P, quotient(won, right * wrong)


def accuracy_at_coverage(ranked: Ranked, coverage: float, weight_N: np.ndarray | None = None) -> float:
    """Accuracy of the most confident `coverage` share; replies tied at the cut count in proportion."""
    right, wrong = (counts[::-1] for counts in ranked.by_level(weight_N))  # most confident first
    drawn = np.cumsum(right + wrong)
    room = coverage * drawn[-1]
    # Between two levels the number of right ones grows evenly: that is the proportion of a tie.
    return (
        float(np.interp(room, np.append(0, drawn), np.append(0, np.cumsum(right))) / room) if room > 0 else float("nan")
    )


def estimate_calibration(evidence: Evidence, *, baseline: Evidence | None, options: Options) -> list[Estimate]:
    """Brier with its parts, ECE, AUROC, within-question discrimination, over-confidence and risk–coverage."""
    table = evidence.answers
    if not table.has("confidence"):
        return [Estimate("brier", None, missing="stated confidences between 0 and 1 (column confidence)")]
    if not table.has("correct"):
        return [Estimate("brier", None, missing="verdicts (column correct, or --solved-at for rewards)")]
    stated = _stated(table)
    if not len(stated):
        return [Estimate("brier", None, missing="rollouts with both a confidence between 0 and 1 and a verdict")]
    against = None if baseline is None else _stated(baseline.answers)
    results: list[Estimate] = []
    for arm in arms_of(stated, against):
        for window in (arm.late, arm.early):
            if window is not None:
                results += _of_window(window, options)
        results += _compared(arm)
    out = len(table) - len(stated)
    note = f"; left out: {out} of {len(table)} rollouts (no verdict, or no confidence between 0 and 1)" if out else ""
    return [replace(number, how=number.how + note) for number in results]


def _stated(table: AnswerTable) -> AnswerTable:
    confidence = table.numbers["confidence"]
    return table.take((confidence >= 0) & (confidence <= 1) & np.isfinite(table.correct) & (table.prompt_R >= 0))


def _of_window(window: Window, options: Options) -> list[Estimate]:
    table, at = window.table, window.at
    confidence, right, prompt = table.numbers["confidence"], table.correct, table.prompt_R
    ones = np.ones(len(right))
    binned = f"{options.bins} equally wide bins"
    parts = brier_parts(confidence, right, bins=options.bins)
    ranked = Ranked.of(confidence, right, prompt)

    def bare(name: str, value: float, how: str) -> Estimate:
        return Estimate(name, value, n=len(window.counts), at=at, how=how)

    results = [
        ratio_of_sums((confidence - right) ** 2, ones, prompt, bounds=(0, 1)).named("brier", at),
        bare("brier_reliability", parts.reliability, f"{binned}; no interval: binning biases it upwards"),
        bare("brier_resolution", parts.resolution, f"{binned}; no interval: binning biases it upwards"),
        bare("brier_uncertainty", parts.uncertainty, "accuracy × (1 − accuracy); no interval"),
        bare("brier_within_bins", parts.within_bins, f"{binned}: what the three parts leave out; no interval"),
        bare(
            "ece",
            calibration_error(confidence, right, bins=options.bins),
            f"{binned}; no interval: with few samples a bin ECE is biased upwards, so resampling does not cover it",
        ),
        ratio_of_sums(confidence - right, ones, prompt).named("overconfidence", at),
    ]
    if 0 < right.sum() < len(right):
        results.append(roc_interval(ranked).named("auroc", at))
        _, discrimination = within_question(ranked)
        known = discrimination[np.isfinite(discrimination)]
        if len(known):
            results.append(mean_of_prompts(known, bounds=(0, 1)).named("within_question", at))
    for coverage in COVERAGES:
        found = cluster_bootstrap(
            lambda weight, coverage=coverage: accuracy_at_coverage(ranked, coverage, weight),  # type: ignore[misc]
            ranked.prompt_N,
            draws=DRAWS,
            seed=options.seed,
        )
        results.append(found.named("accuracy_at_coverage", {**at, "coverage": coverage}))
    return results


def _compared(arm: Arm) -> list[Estimate]:
    """The changes over the run and against the baseline, of what has a value in every problem."""
    results = []
    for name, values, how in (
        ("brier", _brier, "mean (confidence − verdict)² of a problem"),
        ("overconfidence", _overconfidence, "mean confidence minus accuracy of a problem"),
    ):
        found = summarise(Spread(name, values, how, "no confidence", "confidences and verdicts"), arm)
        results += [number for number in found if number.name != name]
    return results


def _brier(window: Window) -> np.ndarray:
    table = window.table
    error_R = (table.numbers["confidence"] - table.correct) ** 2
    return problem_means(error_R, table.prompt_R, window.counts.prompt_P)


def _overconfidence(window: Window) -> np.ndarray:
    table = window.table
    return problem_means(table.numbers["confidence"] - table.correct, table.prompt_R, window.counts.prompt_P)
