"""Training seen as sampling: what a run reached over its visits to a problem, against as many samples of the base model.

After t visits of n rollouts each a run has drawn k = n·t rollouts of a problem, from ever changing policies. Had the base
model drawn k, it would be expected to have solved 1 − C(N−c, k)/C(N, k) of the problems with N samples of which c are
right, and to have given Σ_o [1 − C(N−c_o, k)/C(N, k)] distinct answers. A run that falls below this on problems that it
has not solved lost diversity where it earned nothing for it: the loss on solved problems has spread to unsolved ones
(https://arxiv.org/abs/2509.06941). Axes: P problems, T visits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from equipoise.base import Estimate
from equipoise.measures.answers import AnswerTable
from equipoise.measures.arms import Window, baseline_for, condition_of, relative_difference
from equipoise.measures.evidence import Evidence, Options
from equipoise.measures.intervals import Interval, mean_of_prompts, paired_difference
from equipoise.measures.majk import judged
from equipoise.measures.passk import VERDICTS
from equipoise.measures.prompts import PromptCounts, conditions
from equipoise.measures.subsets import common_size, missed_share
from equipoise.text.display import many

MOST_VISITS = 64
STEPS = "a run that draws the same problems in two or more steps (columns step, prompt_id)"


@dataclass(frozen=True, slots=True)
class Visits:
    """Totals of a run's rollouts of each problem after its first, second, … visit. A visit is a step that drew it.

    T: as many visits as nine in ten of the problems that recur have, and 64 at most.
    """

    prompt_P: np.ndarray
    visits_P: np.ndarray
    drawn_PT: np.ndarray
    solved_PT: np.ndarray  # right at least once so far
    distinct_PT: np.ndarray  # distinct answers so far

    @classmethod
    def of(cls, table: AnswerTable) -> Visits:
        """Count a table's rollouts that have a problem and a step; after a problem's last visit its totals stay."""
        rows = np.flatnonzero((table.prompt_R >= 0) & np.isfinite(table.numbers["step"]))
        prompt_P, problem = np.unique(table.prompt_R[rows], return_inverse=True)
        _, step = np.unique(table.numbers["step"][rows], return_inverse=True)
        pair, which = np.unique(problem * (step.max(initial=0) + 1) + step, return_inverse=True)
        owner = pair // (step.max(initial=0) + 1)
        start_P = np.searchsorted(owner, np.arange(len(prompt_P)))
        visit = (np.arange(len(pair)) - start_P[owner])[which]  # of each rollout: 0, 1, …
        visits_P = np.bincount(owner, minlength=len(prompt_P))
        width = min(MOST_VISITS, max(1, common_size(visits_P[visits_P > 1])))
        right = table.correct[rows] == 1
        answer = table.answer_R[rows]
        kinds = int(answer.max(initial=0)) + 1
        kind, index = np.unique((problem * kinds + answer)[answer >= 0], return_inverse=True)
        first_seen = np.full(len(kind), width)
        np.minimum.at(first_seen, index, visit[answer >= 0])
        return cls(
            prompt_P,
            visits_P,
            _totals(problem, visit, len(prompt_P), width),
            _totals(problem[right], visit[right], len(prompt_P), width) > 0,
            _totals(kind // kinds, first_seen, len(prompt_P), width),
        )


def _totals(problem: np.ndarray, visit: np.ndarray, n: int, width: int) -> np.ndarray:
    """How many things happened to each problem up to each visit, (P, T)."""
    inside = visit < width
    counted = np.bincount(problem[inside] * width + visit[inside], minlength=n * width)
    return np.cumsum(counted.reshape(n, width), axis=1)


def expected_solved(base: PromptCounts, place_P: np.ndarray, k_P: np.ndarray) -> np.ndarray:
    """pass@k of the base model on some of its problems, with a k of its own for each."""
    solved_P = np.empty(len(place_P))
    for k in np.unique(k_P):
        same = k_P == k
        solved_P[same] = 1 - missed_share(base.correct_P[place_P[same]], base.total_P[place_P[same]], int(k))
    return solved_P


def expected_distinct(base: PromptCounts, place_P: np.ndarray, k_P: np.ndarray) -> np.ndarray:
    """Distinct answers expected in k samples of the base model, with a k of its own for each problem.

    A sample without a readable answer counts as drawn, as it does in the run.
    """
    kinds_P = np.diff(base.offsets)[place_P]
    owner = np.repeat(np.arange(len(place_P)), kinds_P)
    inside = np.arange(len(owner)) - np.repeat(np.cumsum(kinds_P) - kinds_P, kinds_P)
    count = base.kind_count[base.offsets[place_P][owner] + inside]
    seen = np.empty(len(owner))
    for k in np.unique(k_P):
        same = k_P[owner] == k
        seen[same] = 1 - missed_share(count[same], base.total_P[place_P][owner[same]], int(k))
    return np.bincount(owner, weights=seen, minlength=len(place_P))


def estimate_transfer(evidence: Evidence, *, baseline: Evidence | None, options: Options) -> list[Estimate]:
    """Problems ever solved and distinct answers after each doubling of the visits, against the baseline's expectation."""
    if baseline is None:
        return [Estimate("transfer_gap", None, missing="a baseline: samples of the base model on the same prompt ids")]
    for who, table in (("", evidence.answers), ("for the baseline: ", baseline.answers)):
        if not table.has("correct"):
            return [Estimate("transfer_gap", None, missing=who + VERDICTS)]
    run, against = judged(evidence.answers), judged(baseline.answers)
    estimates: list[Estimate] = []
    for at, rows in conditions(run):
        part = run.take(rows)
        base, missing, unlike = baseline_for(condition_of(part), against)
        if base is None:
            estimates.append(Estimate("transfer_gap", None, at=at, missing=missing))
        else:
            estimates += _compare(part, base, at, unlike)
    return estimates


def _compare(run: AnswerTable, base: Window, at: Mapping[str, Any], unlike: str) -> list[Estimate]:
    visits = Visits.of(run)
    if not (visits.visits_P > 1).any():
        return [Estimate("transfer_gap", None, at=at, missing=STEPS)]
    place = {name: i for i, name in enumerate(base.problems())}
    found_P = np.asarray([place.get(run.names["prompt_id"].texts[code], -1) for code in visits.prompt_P])
    # A visit can be compared while the base model has as many samples as the run has drawn.
    samples_P = np.where(found_P >= 0, base.counts.total_P[found_P], 0)
    width = visits.drawn_PT.shape[1]
    comparable_P = ((visits.drawn_PT <= samples_P[:, None]) & (np.arange(width) < visits.visits_P[:, None])).sum(axis=1)
    most = common_size(np.where(comparable_P > 1, comparable_P, 0))
    if most < 2:
        return [Estimate("transfer_gap", None, at=at, missing=_needed(visits, samples_P))]
    kept = np.flatnonzero(comparable_P >= most)
    estimates: list[Estimate] = []
    for t in sorted({2**i for i in range(most.bit_length())} | {most}):
        estimates += _after(t, visits, kept, base.counts, found_P[kept], at, last=t == most)
    return [replace(e, how=e.how + unlike) for e in estimates]


def _needed(visits: Visits, samples_P: np.ndarray) -> str:
    two = visits.drawn_PT[visits.visits_P > 1, 1]
    return (
        f"a baseline with ≥ {int(np.median(two))} judged samples (two visits) of the same prompt ids; "
        f"it shares {int((samples_P > 0).sum())} of {many(len(samples_P), 'problem')}"
    )


def _after(
    t: int,
    visits: Visits,
    kept: np.ndarray,
    base: PromptCounts,
    place_P: np.ndarray,
    at: Mapping[str, Any],
    *,
    last: bool,
) -> list[Estimate]:
    """The estimates after t visits, on the problems that were compared up to the last."""
    k_P = visits.drawn_PT[kept, t - 1]
    solved_P, distinct_P = visits.solved_PT[kept, t - 1], visits.distinct_PT[kept, t - 1].astype(float)
    base_solved_P, base_distinct_P = expected_solved(base, place_P, k_P), expected_distinct(base, place_P, k_P)
    at = dict(at) | {"visits": t, "k": int(np.median(k_P))}
    estimates = _both("ever_solved", solved_P.astype(float), base_solved_P, at | {"problems": "all"}, bounds=(0, 1))
    # Given that neither solved a problem, both drew wrong answers only, so equal policies give equal expectations.
    unsolved = ~solved_P & (base.correct_P[place_P] == 0)
    for problems, which, gap in (
        ("unsolved", unsolved, "transfer_gap"),
        ("all", np.full(len(kept), True), "transfer_gap_all"),
    ):
        where = at | {"problems": problems}
        mine, theirs = distinct_P[which], base_distinct_P[which]
        if theirs.sum() > 0:
            estimates += _both("ever_distinct", mine, theirs, where)
            estimates += [_gap(gap, mine, theirs, where)] if last else []
        elif last:
            estimates.append(Estimate(gap, None, n=0, at=where, missing=f"problems {problems} by both, with answers"))
    return estimates


_HOW = {
    "ever_solved": "share of problems solved at least once so far; baseline: mean pass@k",
    "ever_distinct": "mean number of distinct answers so far; baseline: Σ_o [1 − C(N−c,k)/C(N,k)]",
}


def _both(
    name: str, run_P: np.ndarray, base_P: np.ndarray, at: Mapping[str, Any], bounds: tuple[float, float] | None = None
) -> list[Estimate]:
    return [
        _estimate(name, mean_of_prompts(run_P, bounds=bounds), dict(at) | {"arm": "run"}, _HOW[name]),
        _estimate(name, mean_of_prompts(base_P, bounds=bounds), dict(at) | {"arm": "baseline"}, _HOW[name]),
        _estimate(
            f"{name}_vs_baseline", paired_difference(run_P, base_P), dict(at) | {"against": "baseline"}, _HOW[name]
        ),
    ]


def _gap(name: str, run_P: np.ndarray, base_P: np.ndarray, at: Mapping[str, Any]) -> Estimate:
    found = relative_difference(run_P, base_P, paired_difference(run_P, base_P))
    how = "Σ distinct answers of the run / Σ of those expected of as many baseline samples − 1"
    return _estimate(name, found, dict(at) | {"against": "baseline"}, how)


def _estimate(name: str, found: Interval, at: Mapping[str, Any], how: str) -> Estimate:
    return Estimate(name, found.value, found.low, found.high, found.n, at, f"{how}; {found.how}")
