"""How long right and wrong rollouts are, and what the length limit cuts off. Axes: R judged rollouts, P problems."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from equipoise.base import Estimate
from equipoise.measures.answers import AnswerTable
from equipoise.measures.arms import Window, arms_of
from equipoise.measures.evidence import Evidence, Options
from equipoise.measures.health import cut_off
from equipoise.measures.intervals import Interval, paired_difference, ratio_of_sums
from equipoise.measures.majk import judged
from equipoise.measures.means import problem_means
from equipoise.measures.passk import VERDICTS

BINS = 24
WIDE = 20  # longest over shortest from which the bins grow by a factor instead of by a number of tokens


def length_edges(n_tokens_R: np.ndarray, *, bins: int = BINS) -> np.ndarray:
    """Whole edges of [low, high) that hold all lengths: evenly spaced, or by a factor where lengths span a wide range."""
    low, high = float(n_tokens_R.min()), float(n_tokens_R.max()) + 1
    spaced = np.geomspace(low, high, bins + 1) if low > 0 and high / low > WIDE else np.linspace(low, high, bins + 1)
    return np.unique([*np.floor(spaced[:-1]).astype(np.int64).tolist(), int(np.ceil(high))])


def estimate_lengths(evidence: Evidence, *, baseline: Evidence | None, options: Options) -> list[Estimate]:
    """The histogram of lengths and their mean, of right and of wrong rollouts; how often cut and finished ones are right."""
    table = evidence.answers
    if not table.has("correct"):
        return [Estimate("length_share", None, missing=VERDICTS)]
    counted, ended = table.has("n_tokens"), table.has("finish_reason")
    results: list[Estimate] = []
    for arm in arms_of(judged(table), None):
        results += [*_histogram(arm.late), *_means(arm.late)] if counted else []
        results += _cut(arm.late) if ended else []
    if not counted:
        results.append(Estimate("length_share", None, missing="the number of tokens of a rollout (column n_tokens)"))
    if not ended:
        results.append(Estimate("truncated", None, missing="why a rollout ended (column finish_reason)"))
    return results


def _kinds(table: AnswerTable) -> Iterator[tuple[str, np.ndarray]]:
    known = np.isfinite(table.numbers["n_tokens"]) & (table.prompt_R >= 0)
    for verdict, right in (("right", 1), ("wrong", 0)):
        rows = np.flatnonzero(known & (table.correct == right))
        if len(rows):
            yield verdict, rows


def _histogram(window: Window) -> Iterator[Estimate]:
    table = window.table
    n_tokens = table.numbers["n_tokens"]
    kinds = dict(_kinds(table))
    if not kinds:
        return
    edges = length_edges(n_tokens[np.concatenate(list(kinds.values()))])
    bins = len(edges) - 1
    for verdict, rows in kinds.items():
        problem, place_R = np.unique(table.prompt_R[rows], return_inverse=True)
        bin_R = np.searchsorted(edges, n_tokens[rows], side="right") - 1
        count_PB = np.bincount(place_R * bins + bin_R, minlength=len(problem) * bins).reshape(-1, bins)
        for number, (low, high) in enumerate(pairwise(edges.tolist())):
            count_P = count_PB[:, number]
            found = ratio_of_sums(count_P, count_PB.sum(axis=1), np.arange(len(problem)), bounds=(0, 1))
            where = {"verdict": verdict, "tokens": [low, high], "count": int(count_P.sum())}
            how = f"share of the {verdict} rollouts from the first to below the second number of tokens"
            yield _named("length_share", found, dict(window.at) | where, how)


def _means(window: Window) -> Iterator[Estimate]:
    table, at = window.table, dict(window.at)
    n_tokens = table.numbers["n_tokens"]
    of_kind: dict[str, np.ndarray] = {}
    for verdict, rows in _kinds(table):
        found = ratio_of_sums(n_tokens[rows], np.ones(len(rows)), table.prompt_R[rows])
        yield _named(f"length_{verdict}", found, at, f"mean tokens of the {verdict} rollouts, all problems pooled")
        of_kind[verdict] = problem_means(n_tokens[rows], table.prompt_R[rows], window.counts.prompt_P)
    if len(of_kind) == 2:
        both = np.isfinite(of_kind["right"]) & np.isfinite(of_kind["wrong"])
        if both.any():
            found = paired_difference(of_kind["wrong"][both], of_kind["right"][both])
            how = "tokens of a problem's wrong rollouts minus those of its right ones, problems with both kinds"
            yield _named("length_wrong_minus_right", found, at, how)


def _cut(window: Window) -> Iterator[Estimate]:
    table, at = window.table, dict(window.at)
    cut_R = cut_off(table)
    known = np.isfinite(cut_R) & (table.prompt_R >= 0)
    for name, rows, value_R, how in (
        ("truncated", known, cut_R, "share of rollouts cut at the length limit"),
        ("accuracy_truncated", known & (cut_R == 1), table.correct, "share of the cut rollouts that are right"),
        ("accuracy_finished", known & (cut_R == 0), table.correct, "share of the finished rollouts that are right"),
    ):
        if rows.any():
            found = ratio_of_sums(value_R[rows], np.ones(int(rows.sum())), table.prompt_R[rows], bounds=(0, 1))
            yield _named(name, found, at, how)


def _named(name: str, found: Interval, at: dict[str, Any], how: str) -> Estimate:
    return Estimate(name, found.value, found.low, found.high, found.n, at, f"{how}; {found.how}")
