"""Breadth-first against depth-first reasoning, by proxies read out of the texts (https://arxiv.org/abs/2505.10185).

The source's labels are a judge's; these are counts: candidates opened before the first is worked out, verified and
abandoned ones, and how many words a branch lasts. Length confounds all of them, so counts are also given per 1,000 words.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from equipoise.base import Estimate
from equipoise.measures.arms import Spread, Window, arms_of, summarise
from equipoise.measures.evidence import Evidence, Options
from equipoise.measures.format import TEXTS
from equipoise.measures.intervals import ratio_of_sums
from equipoise.measures.means import WindowMeans, problem_means, quotient

_COUNTS = {
    "opened_first": "opened",
    "opened": "opened_total",
    "verified": "verified",
    "abandoned": "abandoned",
    "planning": "n_planning",
}
_HOW = {
    "rollout": "count in a problem's texts, their mean",
    "words": "count in a problem's texts over their words",
    "depth": "words that a branch lasts, mean over a problem's texts that open one",
}


def estimate_profile(evidence: Evidence, *, baseline: Evidence | None, options: Options) -> list[Estimate]:
    """Means per rollout and per 1,000 words, in the last and first steps."""
    if evidence.texts is None or not evidence.texts.known_R.any():
        return [Estimate("opened_per_rollout", None, missing=TEXTS)]
    results: list[Estimate] = []
    for arm in arms_of(evidence.answers, None if baseline is None else baseline.answers):
        means = WindowMeans.of(arm, evidence, baseline, _per_problem)
        for name in means.names():
            how = _HOW["depth" if name == "branch_depth" else name.rpartition("_")[2]]
            results += summarise(Spread(name, means.of_name(name), how, "none there", TEXTS, (0, np.inf)), arm)
        for window in (arm.late, arm.early):
            if window is not None:
                results += _opened_per_verified(evidence, window)
    return [number for number in results if number.value is not None]


def _per_problem(evidence: Evidence, window: Window) -> Iterator[tuple[str, np.ndarray]]:
    if evidence.texts is None:
        return
    numbers = {name: values[window.rows] for name, values in evidence.texts.numbers.items()}
    means = {
        name: problem_means(numbers[name], window.table.prompt_R, window.counts.prompt_P)
        for name in (*_COUNTS.values(), "n_words", "branch_depth")
    }
    for name, count in _COUNTS.items():
        yield f"{name}_per_rollout", means[count]
        yield f"{name}_per_1000_words", quotient(1000 * means[count], means["n_words"])
    yield "branch_depth", means["branch_depth"]


def _opened_per_verified(evidence: Evidence, window: Window) -> list[Estimate]:
    assert evidence.texts is not None
    opened, verified = (evidence.texts.numbers[name][window.rows] for name in ("opened_total", "verified"))
    known = np.isfinite(opened) & np.isfinite(verified) & (window.table.prompt_R >= 0)
    if verified[known].sum() == 0:
        return []
    found = ratio_of_sums(opened[known], verified[known], window.table.prompt_R[known])
    return [found.named("opened_per_verified", window.at)]
