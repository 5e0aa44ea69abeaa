"""Which formats the answers are written in, and how that moves over a run (https://arxiv.org/abs/2504.07912)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from equipoise.base import Estimate
from equipoise.measures.arms import Spread, Window, arms_of, summarise
from equipoise.measures.evidence import Evidence, Options
from equipoise.measures.means import WindowMeans, problem_means
from equipoise.text.formats import FORMATS

TEXTS = "the texts (column completion)"


def estimate_format(evidence: Evidence, *, baseline: Evidence | None, options: Options) -> list[Estimate]:
    """The share of each format and of well-formed answers, in the last and first steps; shares of a window sum to 1."""
    if evidence.texts is None or not evidence.texts.known_R.any():
        return [Estimate("format_share", None, missing=TEXTS)]
    results: list[Estimate] = []
    for arm in arms_of(evidence.answers, None if baseline is None else baseline.answers):
        means = WindowMeans.of(arm, evidence, baseline, _per_problem)
        for name in means.names():
            values, at = means.of_name(name), {"format": name}
            if name == "format_ok":
                how = "share of a problem's answers that its parser accepts"
                results += summarise(Spread(name, values, how, "not parsed", "column format_ok", (0, 1)), arm)
            elif any((values(w) > 0).any() for w in (arm.late, arm.early, arm.base) if w is not None):
                how = "share of a problem's texts"
                results += summarise(Spread("format_share", values, how, "no text", TEXTS, (0, 1), at=at), arm)
    return results


def _per_problem(evidence: Evidence, window: Window) -> Iterator[tuple[str, np.ndarray]]:
    """Each format's share of a problem's texts, 0 too: a format that was lost shows in the change."""
    table, texts = window.table, evidence.texts
    if texts is not None:
        known = texts.known_R[window.rows]
        for code, name in enumerate(FORMATS):
            used = np.where(known, texts.format_R[window.rows] == code, np.nan)
            yield name, problem_means(used, table.prompt_R, window.counts.prompt_P)
    if table.has("format_ok"):
        yield "format_ok", problem_means(table.numbers["format_ok"], table.prompt_R, window.counts.prompt_P)
