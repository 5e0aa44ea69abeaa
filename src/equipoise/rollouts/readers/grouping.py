"""Groups in files that have no group id but keep the completions of one prompt together, group after group.

Equal prompts in a row are not always one group: a batch may draw the same question twice. So the group size is inferred
from all runs of equal prompts (their greatest common divisor) and rows are counted off in groups of that size.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from itertools import groupby


def run_lengths(prompts: Iterable[Hashable]) -> list[int]:
    """Lengths of the runs of equal neighbours."""
    return [sum(1 for _ in run) for _, run in groupby(prompts)]


def group_size(files: Iterable[Sequence[int]]) -> int | None:
    """The size that divides every run of every file; None where only 1 does although prompts repeat: uneven groups.

    The first run of a file may have lost its beginning, so it counts only where there is nothing else.
    """
    files = [list(runs) for runs in files]
    later = [length for runs in files for length in runs[1:]]
    lengths = later or [length for runs in files for length in runs]
    size = math.gcd(*lengths)
    return None if size == 0 or (size == 1 and max(lengths) > 1) else size


def size_by_advantages(size: int, files: Iterable[Sequence[float]]) -> int:
    """A smaller size, if the advantages prove it: all of a batch may be one question drawn for several groups.

    Normalised within a group of n, advantages sum to 0 and their squares to n - 1 (or 0 where all rewards are equal).
    The smallest divisor for which every group does both is the size; where none does, they were not normalised so.
    """
    files = [list(values) for values in files]
    for n in (n for n in range(2, size) if size % n == 0):
        groups = [values[i : i + n] for values in files for i in range(0, len(values), n)]
        squares = [sum(a * a for a in group) for group in groups]
        centred = all(abs(sum(group)) < 1e-3 * n for group in groups)
        # The usual divisor std + 1e-4 leaves a little less than n - 1.
        if (
            centred
            and any(s > 1e-6 for s in squares)
            and all(s <= 1e-6 or 0.95 * (n - 1) < s < 1.001 * (n - 1) for s in squares)
        ):
            return n
    return size


class GroupCounter:
    """Counts rows off: a group ends when it is full or when the prompt changes."""

    def __init__(self, size: int | None) -> None:
        self._size = size
        self._prompt: Hashable = None
        self._group = -1
        self._index = 0

    def next(self, prompt: Hashable) -> tuple[int, int]:
        """(number of the group in the file, position in the group) of the next row."""
        self._index += 1
        if self._group < 0 or prompt != self._prompt or self._index == self._size:
            self._group, self._index, self._prompt = self._group + 1, 0, prompt
        return self._group, self._index
