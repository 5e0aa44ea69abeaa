"""Which problems were won and which were lost: solve rates before and after. Axes: P problems.

Before is the baseline or, without one, the run's first steps. Two numbers do not depend on how many samples either side has:

    lost@k = mean pass@k(before) · (1 − pass@k(after))     won@k = mean (1 − pass@k(before)) · pass@k(after)

the chance that k samples of one side solve a problem and k of the other do not. Both are above 0 for one policy drawn twice;
won@k − lost@k is the difference of pass@k.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from equipoise.base import Estimate
from equipoise.measures.arms import Arm, Pair, Window, arms_of
from equipoise.measures.evidence import Evidence, Options
from equipoise.measures.intervals import mean_of_prompts
from equipoise.measures.passk import VERDICTS, pass_at_k_of
from equipoise.measures.subsets import common_size

# Never and always are classes of their own: a problem that leaves them is what training wins or loses.
CLASSES = ("0", "(0, 0.25]", "(0.25, 0.5]", "(0.5, 0.75]", "(0.75, 1)", "1")
BEFORE = (
    "the base model's rollouts on the same problems (--baseline PATH), or the same problems in the first and last steps"
)


def solve_class(correct_P: np.ndarray, drawn_P: np.ndarray) -> np.ndarray:
    """Index into `CLASSES` of the solve rate c/n; in whole numbers, so that a quarter is a quarter."""
    quarter_P = -(-4 * correct_P // np.maximum(drawn_P, 1))
    return np.where(correct_P == 0, 0, np.where(correct_P == drawn_P, len(CLASSES) - 1, quarter_P))


@dataclass(frozen=True, slots=True)
class Compared:
    """Verdicts of the same problems before and after."""

    correct_P: np.ndarray
    drawn_P: np.ndarray
    later_correct_P: np.ndarray
    later_drawn_P: np.ndarray
    at: dict[str, Any]
    note: str

    def __len__(self) -> int:
        return len(self.drawn_P)


def estimate_transitions(evidence: Evidence, *, baseline: Evidence | None, options: Options) -> list[Estimate]:
    """The share of problems in every pair of classes of solve rates, and what was lost and won."""
    for who, table in (("", evidence.answers), ("for the baseline: ", None if baseline is None else baseline.answers)):
        if table is not None and not table.has("correct"):
            return [Estimate("transition", None, missing=who + VERDICTS)]
    results: list[Estimate] = []
    for arm in arms_of(evidence.answers, None if baseline is None else baseline.answers):
        found = _compared(arm)
        if isinstance(found, str):
            results.append(Estimate("transition", None, at=dict(arm.late.at), missing=found))
        else:
            results += [*_cells(found), *_lost_and_won(found)]
    return results or [Estimate("transition", None, missing=BEFORE)]


def _compared(arm: Arm) -> Compared | str:
    """The arm against its baseline, else against its own first steps; or what is missing."""
    at = dict(arm.late.at)
    if arm.base is not None and arm.against is not None:
        found = _pair(arm.late, arm.base, arm.against, at | {"against": "baseline"}, arm.unlike)
    elif arm.early is not None and arm.change is not None and arm.unmatched is None:
        steps = [arm.early.at["step"][0], arm.late.at["step"][1]]
        found = _pair(
            arm.late, arm.early, arm.change, at | {"window": "change", "step": steps, "against": "first steps"}, ""
        )
    else:
        return arm.unmatched or BEFORE
    return found if len(found) else "judged rollouts of the same problems before and after"


def _pair(late: Window, before: Window, pair: Pair, at: dict[str, Any], note: str) -> Compared:
    now, then = late.counts, before.counts
    mine, theirs = pair
    judged = (now.drawn_P[mine] > 0) & (then.drawn_P[theirs] > 0)
    mine, theirs = mine[judged], theirs[judged]
    return Compared(then.correct_P[theirs], then.drawn_P[theirs], now.correct_P[mine], now.drawn_P[mine], at, note)


def _cells(found: Compared) -> Iterator[Estimate]:
    before_P = solve_class(found.correct_P, found.drawn_P)
    after_P = solve_class(found.later_correct_P, found.later_drawn_P)
    samples = f"{_samples(found.drawn_P)} samples before and {_samples(found.later_drawn_P)} after"
    for i, before in enumerate(CLASSES):
        for j, after in enumerate(CLASSES):
            inside_P = (before_P == i) & (after_P == j)
            share = mean_of_prompts(inside_P, bounds=(0, 1))
            at = found.at | {"before": before, "after": after, "count": int(inside_P.sum())}
            how = f"share of problems by their solve rates in {samples}; {share.how}{found.note}"
            yield Estimate("transition", share.value, share.low, share.high, share.n, at, how)


def _samples(drawn_P: np.ndarray) -> str:
    low, high = int(drawn_P.min()), int(drawn_P.max())
    return str(low) if low == high else f"{low}–{high}"


def _lost_and_won(found: Compared) -> Iterator[Estimate]:
    fewest_P = np.minimum(found.drawn_P, found.later_drawn_P)
    k = common_size(fewest_P)
    kept = fewest_P >= k
    before_P = pass_at_k_of(found.correct_P[kept], found.drawn_P[kept], k)
    after_P = pass_at_k_of(found.later_correct_P[kept], found.later_drawn_P[kept], k)
    out = int((~kept).sum())
    left_out = f"; left out: {out} of {len(found)} problems (fewer than {k} judged samples)" if out else ""
    for name, values_P, how in (
        (f"lost@{k}", before_P * (1 - after_P), f"solved by {k} samples before and by none of {k} after"),
        (f"won@{k}", (1 - before_P) * after_P, f"solved by {k} samples after and by none of {k} before"),
    ):
        share = mean_of_prompts(values_P, bounds=(0, 1))
        how = f"chance that a problem is {how}; {share.how}{left_out}{found.note}"
        yield Estimate(name, share.value, share.low, share.high, share.n, found.at | {"k": k}, how)
