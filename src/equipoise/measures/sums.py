"""Any function of sums over rollouts, with an interval. Axes: R rollouts, P problems.

A mean over tokens is ΣH / Σn; its change between two windows, the ratio of two such means and an effective sample size are
other functions of other sums. All have the delete-one-problem jackknife's interval. A problem that occurs in both windows is
left out of both at once, so what the windows share is paired without being asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from equipoise.measures.intervals import Interval, t_quantile

Form = Callable[..., Any]  # of the sums, in order, as numbers or as arrays of equal shape
Scale = Literal["plain", "log", "growth"]
MAX_LOG = 3.0  # half an interval on the log scale: a factor of 20 either way says nothing
_SCALES = {"plain": "", "log": " on the log scale", "growth": " on the log scale of the ratio"}


@dataclass(frozen=True, slots=True)
class Sums:
    """What each rollout adds to some sums, its problem, and the function of the sums that is wanted."""

    form: Form
    terms: tuple[np.ndarray, ...]  # (R,) each
    problem_R: np.ndarray
    note: str = ""  # what should be said of the value

    @property
    def value(self) -> float:
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(self.form(*(np.float64(term.sum()) for term in self.terms)))

    def interval(self, scale: Scale = "plain") -> Interval:
        """The value with its 95 % interval.

        `log`: for positive values, log θ ± t s/θ. `growth`: for θ = a/b − 1, the same for 1 + θ.
        """
        problems, index = np.unique(self.problem_R, return_inverse=True)
        totals = [float(term.sum()) for term in self.terms]
        n, value = len(problems), self.value
        if n < 2:
            return Interval(value, None, None, n, "no interval: it needs 2 prompts")
        rest = [total - np.bincount(index, weights=term) for total, term in zip(totals, self.terms, strict=True)]
        with np.errstate(divide="ignore", invalid="ignore"):
            without_P = np.asarray(self.form(*rest), dtype=np.float64)
        if not np.isfinite(without_P).all():
            return Interval(value, None, None, n, "no interval: one prompt holds all there is")
        spread_P = without_P - without_P.mean()
        error = float(np.sqrt((n - 1) / n * (spread_P @ spread_P)))
        base = {"plain": 0.0, "log": value, "growth": 1 + value}[scale]
        if error <= 1e-12 * max(abs(value), abs(base)):
            return Interval(value, None, None, n, "no interval: equal in every prompt")
        half = t_quantile(spread_P) * error
        how = f"jackknife over prompts, t interval{_SCALES[scale]}"
        if scale == "plain":
            return Interval(value, value - half, value + half, n, how)
        if half > MAX_LOG * base:
            return Interval(value, None, None, n, "no interval: the prompts differ too much for so few of them")
        factor = float(np.exp(half / base))
        return Interval(value, value - base * (1 - 1 / factor), value + base * (factor - 1), n, how)


def difference(a: Sums, b: Sums) -> Sums:
    """a − b."""
    return _joined(a, b, lambda x, y: x - y)


def growth(a: Sums, b: Sums) -> Sums:
    """a / b − 1."""
    return _joined(a, b, lambda x, y: x / y - 1)


def _joined(a: Sums, b: Sums, of: Callable[[Any, Any], Any]) -> Sums:
    n_a, n_b, k = len(a.problem_R), len(b.problem_R), len(a.terms)
    return Sums(
        lambda *sums: of(a.form(*sums[:k]), b.form(*sums[k:])),
        (
            *(np.concatenate([term, np.zeros(n_b)]) for term in a.terms),
            *(np.concatenate([np.zeros(n_a), term]) for term in b.terms),
        ),
        np.concatenate([a.problem_R, b.problem_R]),
        a.note or b.note,
    )


def mean_of(total_R: np.ndarray, count_R: np.ndarray, problem_R: np.ndarray) -> Sums | None:
    """Σ total / Σ count over the rollouts that have a count; None where none has."""
    held = np.flatnonzero(count_R)
    if not len(held):
        return None
    return Sums(lambda total, count: total / count, (total_R[held], count_R[held]), problem_R[held])
