"""Counts per problem: how often each was tried, solved, and which answers it got. Axes: P problems, K kinds of answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from equipoise.measures.answers import AnswerTable

CONDITIONS = ("run_id", "split", "strategy")
NUMBERED_CONDITIONS = ("budget", "temperature")


@dataclass(frozen=True, slots=True)
class PromptCounts:
    """One row per problem. Answer kinds are ragged: problem i has kinds[offsets[i]:offsets[i+1]].

    `drawn_P` counts rollouts with a verdict; `abstained_P` those without a readable answer.
    `kind_right`: the verdict on that kind of answer (the majority of its rollouts' verdicts), nan if none was judged;
    `kind_correct`: how many of its rollouts were judged right.
    """

    prompt_P: np.ndarray  # code in the table's names["prompt_id"]
    total_P: np.ndarray  # rollouts
    drawn_P: np.ndarray  # rollouts with a verdict
    correct_P: np.ndarray
    abstained_P: np.ndarray
    kind_answer: np.ndarray  # code in names["answer"]
    kind_count: np.ndarray
    kind_right: np.ndarray
    kind_correct: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(cls, table: AnswerTable) -> PromptCounts:
        """Count a table's rollouts by problem; rollouts without a problem are left out."""
        rows = np.flatnonzero(table.prompt_R >= 0)
        prompt_P, index = np.unique(table.prompt_R[rows], return_inverse=True)
        n = len(prompt_P)
        correct, answer = table.correct[rows], table.answer_R[rows]
        judged = np.isfinite(correct)
        answered = answer >= 0
        width = int(answer.max(initial=0)) + 1
        pair, kind = np.unique(index[answered] * width + answer[answered], return_inverse=True)
        verdict = correct[answered]
        known = np.isfinite(verdict)
        votes = np.bincount(kind[known], minlength=len(pair))
        right = np.bincount(kind[known], weights=verdict[known], minlength=len(pair))
        with np.errstate(invalid="ignore", divide="ignore"):
            kind_right = np.where(votes > 0, (right / votes > 0.5).astype(float), np.nan)
        return cls(
            prompt_P,
            np.bincount(index, minlength=n),
            np.bincount(index[judged], minlength=n),
            np.bincount(index[judged], weights=correct[judged], minlength=n).astype(np.int64),
            np.bincount(index[~answered], minlength=n),
            pair % width,
            np.bincount(kind, minlength=len(pair)),
            kind_right,
            right.astype(np.int64),
            np.searchsorted(pair // width, np.arange(n + 1)),
        )

    def __len__(self) -> int:
        return len(self.prompt_P)


def late_rows(table: AnswerTable, *, share: float = 0.2) -> np.ndarray:
    """Rollouts of the last `share` of the steps (at least one step); all of them where steps are unknown."""
    return _window(table, share, last=True)


def early_rows(table: AnswerTable, *, share: float = 0.2) -> np.ndarray:
    """Rollouts of the first `share` of the steps; none where there is only one step, or none known."""
    return _window(table, share, last=False)


def _window(table: AnswerTable, share: float, *, last: bool) -> np.ndarray:
    steps = np.unique(table.numbers["step"][np.isfinite(table.numbers["step"])])
    if len(steps) < 2:
        return np.full(len(table), last)
    width = max(1, round(share * len(steps)))
    chosen = steps[-width:] if last else steps[:width]
    return np.isin(table.numbers["step"], chosen)


def group_rows(columns: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Rows that agree in every column: (a row of each group, the group of each row). Groups are sorted by their values.

    nan equals itself here. Column by column, which is faster than `np.unique(axis=0)` and does not mix integers into floats.
    """
    n = len(columns[0])
    index = np.zeros(n, dtype=np.int64)
    for column in columns:
        values, codes = np.unique(column, return_inverse=True)
        if len(values) > 1:
            _, index = np.unique(index * len(values) + codes.ravel(), return_inverse=True)
            index = index.ravel()
    _, first = np.unique(index, return_index=True)
    return first, index


def conditions(table: AnswerTable) -> list[tuple[dict[str, Any], np.ndarray]]:
    """The rollouts split by what they were drawn under (run, split, strategy, budget, temperature), with its description.

    A condition that does not vary is left out of the description.
    """
    columns = [table.codes[name] for name in CONDITIONS] + [table.numbers[name] for name in NUMBERED_CONDITIONS]
    first, index = group_rows(columns)
    names = (*CONDITIONS, *NUMBERED_CONDITIONS)
    varying = [name for name, column in zip(names, columns, strict=True) if len(np.unique(column[first])) > 1]
    order = np.argsort(index, kind="stable")
    ends = np.cumsum(np.bincount(index, minlength=len(first)))
    parts = np.split(order, ends[:-1]) if len(first) else []
    return [
        ({name: _value(table, name, row) for name in varying}, rows) for row, rows in zip(first, parts, strict=True)
    ]


def _value(table: AnswerTable, name: str, row: int) -> str | float | None:
    if name in CONDITIONS:
        code = table.codes[name][row]
        return None if code < 0 else table.names[name].texts[code]
    number = float(table.numbers[name][row])
    return number if np.isfinite(number) else None


def step_windows(table: AnswerTable) -> list[tuple[dict[str, Any], np.ndarray]]:
    """The last steps and, where there are several, the first ones: (description, mask of rollouts)."""
    late, early = late_rows(table), early_rows(table)
    if not early.any():
        return [({}, late)]
    steps = table.numbers["step"]
    return [
        ({"window": name, "step": [int(steps[rows].min()), int(steps[rows].max())]}, rows)
        for name, rows in (("late", late), ("early", early))
    ]
