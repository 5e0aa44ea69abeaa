"""A run cut into stretches of neighbouring steps, so that a curve over a long run has a bounded number of points."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

MOST = 100  # points of a curve


def step_buckets(step_R: np.ndarray, *, most: int = MOST) -> Iterator[tuple[int | list[int], np.ndarray]]:
    """(step, rows) of every step or, where there are more than `most`, ([first, last], rows) of as few to a stretch as do.

    Rows without a step are left out.
    """
    known = np.flatnonzero(np.isfinite(step_R))
    steps, index = np.unique(step_R[known], return_inverse=True)
    width = -(-len(steps) // most)
    order = np.argsort(index, kind="stable")
    starts = np.searchsorted(index[order], np.arange(0, len(steps), max(width, 1)))
    for number, rows in enumerate(np.split(order, starts[1:])):
        if len(rows):
            stretch = steps[number * width : (number + 1) * width]
            first, last = int(stretch[0]), int(stretch[-1])
            yield (first if width == 1 else [first, last]), known[rows]
