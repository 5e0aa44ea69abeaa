"""The k that runs can be compared at: pass@k, maj@k and distinct@k with that many samples from each."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from equipoise.measures.answers import AnswerTable
from equipoise.measures.prompts import PromptCounts, conditions, late_rows
from equipoise.measures.subsets import common_size


def common_depth(tables: Iterable[AnswerTable]) -> int:
    """The largest power of two up to half of the samples that nine problems in ten have, in every run; 2 of 2 or 3.

    Half, because at k = n pass@k of a problem is 0 or 1, and one unreadable sample leaves a problem without distinct@k.
    A run without verdicts is compared in other things, and sets no k.
    """
    depths = [_depth(table) for table in tables if np.isfinite(table.correct).any()]
    return int(2 ** (min(depths, default=1).bit_length() - 1))


def _depth(table: AnswerTable) -> int:
    """Half of the judged samples per problem in a condition's last steps, the most of any condition, as far as answered.

    Points of a budget sweep count only where there is nothing else: what a longer budget does is judged on its own.
    """
    judged, swept = np.isfinite(table.correct), np.isfinite(table.numbers["budget"])
    part = table.take(judged & ~swept if (judged & ~swept).any() else judged)
    depth = 1
    for _, rows in conditions(part):
        window = part.take(rows)
        counts = PromptCounts.of(window.take(late_rows(window)))
        drawn = common_size(counts.total_P)
        answered = common_size(counts.total_P - counts.abstained_P) if window.has("answer") else drawn
        depth = max(depth, min(answered, max(drawn // 2, 2)))
    return depth
