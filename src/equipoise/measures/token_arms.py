"""A statistic of tokens in a run's last and first steps, its change, and its difference from a baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from equipoise.base import Estimate
from equipoise.measures.answers import AnswerTable
from equipoise.measures.arms import Arm, Window
from equipoise.measures.evidence import Evidence
from equipoise.measures.sums import Scale, Sums, difference, growth, mean_of
from equipoise.measures.tokens import TokenTable


@dataclass(frozen=True, slots=True)
class Statistic:
    """`of` gives the sums of some rollouts of an evidence; None: not measured in them."""

    name: str
    of: Callable[[Evidence, np.ndarray], Sums | None]
    how: str  # the estimator, in words
    positive: bool = True  # its interval is on the log scale, and changes are also given as a share
    moves: bool = True  # changes and differences are given
    no_interval: str | None = None  # why none is shown
    least: int = 2  # problems from which the interval of a window's value covers; changes need no more than two
    at: Mapping[str, Any] = field(default_factory=dict)


def measured(evidence: Evidence, counted: str) -> Evidence | None:
    """The evidence of the rollouts with tokens behind this count, so that windows and conditions are theirs; None: none.

    A capture may keep the tokens of some steps or of a sample of the rollouts only.
    """
    if evidence.tokens is None or not evidence.tokens.has(counted):
        return None
    rows = np.flatnonzero(evidence.tokens.rows[counted])
    if len(rows) == len(evidence.tokens):
        return evidence
    return replace(evidence, answers=evidence.answers.take(rows), tokens=evidence.tokens.take(rows), texts=None)


def summarise(statistic: Statistic, arm: Arm, evidence: Evidence, baseline: Evidence | None) -> list[Estimate]:
    """The statistic in each window of an arm and, where asked for, how it moved."""
    late = statistic.of(evidence, arm.late.rows)
    if late is None:
        return []
    scale: Scale = "log" if statistic.positive else "plain"
    estimates = [_estimate(statistic, statistic.name, late, scale, arm.late.at)]
    early = None if arm.early is None else statistic.of(evidence, arm.early.rows)
    if early is not None and arm.early is not None:
        estimates.append(_estimate(statistic, statistic.name, early, scale, arm.early.at))
        if statistic.moves:
            at = dict(arm.late.at) | {"window": "change", "step": [arm.early.at["step"][0], arm.late.at["step"][1]]}
            estimates += _moved(statistic, f"{statistic.name}_change", late, early, at)
    if statistic.moves and baseline is not None and arm.base is not None:
        mine, theirs = (
            statistic.of(evidence, rows_on(evidence.answers, arm.late, problems(arm))),
            statistic.of(baseline, rows_on(baseline.answers, arm.base, problems(arm))),
        )
        if mine is not None and theirs is not None:
            theirs = replace(theirs, problem_R=_translated(baseline.answers, evidence.answers, theirs.problem_R))
            at = dict(arm.late.at) | {"against": "baseline"}
            estimates += _moved(statistic, f"{statistic.name}_vs_baseline", mine, theirs, at, arm.unlike)
    return estimates


def _moved(
    statistic: Statistic, name: str, to: Sums, start: Sums, at: dict[str, Any], note: str = ""
) -> list[Estimate]:
    estimates = [_estimate(statistic, name, difference(to, start), "plain", at, note)]
    if statistic.positive and start.value > 0:
        estimates.append(_estimate(statistic, f"{name}_rel", growth(to, start), "growth", at, note))
    return estimates


def _estimate(
    statistic: Statistic, name: str, sums: Sums, scale: Scale, at: Mapping[str, Any], note: str = ""
) -> Estimate:
    at, note = dict(at) | dict(statistic.at), sums.note + note
    if not np.isfinite(sums.value):
        missing = (
            f"values that a float can hold: {statistic.name} overflows (one token is all but impossible to one policy)"
        )
        return Estimate(name, None, at=at, how=statistic.how, missing=missing)
    if sums.value <= {"log": 0, "growth": -1, "plain": -np.inf}[scale]:
        scale = "plain"  # a value of 0 has no logarithm
    if statistic.no_interval is not None:
        n = len(np.unique(sums.problem_R))
        return Estimate(
            name, sums.value, n=n, at=at, how=f"{statistic.how}; no interval: {statistic.no_interval}{note}"
        )
    found = sums.interval(scale)
    if name == statistic.name and found.n < statistic.least:
        how = f"{statistic.how}; no interval: it covers from {statistic.least} prompts on{note}"
        return Estimate(name, found.value, n=found.n, at=at, how=how)
    return Estimate(name, found.value, found.low, found.high, found.n, at, f"{statistic.how}; {found.how}{note}")


def tokens_of(evidence: Evidence) -> TokenTable:
    """The token table of evidence that `measured` has let through."""
    assert evidence.tokens is not None
    return evidence.tokens


def mean_per_token(total: str, count: str) -> Callable[[Evidence, np.ndarray], Sums | None]:
    """Σ total / Σ count of two of the token table's sums."""

    def of(evidence: Evidence, rows: np.ndarray) -> Sums | None:
        held = tokens_of(evidence).rows
        if count not in held:
            return None
        return mean_of(held[total][rows], held[count][rows], problems_of(evidence.answers, rows))

    return of


def provenance(evidence: Evidence, column: str) -> str:
    """How the source made a column, in words."""
    said = evidence.run.info.provenance.get(column)
    if isinstance(said, Mapping):
        said = ", ".join(f"{key} {value}" for key, value in said.items())
    return f"{column}: {said}" if said else f"{column}: provenance not stated"


def problems_of(table: AnswerTable, rows: np.ndarray) -> np.ndarray:
    """The problem of each rollout; a rollout without one is a problem of its own."""
    prompt_R = table.prompt_R[rows]
    found: np.ndarray = np.where(prompt_R >= 0, prompt_R, len(table.names["prompt_id"].texts) + rows)
    return found


def problems(arm: Arm) -> set[str]:
    """The problems that the arm and its baseline have in common."""
    if arm.against is None:
        return set()
    names = arm.late.problems()
    return {names[i] for i in arm.against[0]}


def rows_on(table: AnswerTable, window: Window, chosen: set[str]) -> np.ndarray:
    """The window's rollouts of some problems."""
    codes = [code for code, text in enumerate(table.names["prompt_id"].texts) if text in chosen]
    found: np.ndarray = window.rows[np.isin(table.prompt_R[window.rows], codes)]
    return found


def _translated(theirs: AnswerTable, mine: AnswerTable, problem_R: np.ndarray) -> np.ndarray:
    """Their codes of problems that both tables have, as mine."""
    code = {text: i for i, text in enumerate(mine.names["prompt_id"].texts)}
    table = np.asarray([code.get(text, -1) for text in theirs.names["prompt_id"].texts])
    found: np.ndarray = table[problem_R]
    return found
