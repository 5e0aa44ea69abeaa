"""Several confidences of one rollout against its verdict: what each is worth as a probability, and for keeping only the surest.

Axes: R judged rollouts that have a confidence of the source. Besides what a model states, a sample has confidences that cost nothing:
how many of the problem's other samples agree with it (https://arxiv.org/abs/2203.11171), and how sure its tokens were.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from equipoise.base import Estimate
from equipoise.measures.answers import AnswerTable
from equipoise.measures.arms import Window, arms_of
from equipoise.measures.calibration import Ranked, calibration_error, roc_interval
from equipoise.measures.coverage_curve import coverage_curve
from equipoise.measures.evidence import Evidence, Options
from equipoise.measures.intervals import Interval, ratio_of_sums
from equipoise.measures.means import quotient
from equipoise.measures.passk import VERDICTS

COVERAGES = np.arange(1, 21) / 20
MIN_RARER = 1.0  # problems' worth of the rarer verdict in a bin: with fewer its interval is shown only where it errs
SOURCES = {
    "stated": "the confidence that the model stated",
    "agreement": "share of the problem's other answered samples with the same answer",
    "likelihood": "geometric mean of the probabilities of its tokens",
    "low entropy": "exp(−mean token entropy)",
}
MISSING = (
    "a confidence: stated ones (column confidence), answers of two or more samples per problem (column answer), or token "
    "log-probs or entropies (columns logprobs_rollout, entropies)"
)


def agreement_of(table: AnswerTable) -> np.ndarray:
    """(c − 1)/(n − 1) for a rollout whose answer c of its problem's n answered ones gave; nan without an answer, or a second."""
    prompt_R, answer_R = table.prompt_R, table.answer_R
    rows = np.flatnonzero((prompt_R >= 0) & (answer_R >= 0))
    _, problem = np.unique(prompt_R[rows], return_inverse=True)
    _, kind = np.unique(problem * (answer_R.max(initial=0) + 1) + answer_R[rows], return_inverse=True)
    agreement_R = np.full(len(table), np.nan)
    agreement_R[rows] = quotient(np.bincount(kind)[kind] - 1.0, np.bincount(problem)[problem] - 1.0)
    return agreement_R


def confidences_of(window: Window, evidence: Evidence) -> Iterator[tuple[str, np.ndarray]]:
    """(source, its confidence in every rollout of the window, nan where it has none), for the sources that are there."""
    table, tokens = window.table, evidence.tokens
    stated_R = table.numbers["confidence"]
    yield "stated", np.where((stated_R >= 0) & (stated_R <= 1), stated_R, np.nan)
    yield "agreement", agreement_of(table)
    for source, total, count, sign in (
        ("likelihood", "logp", "logp_tokens", 1),
        ("low entropy", "entropy", "entropy_tokens", -1),
    ):
        if tokens is not None and tokens.has(count):
            mean_R = quotient(tokens.rows[total][window.rows], tokens.rows[count][window.rows].astype(float))
            yield source, np.minimum(np.exp(sign * mean_R), 1.0)  # rounding may leave a log-prob above 0


def estimate_confidence(evidence: Evidence, *, baseline: Evidence | None, options: Options) -> list[Estimate]:
    """Per source, in the last steps: accuracy by confidence, Brier, ECE, AUROC, and accuracy over the share that is kept."""
    if not evidence.answers.has("correct"):
        return [Estimate("reliability", None, missing=VERDICTS)]
    results: list[Estimate] = []
    for arm in arms_of(evidence.answers, None):
        for source, confidence_R in confidences_of(arm.late, evidence):
            results += _of_source(arm.late, source, confidence_R, options)
    return results or [Estimate("reliability", None, missing=MISSING)]


def _of_source(window: Window, source: str, confidence_R: np.ndarray, options: Options) -> Iterator[Estimate]:
    table = window.table
    rows = np.flatnonzero(np.isfinite(confidence_R) & np.isfinite(table.correct) & (table.prompt_R >= 0))
    if not len(rows):
        return
    confidence, right, prompt = confidence_R[rows], table.correct[rows], table.prompt_R[rows]
    at: dict[str, Any] = dict(window.at) | {"source": source}
    out = len(table) - len(rows)
    note = f"; left out: {out} of {len(table)} rollouts (no verdict, or no such confidence)" if out else ""

    def named(name: str, found: Interval, how: str, **where: Any) -> Estimate:
        words = f"{how}; confidence: {SOURCES[source]}; {found.how}{note}"
        return Estimate(name, found.value, found.low, found.high, found.n, at | where, words)

    ones = np.ones(len(rows))
    yield named("brier", ratio_of_sums((confidence - right) ** 2, ones, prompt, bounds=(0, 1)), "mean (q − y)²")
    error = Interval(
        calibration_error(confidence, right, bins=options.bins),
        None,
        None,
        len(np.unique(prompt)),
        "no interval: with few samples a bin ECE is biased upwards, so resampling does not cover it",
    )
    yield named("ece", error, f"{options.bins} equally wide bins")
    index = np.searchsorted(np.arange(1, options.bins) / options.bins, confidence, side="right")  # as in the ECE
    for number in np.unique(index).tolist():
        mine = index == number
        found = _sure(ratio_of_sums(right[mine], ones[mine], prompt[mine], bounds=(0, 1)))
        where = {
            "bin": [number / options.bins, (number + 1) / options.bins],
            "confidence": float(confidence[mine].mean()),
            "count": int(mine.sum()),
        }
        yield named("reliability", found, "share of the rollouts in this bin of confidence that are right", **where)
    ranked = Ranked.of(confidence, right, prompt)
    if 0 < right.sum() < len(right):
        yield named("auroc", roc_interval(ranked), "ranking of right above wrong")
    curve = coverage_curve(ranked, COVERAGES, seed=options.seed)
    how = "share right among the surest rollouts, this share of all; ties in proportion"
    for coverage, accuracy, gain in zip(COVERAGES.tolist(), curve.at_C, curve.gain_C, strict=True):
        yield named("selective_accuracy", accuracy, how, coverage=coverage)
        if coverage == 0.5:
            yield named("selective_gain", gain, f"{how}; minus the share right among all", coverage=coverage)


def _sure(found: Interval) -> Interval:
    rarer = min(found.value, 1 - found.value) * found.n
    if found.low is None or not 0 < rarer < MIN_RARER:
        return found
    how = f"{found.how.split(';')[0]}; no interval: {found.n} problems are too few so close to {round(found.value)}"
    return Interval(found.value, None, None, found.n, how)
