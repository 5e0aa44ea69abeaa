"""Arrays added up per cell, in bounded memory. A cell is what rollouts were drawn under, and a range of steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from equipoise.measures.prompts import CONDITIONS, NUMBERED_CONDITIONS
from equipoise.rollouts.batch import Rollouts

Condition = tuple[str | float | None, ...]
Cell = tuple[Condition | None, int | None]  # condition (None: all pooled), first step of the bucket (None: no step)

_POOL = 63  # the level past every width: conditions are pooled


@dataclass(slots=True)
class Cells:
    """At most `limit` arrays, each the sum of all that was added to its cell; arrays grow along their last axis.

    Steps s and s' share a bucket when s // width == s' // width. When cells become too many the width doubles and
    neighbours merge; when even one bucket per condition is too many, conditions are pooled. Each level is a coarsening of the
    one before, so the level that a set of cells ends on, and with it every sum, depends neither on the order of the
    additions nor on how they were split over merged parts.
    """

    limit: int
    level: int = 0
    arrays: dict[Cell, np.ndarray] = field(default_factory=dict)

    @property
    def width(self) -> int:
        return 1 << min(self.level, _POOL - 1)

    @property
    def pooled(self) -> bool:
        return self.level == _POOL

    def cell(self, condition: Condition | None, step: int | None) -> Cell:
        """Where rollouts of this condition and step are counted at the present level."""
        bucket = None if step is None else step // self.width * self.width
        return (None if self.pooled else condition), bucket

    def add(self, condition: Condition | None, step: int | None, array: np.ndarray) -> None:
        self._put(self.cell(condition, step), array)
        while len(self.arrays) > self.limit and self.level < _POOL:
            self._coarsen(self.level + 1)

    def _put(self, cell: Cell, array: np.ndarray) -> None:
        held = self.arrays.get(cell)
        if held is None:
            self.arrays[cell] = array.copy()
        elif held.shape[-1] >= array.shape[-1]:
            held[..., : array.shape[-1]] += array
        else:
            grown = array.copy()
            grown[..., : held.shape[-1]] += held
            self.arrays[cell] = grown

    def _coarsen(self, level: int) -> None:
        self.level, finer = level, self.arrays
        self.arrays = {}
        for (condition, step), array in finer.items():
            self._put(self.cell(condition, step), array)

    def __add__(self, other: Cells) -> Cells:
        merged = Cells(self.limit, max(self.level, other.level))
        for part in (self, other):
            for (condition, step), array in part.arrays.items():
                merged.add(condition, step, array)
        return merged

    def of(self, condition: Condition | None = None) -> Iterator[tuple[int | None, np.ndarray]]:
        """(first step of the bucket, array) of one condition, or of all of them, in order of steps."""
        cells = [cell for cell in self.arrays if condition is None or cell[0] in (condition, None)]
        for cell in sorted(cells, key=lambda cell: (cell[1] is not None, cell[1] or 0)):
            yield cell[1], self.arrays[cell]


def total(arrays: list[np.ndarray]) -> np.ndarray:
    """The sum of arrays that differ in their last axis, the shorter ones padded with zeros."""
    longest = max(arrays, key=lambda array: array.shape[-1])
    whole = np.zeros_like(longest)
    for array in arrays:
        whole[..., : array.shape[-1]] += array
    return whole


def cells_of(rollouts: Rollouts) -> tuple[list[tuple[Condition, int | None]], np.ndarray]:
    """The distinct (condition, step) of a batch, and which of them each rollout has."""
    texts: dict[str, list[str]] = {}
    columns = []
    for name in CONDITIONS:
        found = rollouts.codes(name)
        codes, texts[name] = (np.full(len(rollouts), -1), []) if found is None else found
        columns.append(codes.astype(np.float64))
    for name in (*NUMBERED_CONDITIONS, "step"):
        values = rollouts.numbers(name)
        columns.append(np.full(len(rollouts), np.nan) if values is None else values)
    # nan is not equal to itself: unknown numbers get a value that no record holds.
    table = np.where(np.isnan(stacked := np.stack(columns, axis=1)), -np.inf, stacked)
    kinds, cell_R = np.unique(table, axis=0, return_inverse=True)
    keys: list[tuple[Condition, int | None]] = []
    for kind in kinds.tolist():
        *numbers, step = (None if value == -np.inf else value for value in kind[len(CONDITIONS) :])
        named = [texts[name][int(code)] if code >= 0 else None for name, code in zip(CONDITIONS, kind, strict=False)]
        keys.append(((*named, *numbers), None if step is None else int(step)))
    return keys, cell_R.ravel()
