"""Forking tokens: the fifth of the tokens with the highest entropy, where a completion can still go different ways.

They carry most of the entropy (https://arxiv.org/abs/2506.01939). The fifth is taken anew in each window, so it compares
the tail of one window's entropies with the tail of another's: when routine tokens sharpen and forks keep their entropy, a
model has narrowed without losing its choices; when forks lose theirs too, it has collapsed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from equipoise.base import Estimate
from equipoise.measures.arms import Arm, arms_of, unmatched
from equipoise.measures.cells import total
from equipoise.measures.entropy import quantile_estimate
from equipoise.measures.evidence import Evidence, Options
from equipoise.measures.excess import curve_of, excess_at, top_mean_of
from equipoise.measures.histograms import Histogram, align, condition_key
from equipoise.measures.sums import Sums
from equipoise.measures.token_arms import Statistic, measured, problems_of, provenance, summarise, tokens_of
from equipoise.measures.tokens import EDGES

SHARE = 0.2
SHARE_PROMPTS = 100  # with 50 the interval of the share holds the truth 91 % of the time
TOKEN_TYPES = 20  # shown
MIN_COUNT, MIN_SHARE = 20, 1 / 50_000  # a token type is shown from this many occurrences and this share of all tokens
MISSING = "token entropies (column entropies; a capture in the trainer writes them)"

Part = Callable[[Any, Any, Any], Any]  # of (fork mean, Σ H, tokens)


def estimate_forks(evidence: Evidence, *, baseline: Evidence | None, options: Options) -> list[Estimate]:
    """Entropy of forking and of routine tokens, the forks' share of all entropy, how these move, and which tokens fork."""
    mine = measured(evidence, "entropy_tokens")
    if mine is None:
        return [Estimate("fork_entropy", None, missing=MISSING)]
    theirs = None if baseline is None else measured(baseline, "entropy_tokens")
    estimates: list[Estimate] = []
    for arm in arms_of(mine.answers, None if theirs is None else theirs.answers):
        arm = align(arm, mine)
        for statistic in _statistics(mine):
            estimates += summarise(statistic, arm, mine, theirs)
        estimates += unmatched("fork_entropy", arm)
        estimates += _thresholds(mine, arm)
        estimates += _token_types(mine, arm)
    if baseline is not None and theirs is None:
        missing = f"for the baseline: {MISSING}"
        estimates.append(Estimate("fork_entropy_vs_baseline", None, at={"against": "baseline"}, missing=missing))
    return estimates


def _statistics(evidence: Evidence) -> list[Statistic]:
    source = provenance(evidence, "entropies")
    return [
        Statistic("fork_entropy", _part(lambda fork, total, n: fork), f"mean over the {SHARE:.0%} of tokens with the highest entropy; {source}"),
        Statistic("routine_entropy", _part(lambda fork, total, n: (total / n - SHARE * fork) / (1 - SHARE)), f"mean over the other tokens; {source}"),
        Statistic("fork_share", _part(lambda fork, total, n: SHARE * fork * n / total), f"share of Σ H in the {SHARE:.0%} of tokens with the highest entropy; {source}", positive=False, least=SHARE_PROMPTS),
    ]  # fmt: skip


def _part(form: Part) -> Callable[[Evidence, np.ndarray], Sums | None]:
    """A function of the fork mean, Σ H and the number of tokens, each problem's part in it taken at the fixed threshold.

    The value is exact where the rollouts are whole cells of the token table, else (some of its problems only, when the
    baseline lacks the others) it comes from the excess curve.
    """

    def of(evidence: Evidence, rows: np.ndarray) -> Sums | None:
        table = tokens_of(evidence)
        tokens_R, entropy_R = table.rows["entropy_tokens"][rows], table.rows["entropy"][rows]
        if not entropy_R.sum() > 0:
            return None  # no token has any entropy: no fifth of them stands out
        curve_RK = curve_of(table, rows)
        histogram = Histogram.of(evidence, rows)
        if histogram is None:
            threshold, exact = top_mean_of(curve_RK, float(tokens_R.sum()), SHARE)
        else:
            threshold, exact = float(histogram.quantiles(np.asarray([1 - SHARE]))[0]), histogram.top_mean(SHARE)
        excess_R = excess_at(curve_RK, threshold)
        shift = exact - (threshold + excess_R.sum() / (SHARE * tokens_R.sum()))
        return Sums(
            lambda excess, total, n: form(threshold + excess / (SHARE * n) + shift, total, n),
            (excess_R, entropy_R, tokens_R),
            problems_of(evidence.answers, rows),
            "" if histogram is not None else f"; from the excess curve at {len(EDGES)} edges, within half a percent",
        )

    return of


def _thresholds(evidence: Evidence, arm: Arm) -> list[Estimate]:
    """The entropy from which a token belongs to the top fifth."""
    estimates = []
    for window in (arm.late, arm.early):
        histogram = None if window is None else Histogram.of(evidence, window.rows)
        if histogram is not None and window is not None:
            estimates.append(
                quantile_estimate("fork_threshold", 1 - SHARE, evidence, window.rows, histogram, window.at)
            )
    return estimates


def _token_types(evidence: Evidence, arm: Arm) -> list[Estimate]:
    """The token types with the highest mean entropy, their share of all entropy, and their change over the run."""
    table = tokens_of(evidence)
    cells = list(table.token_types.of(condition_key(evidence.answers, int(arm.late.rows[0]))))
    if not cells:
        return []
    drawn_under = {} if table.token_types.pooled else arm.late.at
    where = {name: value for name, value in drawn_under.items() if name not in ("window", "step")}
    note = f"n counts tokens; {provenance(evidence, 'entropies')}; no interval: token types are not counted by problem"
    count_V, entropy_V = total([array for _, array in cells])
    stepped = [(first, array) for first, array in cells if first is not None]
    estimates: list[Estimate] = []
    for token in _top_types(count_V, entropy_V):
        n, text = int(count_V[token]), None if table.vocab is None else table.vocab.get(token)
        at = where | {"token": token if text is None else text, "id": token, "count": n}
        mean, share = float(entropy_V[token] / n), float(entropy_V[token] / entropy_V.sum())
        estimates += [
            Estimate("fork_token", mean, n=n, at=at, how=f"mean entropy of a token type over all steps; {note}"),
            Estimate("fork_token_share", share, n=n, at=at, how=f"share of Σ H over all steps; {note}"),
        ]
        if len(stepped) < 2:
            continue
        early, late = _mean_in(stepped[0][1], token), _mean_in(stepped[-1][1], token)
        if early is not None and late is not None:
            when = at | {
                "window": "change",
                "buckets": [stepped[0][0], stepped[-1][0]],
                "width": table.token_types.width,
            }
            how = f"mean entropy of a token type in the last bucket of steps less that in the first; {note}"
            estimates.append(Estimate("fork_token_change", late - early, n=n, at=when, how=how))
    return estimates


def _top_types(count_V: np.ndarray, entropy_V: np.ndarray) -> list[int]:
    """Token ids by mean entropy, the highest first, among those that are not rare."""
    frequent = np.flatnonzero(count_V >= max(MIN_COUNT, MIN_SHARE * count_V.sum()))
    order = np.argsort(-entropy_V[frequent] / count_V[frequent], kind="stable")[:TOKEN_TYPES]
    return [int(token) for token in frequent[order]]


def _mean_in(cell: np.ndarray, token: int) -> float | None:
    """Mean entropy of a token type in one cell; None where it does not occur."""
    if token >= cell.shape[1] or cell[0, token] == 0:
        return None
    return float(cell[1, token] / cell[0, token])
