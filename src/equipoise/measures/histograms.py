"""The exact histogram of token entropies in a window, read as quantiles and as the mean of the largest share.

`Histogram.of` gives the tokens of some rollouts only where these are whole cells of the token table (see `cells`);
`align` moves a window's ends to the nearest cells, which changes nothing in runs of up to 128 steps and conditions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from equipoise.measures.answers import AnswerTable
from equipoise.measures.arms import Arm, Window
from equipoise.measures.cells import Condition, total
from equipoise.measures.evidence import Evidence
from equipoise.measures.prompts import CONDITIONS, NUMBERED_CONDITIONS


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many tokens have which entropy: bins in order, with Σ H in each. Axis: B bins that hold tokens."""

    count_B: np.ndarray
    sum_B: np.ndarray

    @classmethod
    def from_cells(cls, arrays: list[np.ndarray]) -> Histogram:
        count, entropy = total(arrays)
        held = np.flatnonzero(count)
        return cls(count[held], entropy[held])

    @classmethod
    def of(cls, evidence: Evidence, rows: np.ndarray) -> Histogram | None:
        """The tokens of these rollouts of one condition; None where they are not whole cells."""
        table, answers = evidence.tokens, evidence.answers
        if table is None or not len(rows) or not table.has("entropy_tokens"):
            return None
        condition = condition_key(answers, int(rows[0]))
        wanted = {table.histograms.cell(condition, step)[1] for step in _steps(answers, rows)}
        arrays = [array for bucket, array in table.histograms.of(condition) if bucket in wanted]
        if not arrays:
            return None
        found = cls.from_cells(arrays)
        return found if found.n == table.rows["entropy_tokens"][rows].sum() else None

    @property
    def n(self) -> float:
        return float(self.count_B.sum())

    def quantiles(self, levels: np.ndarray) -> np.ndarray:
        """Quantiles by linear interpolation between the two nearest tokens, as numpy's and pandas' default."""
        value_B, last_B = self.sum_B / self.count_B, np.cumsum(self.count_B)
        rank = np.asarray(levels) * (self.n - 1)
        below = np.floor(rank)
        # Token number i, from 0, is in the first bin whose running count is above i.
        low = value_B[np.searchsorted(last_B, below, side="right")]
        high = value_B[np.searchsorted(last_B, np.minimum(below + 1, self.n - 1), side="right")]
        found: np.ndarray = low + (rank - below) * (high - low)
        return found

    def top_mean(self, share: float) -> float:
        """Mean of the `share` of tokens with the highest entropies; the one at the border counts for its part."""
        wanted = share * self.n
        above_B = np.cumsum(self.count_B[::-1])[::-1] - self.count_B  # tokens in higher bins
        taken_B = np.clip(wanted - above_B, 0, self.count_B)
        return float((self.sum_B / self.count_B) @ taken_B) / wanted


def condition_key(table: AnswerTable, row: int) -> Condition:
    """What a rollout was drawn under, as the cells name it."""
    texts = [table.names[name].texts[code] if (code := table.codes[name][row]) >= 0 else None for name in CONDITIONS]
    numbers = [float(table.numbers[name][row]) for name in NUMBERED_CONDITIONS]
    return (*texts, *(value if np.isfinite(value) else None for value in numbers))


def _steps(table: AnswerTable, rows: np.ndarray) -> list[int | None]:
    steps = table.numbers["step"][rows]
    known: list[int | None] = [int(step) for step in np.unique(steps[np.isfinite(steps)])]
    return known + ([None] if np.isnan(steps).any() else [])


def align(arm: Arm, evidence: Evidence) -> Arm:
    """The arm with windows of whole cells: those of which at least half the rollouts are in the window."""
    table, answers = evidence.tokens, evidence.answers
    if table is None or table.histograms.width == 1 or table.histograms.pooled or "step" not in arm.late.at:
        return arm
    same = _same_condition(answers, int(arm.late.rows[0]))
    bucket_R = answers.numbers["step"] // table.histograms.width
    early = None if arm.early is None else _aligned(arm.early, answers, same, bucket_R)
    return replace(arm, late=_aligned(arm.late, answers, same, bucket_R), early=early)


def _aligned(window: Window, answers: AnswerTable, same: np.ndarray, bucket_R: np.ndarray) -> Window:
    buckets, inside = np.unique(bucket_R[window.rows], return_counts=True)
    held = np.asarray([np.count_nonzero(bucket_R[same] == bucket) for bucket in buckets])
    chosen = buckets[(inside >= held / 2) | (inside / held == (inside / held).max())]
    rows = same[np.isin(bucket_R[same], chosen)]
    if np.array_equal(rows, np.sort(window.rows)):
        return window
    steps = answers.numbers["step"][rows]
    at: Mapping[str, Any] = dict(window.at) | {"step": [int(steps.min()), int(steps.max())]}
    return Window.of(answers, rows, at)


def _same_condition(table: AnswerTable, row: int) -> np.ndarray:
    same = np.ones(len(table), dtype=bool)
    for name in CONDITIONS:
        same &= table.codes[name] == table.codes[name][row]
    for name in NUMBERED_CONDITIONS:
        values = table.numbers[name]
        same &= np.isnan(values) if np.isnan(values[row]) else values == values[row]
    return np.flatnonzero(same)
