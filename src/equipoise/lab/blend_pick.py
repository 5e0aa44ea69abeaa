"""Which point of a sweep suits a use. Axes: L points of the sweep, P problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from equipoise.errors import UsageError
from equipoise.measures.intervals import MIN_DIFFERING, paired_difference

USES = ("answer", "search")


@dataclass(frozen=True, slots=True)
class Pick:
    point: float
    best: float  # the highest mean of the use's own measure
    tied: tuple[float, ...]  # not surely below it, itself included: among these the second measure decides
    n: int  # problems compared


def goals(use: str, k: int) -> tuple[int, int]:
    """The k of the measure that a use goes by, and of the one that decides between equals."""
    return (1, k) if use == "answer" else (k, 1)


def rule_of(use: str, k: int) -> str:
    """The rule in words."""
    goal, second = goals(use, k)
    if goal == second:
        return f"the best by pass@{goal}"
    return (
        f"the best by pass@{goal}; of the points that are not told apart from it (the paired 95% interval of the difference "
        f"over the same problems includes 0), the one with the highest pass@{second}"
    )


def choose_point(points: Sequence[float], goal_LP: np.ndarray, second_LP: np.ndarray) -> Pick:
    """The point for a use, from the values of its measure and of the second one for every problem at every point: see `rule_of`.

    nan: not measured. A problem that one point lacks is left out of all, so that every comparison is over the same problems.
    Points that are equal in the second measure too, or that it could not be taken of, go by the first, then by nearness to BASE.
    """
    known_LP = _known(goal_LP)
    if not known_LP.shape[1]:
        raise UsageError(
            "no problem has enough judged completions at every point: use a smaller k, or mend the checker"
        )
    goal_L, second_L = (_rounded_means(values_LP) for values_LP in (known_LP, _known(second_LP)))
    best = max(range(len(points)), key=lambda i: (goal_L[i], -points[i]))
    tied = [i for i in range(len(points)) if not _surely_above(known_LP[best], known_LP[i])]
    pick = max(tied, key=lambda i: (second_L[i], goal_L[i], -points[i]))
    return Pick(points[pick], points[best], tuple(sorted(points[i] for i in tied)), known_LP.shape[1])


def _known(values_LP: np.ndarray) -> np.ndarray:
    return values_LP[:, np.isfinite(values_LP).all(axis=0)]


def _rounded_means(values_LP: np.ndarray) -> list[float]:
    """Rounding of sums is no difference. Of no problem at all: equal for every point, so that it decides nothing."""
    return [round(float(values_P.mean()), 12) if len(values_P) else 0.0 for values_P in values_LP]


def _surely_above(best_P: np.ndarray, other_P: np.ndarray) -> bool:
    found = paired_difference(best_P, other_P)
    if found.low is not None:
        return found.low > 0
    # Without an interval, since all differences are equal or few are not 0: by the sign test, where all are above 0.
    return len(best_P) >= MIN_DIFFERING and bool((best_P > other_P).all())
