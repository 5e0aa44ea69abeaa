"""Variance inflation: what a longer thinking budget does to accuracy and to the spread of answers.

Past some budget a reasoning model's answers oscillate (https://arxiv.org/abs/2506.04210). Axes: P problems, B budgets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from equipoise.base import Estimate
from equipoise.measures.answers import AnswerTable
from equipoise.measures.evidence import Evidence, Options
from equipoise.measures.intervals import Interval, mean_of_prompts, paired_difference
from equipoise.measures.majk import maj_at_k_of
from equipoise.measures.prompts import conditions, late_rows
from equipoise.measures.search_steps import estimate_search_steps
from equipoise.measures.subsets import common_size
from equipoise.measures.sweeps import Sweep, count_flips, sweep_budgets

MIN_BUDGETS = 3  # fewer cannot show an optimum inside
DRAWS = 1000  # resamples of the problems for the best budget
ROUNDING = 1e-12
SURE = 0.975  # share of them with one leader from which the best budget counts as known
MOST_WEIGHTS = 2_000_000  # held at once


@dataclass(frozen=True, slots=True)
class Picked:
    """Which budget is best, as an index: for each problem by the half of the problems that it is not in, and in resamples of all.

    Picked and measured on the same problems, the best of several equal budgets would beat the largest by chance alone,
    and a flat curve would look like overthinking.
    """

    best_P: np.ndarray
    leaders_D: np.ndarray

    @property
    def sure(self) -> bool:
        return int(np.bincount(self.leaders_D).max()) >= SURE * len(self.leaders_D)


def pick_budgets(sweep: Sweep, *, seed: int) -> Picked:
    rng, n = np.random.default_rng(seed), len(sweep.prompt_P)
    half_P = rng.permutation(n) % 2
    best = [int(np.argmax(sweep.accuracy_PB[half_P != half].mean(axis=0))) for half in (0, 1)]
    block = max(1, min(DRAWS, MOST_WEIGHTS // n))
    weights = (rng.multinomial(n, np.full(n, 1 / n), size=block) for _ in range(0, DRAWS, block))
    leaders = np.concatenate([np.argmax(weight @ sweep.accuracy_PB, axis=1) for weight in weights])
    return Picked(np.asarray(best)[half_P], leaders)


def against_best(picked: Picked, difference: Callable[[int], np.ndarray]) -> Interval | None:
    """Mean over problems of `difference(best)`, a (P,) array against the budget with that index; cross-fitted.

    The interval is for the budgets that were picked, not for the one that is best in truth. Where it is not sure which that
    is, the halves' errors are correlated, since each half's data also chose the other's budget: by 1/π for two equal budgets
    and less for more of them. Problems where the difference is nan are left out; None where it is nan in all.
    """
    difference_P = np.full(len(picked.best_P), np.nan)
    for best in np.unique(picked.best_P).tolist():
        mine_P = picked.best_P == best
        difference_P[mine_P] = difference(best)[mine_P]
    known = difference_P[np.isfinite(difference_P)]
    if not len(known):
        return None
    found = paired_difference(known, np.zeros(len(known)))
    if found.low is None or found.high is None or picked.sure:
        return found
    wider = (1 + 1 / np.pi) ** 0.5
    low, high = (float(found.value + wider * (bound - found.value)) for bound in (found.low, found.high))
    return replace(
        found, low=low, high=high, how=f"{found.how} widened by 15 %, as it is not sure which budget is best"
    )


def overthinking_loss(sweep: Sweep, picked: Picked) -> Interval:
    """Accuracy at the largest budget minus that at the best one: min_b D_b, D_b the difference from budget b, D = 0 for the largest.

    The value is cross-fitted. So is the upper bound: whichever budget was picked, its D is no smaller than the minimum. The
    lower bound is the lowest of those of all D_b: the one of the truly best budget holds in 97.5 % of the cases, and the
    lowest is no higher. The cross-fitted one alone is too high where two budgets are nearly as good and the wrong one is picked.
    """
    accuracy = sweep.accuracy_PB
    found = against_best(picked, lambda best: accuracy[:, -1] - accuracy[:, best])
    assert found is not None
    largest = bool((picked.best_P == accuracy.shape[1] - 1).all())  # the difference is then 0 in every problem
    high = 0.0 if largest else found.high
    if high is None:
        return found
    each = [mean_of_prompts(accuracy[:, -1] - accuracy[:, b], bounds=None) for b in range(accuracy.shape[1] - 1)]
    lows = [one.value if one.low is None else one.low for one in (*each, found)]
    how = "mean over prompts; upper bound of the cross-fitted t interval, lowest lower bound against any budget"
    return Interval(found.value, min(0.0, *lows), high, found.n, how)


def best_budget(sweep: Sweep, picked: Picked) -> Interval:
    """The budget of the highest mean accuracy (the smaller of a tie), with its range when the problems are drawn again."""
    low, high = np.quantile(sweep.budgets_B[picked.leaders_D], [0.025, 0.975], method="inverted_cdf")
    best = sweep.budgets_B[np.argmax(sweep.accuracy_PB.mean(axis=0))]
    how = "highest mean accuracy; range of the leader over resampled problems"
    return Interval(float(best), float(low), float(high), len(sweep.prompt_P), how)


def parallel_gain(sweep: Sweep, best: int) -> np.ndarray:
    """Per problem: maj@k at budget `best`, with the k samples that one of the largest budget pays for, minus one of those.

    k is at most what nine problems in ten have drawn; nan in a problem that has fewer. 0 where one is all it pays for.
    """
    k = max(1, min(int(sweep.tokens_B[-1] // sweep.tokens_B[best]), common_size(sweep.counts_B[best].total_P)))
    if best == len(sweep.budgets_B) - 1:
        return np.zeros(len(sweep.prompt_P))
    gain_P: np.ndarray = maj_at_k_of(sweep.counts_B[best], k) - sweep.accuracy_PB[:, -1]
    return np.where(np.abs(gain_P) < ROUNDING, 0.0, gain_P)


def net_flips(table: AnswerTable, sweep: Sweep, best: int) -> np.ndarray:
    """Per problem: share of samples that turn from right to wrong from budget `best` to the largest, minus the reverse."""
    found = count_flips(table, sweep.budgets_B[best], sweep.budgets_B[-1])
    values = np.full(len(sweep.prompt_P), np.nan)
    _, mine, theirs = np.intersect1d(sweep.prompt_P, found.prompt_P, return_indices=True)
    values[mine] = (found.right_to_wrong_P - found.wrong_to_right_P)[theirs]
    return values


def estimate_budget(evidence: Evidence, *, baseline: Evidence | None, options: Options) -> list[Estimate]:
    """Accuracy and spread at every budget, the best budget, what the largest one costs against it; then steps of search."""
    return _budgets(evidence.answers, baseline, options) + estimate_search_steps(evidence.answers, seed=options.seed)


def _budgets(table: AnswerTable, baseline: Evidence | None, options: Options) -> list[Estimate]:
    needed = "rollouts of the same problems at three or more thinking budgets (column budget)"
    if not table.has("budget"):
        return [Estimate("overthinking_loss", None, missing=needed)]
    if not table.has("correct"):
        return [Estimate("overthinking_loss", None, missing="verdicts (column correct, or --solved-at for rewards)")]
    swept = table.take(np.isfinite(table.numbers["budget"]))  # a sweep may have no steps while training has
    late = swept.take(late_rows(swept))
    results = []
    for at, part in without_budget(late):
        sweep = sweep_budgets(part)
        if len(sweep.prompt_P) < 2:
            results.append(Estimate("overthinking_loss", None, at=at, missing=needed))
            continue
        for b in range(len(sweep.budgets_B)):
            results += _at_budget(sweep, b, at)
        results += _flip_estimates(part, sweep, at)
        if baseline is not None:
            results += _against_baseline(part, sweep, baseline.answers, at)
        if len(sweep.budgets_B) < MIN_BUDGETS:
            found = f"{needed}; found {len(sweep.budgets_B)}"
            results.append(Estimate("overthinking_loss", None, at=at, missing=found))
        else:
            results += _against_largest(part, sweep, at, options.seed)
    return results


def without_budget(table: AnswerTable) -> list[tuple[dict[str, Any], AnswerTable]]:
    """The table split by every condition but the budget, which is what a sweep varies."""
    unswept = replace(table, numbers=table.numbers | {"budget": np.full(len(table), np.nan)})
    return [(at, table.take(rows)) for at, rows in conditions(unswept)]


def _at_budget(sweep: Sweep, b: int, at: dict[str, Any]) -> list[Estimate]:
    where = at | {"budget": float(sweep.budgets_B[b])}
    accuracy = mean_of_prompts(sweep.accuracy_PB[:, b], bounds=(0, 1))
    results = [accuracy.named("accuracy", where | {"tokens": float(sweep.tokens_B[b])})]
    disagreement, entropy = (each[np.isfinite(each[:, b]), b] for each in (sweep.disagreement_PB, sweep.entropy_PB))
    if len(disagreement):
        results.append(mean_of_prompts(disagreement, bounds=(0, 1)).named("disagreement", where))
    else:
        missing = "two or more answers per problem and budget (column answer)"
        results.append(Estimate("disagreement", None, at=where, missing=missing))
    if len(entropy):
        how = (
            "mean over problems of the plug-in entropy of the answers, nats, plus Miller–Madow's (K − 1)/2n; "
            "no interval: with few samples it stays biased downwards"
        )
        results.append(Estimate("answer_entropy", float(entropy.mean()), n=len(entropy), at=where, how=how))
    return results


def _flip_estimates(table: AnswerTable, sweep: Sweep, at: dict[str, Any]) -> list[Estimate]:
    results = []
    for smaller, larger in pairwise(sweep.budgets_B):
        found = count_flips(table, smaller, larger)
        where = at | {"from": float(smaller), "budget": float(larger)}
        for name, share in (("right_to_wrong", found.right_to_wrong_P), ("wrong_to_right", found.wrong_to_right_P)):
            if len(share):
                results.append(mean_of_prompts(share, bounds=(0, 1)).named(name, where))
    return results


def _against_baseline(part: AnswerTable, sweep: Sweep, baseline: AnswerTable, at: dict[str, Any]) -> list[Estimate]:
    """The accuracy at each budget minus the baseline's at the same one, on the problems that both have."""
    if not baseline.has("budget") or not baseline.has("correct"):
        return []
    parts = without_budget(baseline.take(late_rows(baseline)))
    if len(parts) != 1:
        missing = f"a baseline of one condition besides the budget: this one has {len(parts)}"
        return [Estimate("accuracy_vs_baseline", None, at=at | {"against": "baseline"}, missing=missing)]
    base = sweep_budgets(parts[0][1])
    theirs = {baseline.names["prompt_id"].texts[code]: place for place, code in enumerate(base.prompt_P)}
    names = [part.names["prompt_id"].texts[code] for code in sweep.prompt_P]
    pairs = np.asarray([(i, theirs[name]) for i, name in enumerate(names) if name in theirs], np.int64).reshape(-1, 2)
    results = []
    for b, budget in enumerate(sweep.budgets_B):
        same = np.flatnonzero(base.budgets_B == budget)
        if len(same) and len(pairs):
            mine, other = sweep.accuracy_PB[pairs[:, 0], b], base.accuracy_PB[pairs[:, 1], same[0]]
            where = at | {"budget": float(budget), "against": "baseline"}
            results.append(paired_difference(mine, other, bounds=(0, 1)).named("accuracy_vs_baseline", where))
    return results


def _against_largest(table: AnswerTable, sweep: Sweep, at: dict[str, Any], seed: int) -> list[Estimate]:
    """What the largest budget does against the best one, and whether several short samples beat one long."""
    where = at | {"budget": float(sweep.budgets_B[-1]), "against": "best budget"}
    spread, picked = sweep.disagreement_PB, pick_budgets(sweep, seed=seed)
    found = {
        "overthinking_loss": overthinking_loss(sweep, picked),
        "disagreement_rise": against_best(picked, lambda best: spread[:, -1] - spread[:, best]),
        "net_flips": against_best(picked, lambda best: net_flips(table, sweep, best)),
        "parallel_gain": against_best(picked, lambda best: parallel_gain(sweep, best)) if table.has("answer") else None,
    }
    results = [best_budget(sweep, picked).named("best_budget", at)]
    for name, interval in found.items():
        how, missing = _AGAINST_LARGEST[name]
        if interval is None:
            results.append(Estimate(name, None, at=where, missing=missing))
        else:
            note = "against the budget that is best on the other half of the problems"
            results.append(replace(interval, how=f"{how}; {interval.how}; {note}").named(name, where))
    return results


_AGAINST_LARGEST = {
    "overthinking_loss": ("accuracy at the largest budget minus that at the best", "verdicts"),
    "disagreement_rise": (
        "P(two samples disagree), largest minus best",
        "two or more answers per problem and budget (column answer)",
    ),
    "net_flips": (
        "right→wrong minus wrong→right from the best to the largest budget, samples matched by their index",
        "the same sample indices at every budget (column sample_index)",
    ),
    "parallel_gain": (
        "majority of as many best-budget samples as one of the largest budget pays for (at most those drawn), minus that one",
        "answers (column answer, or completions that state one)",
    ),
}
