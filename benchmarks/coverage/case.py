"""One simulated situation and the intervals we would show in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

Shown = tuple[str, float | None, float | None, float]  # name of the estimate, low, high, truth; None: not shown
Simulate = Callable[[np.random.Generator, int, int], Iterator[Shown]]

SIZES = ((50, 8), (50, 64), (200, 8), (200, 64))  # prompts, samples per prompt


@dataclass(frozen=True, slots=True)
class Case:
    """`simulate(rng, prompts, samples)` draws one run and yields every interval it would show, with the truth.

    An estimate whose name starts with "rejected:" is a method that we tried and do not use; it gets a table of its own.
    """

    name: str
    simulate: Simulate
    sizes: tuple[tuple[int, int], ...] = SIZES
