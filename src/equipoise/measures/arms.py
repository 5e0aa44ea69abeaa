"""What a measure is taken over: each condition's last and first steps, and the rollouts of a baseline that match it.

A measure of problems gives one value per problem; `summarise` makes of it the mean over problems in the last steps, in
the first steps, the change, and the difference from the baseline on the problems that both have. Axes: P problems.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from equipoise.base import Estimate
from equipoise.measures.answers import AnswerTable
from equipoise.measures.intervals import (
    Interval,
    difference_of_means,
    mean_of_prompts,
    paired_difference,
    ratio_of_sums,
)
from equipoise.measures.prompts import (
    CONDITIONS,
    NUMBERED_CONDITIONS,
    PromptCounts,
    conditions,
    late_rows,
    step_windows,
)
from equipoise.measures.subsets import common_size
from equipoise.text.display import many

PAIRED = 0.5  # share of the smaller set that two windows must have in common to be compared problem by problem

Pair = tuple[np.ndarray, np.ndarray]  # indices of the same problems in two windows


@dataclass(frozen=True, slots=True)
class Window:
    """Rollouts drawn under one condition in some steps, counted by problem. `rows` index the tables of the evidence."""

    at: Mapping[str, Any]
    rows: np.ndarray
    table: AnswerTable
    counts: PromptCounts

    @classmethod
    def of(cls, table: AnswerTable, rows: np.ndarray, at: Mapping[str, Any]) -> Window:
        part = table.take(rows)
        return cls(at, rows, part, PromptCounts.of(part))

    def problems(self) -> list[str]:
        return [self.table.names["prompt_id"].texts[code] for code in self.counts.prompt_P]


@dataclass(frozen=True, slots=True)
class Arm:
    """One condition of a run. `early`, `base`: None where the run has no early steps, where no baseline fits."""

    late: Window
    early: Window | None = None
    base: Window | None = None
    change: Pair | None = None  # problems of late and early
    against: Pair | None = None  # problems of late and base
    unmatched: str | None = None  # what a baseline would need; None where one was compared, or none was given
    unlike: str = ""  # in which conditions the baseline differs, in words

    def with_samples(self, k: int, sizes: Callable[[Window], np.ndarray]) -> Arm:
        """The arm without the windows that have too few samples for k."""
        early = self.early is not None and common_size(sizes(self.early)) >= k
        base = self.base is not None and common_size(sizes(self.base)) >= k
        return replace(
            self,
            early=self.early if early else None,
            change=self.change if early else None,
            base=self.base if base else None,
            against=self.against if base else None,
        )


def arms_of(table: AnswerTable, baseline: AnswerTable | None) -> list[Arm]:
    """One arm per condition of the run."""
    arms = []
    for at, rows in conditions(table):
        part = table.take(rows)
        windows = [Window.of(table, rows[mask], at | when) for when, mask in step_windows(part)]
        late, early = windows[0], windows[1] if len(windows) > 1 else None
        change = None if early is None else _common(late, early)
        if baseline is None:
            arms.append(Arm(late, early, change=change))
            continue
        base, unmatched, unlike = baseline_for(condition_of(part), baseline)
        against = None if base is None else _common(late, base)
        if against is not None and not len(against[0]):
            base, against = None, None
            unmatched = f"a baseline with the same prompt ids: none of {many(len(late.counts), 'problem')} is in it"
        arms.append(Arm(late, early, base, change, against, unmatched, unlike))
    return arms


def _common(a: Window, b: Window) -> Pair:
    """The places of the problems that both hold, in the same order."""
    place = {problem: i for i, problem in enumerate(b.problems())}
    pairs = [(i, place[problem]) for i, problem in enumerate(a.problems()) if problem in place]
    both = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def condition_of(part: AnswerTable) -> dict[str, Any]:
    """What the rollouts of one condition were drawn under, as far as it is known. The run's own name does not count."""
    known: dict[str, Any] = {}
    for name in CONDITIONS[1:]:
        if len(part) and part.codes[name][0] >= 0:
            known[name] = part.names[name].texts[part.codes[name][0]]
    for name in NUMBERED_CONDITIONS:
        if len(part) and np.isfinite(part.numbers[name][0]):
            known[name] = float(part.numbers[name][0])
    return known


def baseline_for(wanted: Mapping[str, Any], baseline: AnswerTable) -> tuple[Window | None, str | None, str]:
    """The baseline's last steps under the condition that fits, or what is missing, and where the two differ."""
    cells = [rows for _, rows in conditions(baseline)]
    fits = []
    for rows in cells:
        found = condition_of(baseline.take(rows[:1]))
        if all(found[name] == value for name, value in wanted.items() if name in found):
            fits.append(rows)
    chosen = fits or cells
    if len(chosen) != 1:
        return None, f"a baseline of one condition: this one has {len(chosen)} that would do", ""
    part = baseline.take(chosen[0])
    found = condition_of(part)
    unlike = [
        f"{name} {found[name]} instead of {value}"
        for name, value in wanted.items()
        if name in found and found[name] != value
    ]
    window = Window.of(baseline, chosen[0][late_rows(part)], {})
    return window, None, f"; the baseline has {', '.join(unlike)}" if unlike else ""


@dataclass(frozen=True, slots=True)
class Spread:
    """How a measure's values are summarised. `values` gives one number per problem, nan where it is not defined there."""

    name: str
    values: Callable[[Window], np.ndarray]
    how: str  # a problem's value, in words
    short: str  # why a problem has no value: "fewer than 8 samples"
    missing: str  # what would supply it: "draw ≥ 8 samples per problem"
    bounds: tuple[float, float] | None = None  # as `mean_of_prompts` takes them
    compare: bool = True  # False: the value depends on the number of samples, so windows are not set against each other
    relative: bool = False  # give differences also as a share of what they started from
    no_interval: str | None = None  # why none is shown
    at: Mapping[str, Any] = field(default_factory=dict)


def summarise(spread: Spread, arm: Arm) -> list[Estimate]:
    """The mean over problems in the last and first steps, its change, and its difference from the baseline."""
    late = spread.values(arm.late)
    estimates = [_mean(spread, arm.late, late)]
    if arm.early is not None:
        early = spread.values(arm.early)
        estimates += [_mean(spread, arm.early, early), *(_change(spread, arm, late, early) if spread.compare else [])]
    if arm.base is not None and arm.against is not None and spread.compare:
        mine, theirs = late[arm.against[0]], spread.values(arm.base)[arm.against[1]]
        at = dict(arm.late.at) | {"against": "baseline"}
        estimates += _paired(spread, f"{spread.name}_vs_baseline", mine, theirs, at, arm.unlike)
    return estimates


def unmatched(name: str, arm: Arm) -> list[Estimate]:
    """One estimate that says why a baseline that was given could not be compared with."""
    if arm.unmatched is None:
        return []
    return [
        Estimate(f"{name}_vs_baseline", None, at=dict(arm.late.at) | {"against": "baseline"}, missing=arm.unmatched)
    ]


def _mean(spread: Spread, window: Window, values_P: np.ndarray) -> Estimate:
    at = dict(window.at) | dict(spread.at)
    known = values_P[np.isfinite(values_P)]
    if not len(known):
        return Estimate(spread.name, None, n=0, at=at, missing=spread.missing)
    found = mean_of_prompts(known, bounds=spread.bounds)
    return _estimate(spread, spread.name, found, at, _left_out(spread, values_P))


def _change(spread: Spread, arm: Arm, late: np.ndarray, early: np.ndarray) -> list[Estimate]:
    assert arm.early is not None
    assert arm.change is not None
    name = f"{spread.name}_change"
    at = dict(arm.late.at) | {"window": "change", "step": [arm.early.at["step"][0], arm.late.at["step"][1]]}
    a, b = late[arm.change[0]], early[arm.change[1]]
    both = np.isfinite(a) & np.isfinite(b)
    fewest = min(np.isfinite(late).sum(), np.isfinite(early).sum())
    if both.sum() >= PAIRED * max(1, fewest):
        return _paired(spread, name, a, b, at, "")
    late, early = late[np.isfinite(late)], early[np.isfinite(early)]
    if min(len(late), len(early)) < 2:
        return []
    return [
        _estimate(
            spread, name, difference_of_means(late, early, bounds=_finite(spread.bounds)), at | dict(spread.at), ""
        )
    ]


def _paired(spread: Spread, name: str, a: np.ndarray, b: np.ndarray, at: dict[str, Any], note: str) -> list[Estimate]:
    """The mean of a − b over problems with both values and, if asked for, Σ a / Σ b − 1."""
    at = at | dict(spread.at)
    both = np.isfinite(a) & np.isfinite(b)
    if not both.any():
        return [Estimate(name, None, n=0, at=at, missing=f"{spread.missing}, in both")]
    note = _left_out(spread, np.where(both, 0.0, np.nan)) + note
    a, b = a[both], b[both]
    difference = paired_difference(a, b, bounds=spread.bounds or (-np.inf, np.inf))
    estimates = [_estimate(spread, name, difference, at, note)]
    if spread.relative and b.sum() > 0:
        estimates.append(_estimate(spread, f"{name}_rel", relative_difference(a, b, difference), at, note))
    return estimates


def relative_difference(a_P: np.ndarray, b_P: np.ndarray, difference: Interval) -> Interval:
    """Σ a / Σ b − 1. Without an interval where the difference itself has none: too few problems differ for either."""
    ratio = ratio_of_sums(a_P, b_P, np.arange(len(a_P)))
    if difference.low is None or ratio.low is None or ratio.high is None:
        return Interval(ratio.value - 1, None, None, ratio.n, (difference if difference.low is None else ratio).how)
    return Interval(ratio.value - 1, ratio.low - 1, ratio.high - 1, ratio.n, f"as a share: {ratio.how}")


def _finite(bounds: tuple[float, float] | None) -> tuple[float, float] | None:
    return bounds if bounds is not None and np.isfinite(bounds).all() else None


def _left_out(spread: Spread, values_P: np.ndarray) -> str:
    out = int(np.isnan(values_P).sum())
    return f"; left out: {out} of {len(values_P)} problems ({spread.short})" if out else ""


def _estimate(spread: Spread, name: str, found: Interval, at: Mapping[str, Any], note: str) -> Estimate:
    if spread.no_interval is not None:
        return Estimate(
            name, found.value, n=found.n, at=at, how=f"{spread.how}; no interval: {spread.no_interval}{note}"
        )
    return Estimate(name, found.value, found.low, found.high, found.n, at, f"{spread.how}; {found.how}{note}")
