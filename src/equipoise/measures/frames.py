"""Token columns of some rollouts brought to one ragged shape. Axes: R rollouts, T tokens of all of them, D deciles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from equipoise.rollouts.batch import Ragged, Rollouts

DECILES = 10


@dataclass(frozen=True, slots=True)
class Frame:
    """Rollout r holds the tokens from bounds[10 r] to bounds[10 r + 10], cut at the tenths of its length.

    Every column is (T,). `known[name]` (R,) is False where the rollout has no such list: its tokens are then nan,
    or −1 for token ids, or True for the loss mask.
    """

    bounds: np.ndarray
    columns: Mapping[str, np.ndarray]
    known: Mapping[str, np.ndarray]

    @classmethod
    def of(cls, rollouts: Rollouts, names: Sequence[str]) -> tuple[Frame, int]:
        """The frame of a batch, and how many lists were left out because their length is not that of their rollout."""
        found = {name: ragged for name in names if (ragged := rollouts.ragged(name)) is not None}
        lengths_R = np.max([np.zeros(len(rollouts), np.int64), *(ragged.lengths for ragged in found.values())], axis=0)
        offsets = np.concatenate([[0], np.cumsum(lengths_R)])
        known = {name: ragged.known & (ragged.lengths == lengths_R) for name, ragged in found.items()}
        columns = {name: _fitted(name, ragged, offsets, known[name]) for name, ragged in found.items()}
        unequal = sum(int((found[name].known & ~known[name]).sum()) for name in found)
        tenths = offsets[:-1, None] + (lengths_R[:, None] * np.arange(DECILES) + DECILES - 1) // DECILES
        return cls(np.append(tenths.ravel(), offsets[-1]), columns, known), unequal

    def __len__(self) -> int:
        return len(self.bounds) // DECILES

    @property
    def offsets(self) -> np.ndarray:
        """Where each rollout's tokens start, and where the last one's end, (R + 1,)."""
        return self.bounds[::DECILES]

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

    def blocks(self, tokens: int) -> Iterator[tuple[slice, Frame]]:
        """Runs of rollouts of about so many tokens (a rollout is never cut), with their place: arrays that fit the cache."""
        offsets = self.offsets
        first = 0
        while first < len(self):
            last = int(np.searchsorted(offsets, offsets[first] + tokens, side="right")) - 1
            rows = slice(first, min(max(last, first + 1), len(self)))
            inside = slice(offsets[rows.start], offsets[rows.stop])
            bounds = self.bounds[rows.start * DECILES : rows.stop * DECILES + 1] - offsets[first]
            yield (
                rows,
                Frame(
                    bounds,
                    {name: values[inside] for name, values in self.columns.items()},
                    {name: known[rows] for name, known in self.known.items()},
                ),
            )
            first = rows.stop

    def having(self, **columns: np.ndarray) -> Frame:
        """The frame with more columns."""
        return Frame(self.bounds, {**self.columns, **columns}, self.known)

    def where(self, keep_T: np.ndarray) -> Frame:
        """The frame of some tokens. They stay in the tenth of the completion where they stood."""
        if keep_T.all():
            return self
        kept = np.concatenate([[0], np.cumsum(keep_T)])
        return Frame(kept[self.bounds], {name: values[keep_T] for name, values in self.columns.items()}, self.known)

    def per_rollout(self, values_T: np.ndarray) -> np.ndarray:
        """Σ over each rollout's tokens, (R,)."""
        return segment_sums(values_T, self.offsets)

    def per_decile(self, values_T: np.ndarray) -> np.ndarray:
        """Σ over each tenth of each rollout, (R, D)."""
        return segment_sums(values_T, self.bounds).reshape(-1, DECILES)

    def spread(self, values_R: np.ndarray) -> np.ndarray:
        """Each rollout's value at all of its tokens, (T,)."""
        return np.repeat(values_R, self.lengths)

    def by_cell(self, cell_R: np.ndarray) -> Iterator[tuple[int, slice | np.ndarray]]:
        """Each cell with the place of its tokens: a slice where its rollouts stand together, else their indices."""
        starts = np.flatnonzero(np.diff(cell_R, prepend=-1))
        if len(starts) == len(np.unique(cell_R)):
            for first, last in zip(starts, np.append(starts[1:], len(cell_R)), strict=True):
                yield int(cell_R[first]), slice(self.offsets[first], self.offsets[last])
            return
        order_R = np.argsort(cell_R, kind="stable")
        lengths_R = self.lengths[order_R]
        ends = np.cumsum(lengths_R)
        begins = ends - lengths_R
        place_T = np.repeat(self.offsets[:-1][order_R] - begins, lengths_R) + np.arange(ends[-1])
        cells, firsts = np.unique(cell_R[order_R], return_index=True)
        cuts = np.append(begins[firsts], ends[-1])
        for i, cell in enumerate(cells):
            yield int(cell), place_T[cuts[i] : cuts[i + 1]]


def segment_sums(values: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """Σ values[bounds[i]:bounds[i + 1]] in float64, 0 where that is empty."""
    sums = np.zeros(len(bounds) - 1)
    # reduceat gives an element, not 0, for an empty segment; without the empty ones each segment ends where the next starts.
    full = np.flatnonzero(np.diff(bounds))
    if len(full):
        sums[full] = np.add.reduceat(values[: bounds[-1]], bounds[full], dtype=np.float64)
    return sums


def _fitted(name: str, ragged: Ragged, offsets: np.ndarray, known: np.ndarray) -> np.ndarray:
    values: np.ndarray = ragged.values
    empty: float | bool = np.nan
    if name == "loss_mask":
        values, empty = values.astype(bool), True  # a null inside the list is nan: it counts
    elif name == "token_ids":
        empty = -1
        if values.dtype.kind == "f":
            values = np.nan_to_num(values, nan=-1).astype(np.int64)
    if np.array_equal(ragged.offsets, offsets) and known.all():
        return values
    fitted = np.full(offsets[-1], empty, dtype=values.dtype)
    fitted[np.repeat(known, np.diff(offsets))] = values[np.repeat(known, ragged.lengths)]
    return fitted
