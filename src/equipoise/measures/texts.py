"""What one pass reads out of completions: a row of facts per rollout, trajectory signatures, and counts of strategic grams."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from equipoise.measures.trajectories import SIGNATURE, sign_texts
from equipoise.rollouts.batch import Rollouts
from equipoise.text.degenerate import FLAGS
from equipoise.text.formats import FORMATS
from equipoise.text.reading import TextFacts, read_facts

_NUMBERS = ("n_words", "loop_ratio", "repeated_answers", "n_operations", "opened", "opened_total", "verified", "abandoned", "branch_depth", "n_planning", "thinking_closed")  # fmt: skip
_FORMAT_CODE = {name: code for code, name in enumerate(FORMATS)}
_FLAG_BIT = {name: 1 << bit for bit, name in enumerate(FLAGS)}


@dataclass(slots=True)
class TextTable:
    """Rows are those of the answer table. `known_R` False: the rollout has no text, and its numbers are nan."""

    columns: ClassVar[tuple[str, ...]] = ("completion", "step")

    known_R: np.ndarray = field(default_factory=lambda: np.empty(0, bool))
    format_R: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # index into FORMATS, −1 unknown
    flags_R: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # bit i: FLAGS[i]
    numbers: dict[str, np.ndarray] = field(default_factory=lambda: {name: np.empty(0) for name in _NUMBERS})
    signatures_R32: np.ndarray = field(default_factory=lambda: np.empty((0, SIGNATURE), np.uint32))
    grams: dict[float, Counter[str]] = field(default_factory=dict)  # by step; nan-free: −1 where unknown

    def __len__(self) -> int:
        return len(self.known_R)

    def flagged(self, flag: str) -> np.ndarray:
        """Which rollouts carry a flag of `text.degenerate.FLAGS`."""
        return (self.flags_R & _FLAG_BIT[flag]) > 0

    def __add__(self, other: TextTable) -> TextTable:
        grams = {step: Counter(counts) for step, counts in self.grams.items()}
        for step, counts in other.grams.items():
            grams.setdefault(step, Counter()).update(counts)
        return TextTable(
            np.concatenate([self.known_R, other.known_R]),
            np.concatenate([self.format_R, other.format_R]),
            np.concatenate([self.flags_R, other.flags_R]),
            {name: np.concatenate([values, other.numbers[name]]) for name, values in self.numbers.items()},
            np.concatenate([self.signatures_R32, other.signatures_R32]),
            grams,
        )


class TextCounter:
    """Fills a `TextTable` from batches."""

    columns = TextTable.columns

    def __init__(self) -> None:
        self._tables: list[TextTable] = []

    def add(self, rollouts: Rollouts) -> None:
        texts = rollouts.texts("completion") or [None] * len(rollouts)
        steps = rollouts.numbers("step")
        facts = [None if text is None else read_facts(text) for text in texts]
        grams: dict[float, Counter[str]] = {}
        for row, fact in enumerate(facts):
            if fact is not None and fact.grams:
                step = -1.0 if steps is None or np.isnan(steps[row]) else float(steps[row])
                grams.setdefault(step, Counter()).update(fact.grams)
        self._tables.append(
            TextTable(
                np.asarray([fact is not None for fact in facts], dtype=bool),
                np.asarray([-1 if fact is None else _FORMAT_CODE[fact.format] for fact in facts], dtype=np.int64),
                np.asarray(
                    [0 if fact is None else sum(_FLAG_BIT[f] for f in fact.flags) for fact in facts], dtype=np.int64
                ),
                {name: np.asarray([_number(fact, name) for fact in facts], dtype=np.float64) for name in _NUMBERS},
                sign_texts(texts),
                grams,
            )
        )

    def table(self) -> TextTable:
        # Two by two, so that no row is copied more than log(batches) times.
        tables = self._tables or [TextTable()]
        while len(tables) > 1:
            tables = [a + b for a, b in zip(tables[::2], tables[1::2], strict=False)] + tables[len(tables) // 2 * 2 :]
        self._tables = tables
        return tables[0]


def _number(fact: TextFacts | None, name: str) -> float:
    value: Any = None if fact is None else getattr(fact, name)
    return float("nan") if value is None else float(value)
