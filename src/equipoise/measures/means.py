"""Means per problem of what was read in each rollout, for every window of an arm. Axes: R rollouts, P problems."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from equipoise.measures.arms import Arm, Window
from equipoise.measures.evidence import Evidence

Read = Callable[[Evidence, Window], Iterable[tuple[str, np.ndarray]]]  # (name, one value per problem of the window)


@dataclass(frozen=True, slots=True)
class WindowMeans:
    """What `read` found in the last steps, the first steps and the baseline of an arm."""

    found: dict[int, dict[str, np.ndarray]]  # by id of the window

    @classmethod
    def of(cls, arm: Arm, evidence: Evidence, baseline: Evidence | None, read: Read) -> WindowMeans:
        held = [(arm.late, evidence), (arm.early, evidence), (arm.base, baseline)]
        return cls({id(w): dict(read(e, w)) for w, e in held if w is not None and e is not None})

    def names(self) -> list[str]:
        """What was found in any window, in order of first sight."""
        return list(dict.fromkeys(name for values in self.found.values() for name in values))

    def of_name(self, name: str) -> Callable[[Window], np.ndarray]:
        """The values of a window's problems, nan where they are not known."""
        return lambda window: self.found[id(window)].get(name, np.full(len(window.counts), np.nan))


def problem_means(values_R: np.ndarray, prompt_R: np.ndarray, prompt_P: np.ndarray) -> np.ndarray:
    """The mean of each problem's values, nan where none is known. `prompt_P` is sorted and holds every known problem."""
    known = np.isfinite(values_R) & (prompt_R >= 0)
    place = np.searchsorted(prompt_P, prompt_R[known])
    count = np.bincount(place, minlength=len(prompt_P))
    total = np.bincount(place, weights=values_R[known], minlength=len(prompt_P))
    return quotient(total, count)


def quotient(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    """top / bottom, nan where bottom is 0."""
    ratio = np.full(len(top), np.nan)
    np.divide(top, bottom, out=ratio, where=bottom > 0)
    return ratio
