"""Is a majority vote safe? How often the top answer is right, by its share of the votes; how answers spread, by difficulty.

Axes: P problems. The vote is that of all judged rollouts of a problem in the last steps, ties broken uniformly; a rollout without
a readable answer casts no vote.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import stats

from equipoise.base import Estimate
from equipoise.measures.arms import Window, arms_of
from equipoise.measures.diversity import answer_entropy_of, answered_of
from equipoise.measures.evidence import Evidence, Options
from equipoise.measures.intervals import LEVEL, Interval, mean_of_prompts, paired_difference
from equipoise.measures.majk import ANSWERS, judged
from equipoise.measures.majority import full_vote_share
from equipoise.measures.passk import VERDICTS
from equipoise.measures.prompts import PromptCounts
from equipoise.measures.transitions import CLASSES, solve_class

EDGES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)  # of the top answer's share: (low, high], and all agree
MIN_VOTES = 2


def top_share_of(counts: PromptCounts) -> np.ndarray:
    """The share of a problem's votes that its most common answer holds, nan where none was cast."""
    votes_P = answered_of(counts)
    most_P = np.zeros(len(counts))
    np.maximum.at(most_P, np.repeat(np.arange(len(counts)), np.diff(counts.offsets)), counts.kind_count)
    return np.where(votes_P > 0, most_P / np.maximum(votes_P, 1), np.nan)


def exact_share(values_P: np.ndarray) -> Interval:
    """Mean of values that are 0 or 1 but for a few ties, with Clopper and Pearson's interval (https://doi.org/10.1093/biomet/26.4.404).

    A class holds few problems, most of them right: Wilson's interval, shown from the second wrong one on, covers 85 % there.
    """
    n, total = len(values_P), float(values_P.sum())
    tail = (1 - LEVEL) / 2
    low = float(stats.beta.ppf(tail, total, n - total + 1)) if total > 0 else 0.0
    high = float(stats.beta.ppf(1 - tail, total + 1, n - total)) if total < n else 1.0
    return Interval(total / n, low, high, n, "mean over prompts; exact interval, which covers 95 % or more")


def estimate_votes(evidence: Evidence, *, baseline: Evidence | None, options: Options) -> list[Estimate]:
    """Accuracy of the vote in every class of the top answer's share, and the entropy of answers by solve rate."""
    if not evidence.answers.has("correct"):
        return [Estimate("vote_accuracy", None, missing=VERDICTS)]
    table = judged(evidence.answers)
    if not table.has("answer"):
        return [Estimate("vote_accuracy", None, missing=ANSWERS)]
    results: list[Estimate] = []
    for arm in arms_of(table, None):
        results += [*_by_share(arm.late), *_by_difficulty(arm.late)]
    return results


def _by_share(window: Window) -> Iterator[Estimate]:
    counts, at = window.counts, dict(window.at)
    voted = answered_of(counts) >= MIN_VOTES
    if not voted.any():
        missing = f"problems with ≥ {MIN_VOTES} readable answers"
        yield Estimate("vote_accuracy", None, n=0, at=at, missing=missing)
        return
    right_P = full_vote_share(counts.kind_count, counts.kind_correct / counts.kind_count, counts.offsets)[voted]
    share_P = top_share_of(counts)[voted]
    single_P = (counts.correct_P / np.maximum(counts.drawn_P, 1))[voted]
    out = int((~voted).sum())
    note = f"; left out: {out} of {len(counts)} problems (fewer than {MIN_VOTES} answers)" if out else ""
    how = "share of problems whose most common answer is right, ties uniform"
    yield _mean("vote_accuracy", right_P, at, how, note)
    yield _mean("single_accuracy", single_P, at, "share of a problem's samples that are right", note)
    over = paired_difference(share_P, right_P)
    how_over = f"mean share of the top answer minus how often it is right; {over.how}{note}"
    low, high = (None if bound is None else min(1.0, max(-1.0, bound)) for bound in (over.low, over.high))  # of shares
    yield Estimate("vote_overconfidence", over.value, low, high, over.n, at, how_over)
    class_P = np.searchsorted(EDGES[1:-1], share_P, side="left") + (share_P >= 1)
    bounds = [*pairwise(EDGES), (1.0, 1.0)]
    for number, (least, most) in enumerate(bounds):
        inside = class_P == number
        if inside.any():
            where = at | {"share": [least, most], "mean_share": float(share_P[inside].mean())}
            found = exact_share(right_P[inside])
            words = f"{how}, problems of this class alone; {found.how}"
            yield Estimate("vote_accuracy_by_share", found.value, found.low, found.high, found.n, where, words)


def _by_difficulty(window: Window) -> Iterator[Estimate]:
    counts = window.counts
    entropy_P, class_P = answer_entropy_of(counts), solve_class(counts.correct_P, counts.drawn_P)
    for number, name in enumerate(CLASSES):
        known = entropy_P[(class_P == number) & np.isfinite(entropy_P)]
        if len(known):
            yield Estimate(
                "answer_entropy_by_solve_rate",
                float(known.mean()),
                n=len(known),
                at=dict(window.at) | {"solve_rate": name},
                how="mean over problems of the plug-in entropy of the answers, nats, with the Miller–Madow correction, by the "
                "solve rate in these samples; no interval: with few samples it stays too low",
            )


def _mean(name: str, values_P: np.ndarray, at: dict[str, Any], how: str, note: str) -> Estimate:
    found = mean_of_prompts(values_P, bounds=(0, 1))
    return Estimate(name, found.value, found.low, found.high, found.n, at, f"{how}; {found.how}{note}")
