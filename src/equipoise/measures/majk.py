"""maj@k: how often the vote of k completions is right, exactly, and how often the vote is what goes wrong."""

from __future__ import annotations

import numpy as np

from equipoise.base import Estimate
from equipoise.measures.answers import AnswerTable
from equipoise.measures.arms import Arm, Spread, Window, arms_of, summarise, unmatched
from equipoise.measures.evidence import Evidence, Options
from equipoise.measures.majority import full_vote_share, majority_share
from equipoise.measures.passk import VERDICTS
from equipoise.measures.prompts import PromptCounts
from equipoise.measures.subsets import check_ks, default_ks

ANSWERS = "answers (column answer, or completions that state one)"


def maj_at_k_of(counts: PromptCounts, k: int) -> np.ndarray:
    """maj@k of every problem, nan where fewer than k were drawn. The counts are of judged rollouts only."""
    return majority_share(counts.kind_count, counts.kind_correct / counts.kind_count, counts.offsets, counts.total_P, k)


def vote_fails_of(counts: PromptCounts) -> np.ndarray:
    """The chance that the vote of all of a problem's rollouts is wrong although one of them is right; 0 where none is."""
    right_P = full_vote_share(counts.kind_count, counts.kind_correct / counts.kind_count, counts.offsets)
    return np.where(counts.correct_P > 0, 1 - right_P, 0.0)


def estimate_majk(evidence: Evidence, *, baseline: Evidence | None, options: Options) -> list[Estimate]:
    """maj@k per condition and against a baseline, and the share of problems where the vote loses a right answer."""
    asked = check_ks(options.k)
    missing = _missing(evidence.answers)
    if missing is not None:
        return [Estimate("maj@k", None, missing=missing)]
    lacking = None if baseline is None else _missing(baseline.answers)
    other = judged(baseline.answers) if baseline is not None and lacking is None else None
    estimates: list[Estimate] = []
    for arm in arms_of(judged(evidence.answers), other):
        note = _unheard(arm)
        for k in asked or default_ks(_drawn(arm.late)):
            estimates += summarise(_spread(k, note), arm if asked else arm.with_samples(k, _drawn))
        fails = Spread(
            "majority_wrong",
            lambda window: vote_fails_of(window.counts),
            f"1 where the vote of all samples is wrong though one is right, ties uniform{note}",
            "",
            "",
            (0, 1),
            compare=False,
        )
        estimates += [*summarise(fails, arm), *unmatched("maj@k", arm)]
    if lacking is not None:
        estimates.append(
            Estimate("maj@k_vs_baseline", None, at={"against": "baseline"}, missing=f"for the baseline: {lacking}")
        )
    return estimates


def _missing(table: AnswerTable) -> str | None:
    if not table.has("correct"):
        return VERDICTS
    return None if (np.isfinite(table.correct) & (table.answer_R >= 0)).any() else ANSWERS


def _drawn(window: Window) -> np.ndarray:
    return window.counts.total_P


def judged(table: AnswerTable) -> AnswerTable:
    """Without the rollouts whose checker failed: they are neither right nor wrong."""
    return table.take(np.flatnonzero(np.isfinite(table.correct)))


def _unheard(arm: Arm) -> str:
    """A note on right rollouts that cast no vote, because no answer could be read in them."""
    table = arm.late.table
    silent = int(((table.correct == 1) & (table.answer_R < 0)).sum())
    return f"; {silent} right samples had no readable answer and cast no vote" if silent else ""


def _spread(k: int, note: str) -> Spread:
    return Spread(
        f"maj@{k}",
        lambda window: maj_at_k_of(window.counts, k),
        f"share of k-subsets whose vote is right, ties uniform, abstentions cast no vote{note}",
        f"fewer than {k} judged samples",
        f"draw ≥ {k} samples per problem",
        (0, 1),
        at={"k": k},
    )
