"""Token entropy: its mean, quantiles, place in the completion, and planning tokens against the others.

    H_t = −Σ_v p_v ln p_v   in nats, at the temperature the source used; only tokens that the loss sees count

Means are over tokens, ΣH / Σn, as trainers log them. Where a run holds no token entropies but its trainer logged a mean, that
is given, labelled so; the two are never mixed in one number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from equipoise.base import Estimate
from equipoise.measures.arms import Arm, arms_of, unmatched
from equipoise.measures.evidence import Evidence, Options
from equipoise.measures.excess import count_above, curve_of
from equipoise.measures.frames import DECILES
from equipoise.measures.histograms import Histogram, align
from equipoise.measures.logged import logged_estimates
from equipoise.measures.logprobs import SOURCES
from equipoise.measures.prompts import step_windows
from equipoise.measures.sums import Sums, mean_of
from equipoise.measures.token_arms import (
    Statistic,
    mean_per_token,
    measured,
    problems_of,
    provenance,
    summarise,
    tokens_of,
)

QUANTILES = (0.5, 0.8, 0.95, 0.99)
MISSING = "token entropies (column entropies; a capture in the trainer writes them), or an entropy in the trainer's log"

Builder = Callable[[Evidence, np.ndarray], Sums | None]


def estimate_entropy(evidence: Evidence, *, baseline: Evidence | None, options: Options) -> list[Estimate]:
    """Mean entropy and its change, quantiles, by tenth of the completion, planning and execution tokens, surprisal."""
    estimates = _from_tokens(evidence, baseline)
    if not any(number.name == "entropy_change" for number in estimates):
        # A record of one step, or of none: the trainer's log may hold the curve.
        estimates += logged_estimates("entropy", evidence.metrics, source=f" ({provenance(evidence, 'entropy')})")
    if not estimates:
        estimates.append(Estimate("entropy", None, missing=MISSING))
    return estimates + _surprisal(evidence, baseline) + _semantic(evidence)


def _from_tokens(evidence: Evidence, baseline: Evidence | None) -> list[Estimate]:
    mine = measured(evidence, "entropy_tokens")
    theirs = None if baseline is None else measured(baseline, "entropy_tokens")
    if mine is None:
        return []
    estimates: list[Estimate] = []
    for arm in arms_of(mine.answers, None if theirs is None else theirs.answers):
        for statistic in _means(mine):
            estimates += summarise(statistic, arm, mine, theirs)
        estimates += unmatched("entropy", arm)
        estimates += _quantiles(mine, align(arm, mine))
    if baseline is not None and theirs is None:
        missing = "for the baseline: token entropies (column entropies)"
        estimates.append(Estimate("entropy_vs_baseline", None, at={"against": "baseline"}, missing=missing))
    return estimates


def _means(evidence: Evidence) -> list[Statistic]:
    source, rows = provenance(evidence, "entropies"), tokens_of(evidence).rows
    statistics = [
        Statistic("entropy", mean_per_token("entropy", "entropy_tokens"), f"mean over tokens, ΣH/Σn; {source}")
    ]
    if "planning_known" in rows and rows["planning_known"].any():
        sampled = f", a sample of 1 in {2**level}" if (level := tokens_of(evidence).planning_level) else ""
        how = f"mean over tokens {{}} strategic grams, in rollouts whose tokens spell their text{sampled}; {source}"
        planning = mean_per_token("planning_entropy", "planning_tokens")
        statistics.append(Statistic("entropy_planning", planning, how.format("inside")))
        statistics.append(Statistic("entropy_execution", _execution, how.format("outside")))
    how = f"mean over tokens of this tenth of the completion; {source}"
    return statistics + [
        Statistic("entropy_position", _at_position(d), how, moves=False, at={"position": d}) for d in range(DECILES)
    ]


def _execution(evidence: Evidence, rows: np.ndarray) -> Sums | None:
    held = tokens_of(evidence).rows
    rows = rows[held["planning_known"][rows]]
    entropy_R = held["entropy"][rows] - held["planning_entropy"][rows]
    tokens_R = held["entropy_tokens"][rows] - held["planning_tokens"][rows]
    return mean_of(entropy_R, tokens_R, problems_of(evidence.answers, rows))


def _at_position(d: int) -> Builder:
    def of(evidence: Evidence, rows: np.ndarray) -> Sums | None:
        held = tokens_of(evidence).rows
        entropy_R, tokens_R = held["position_entropy"][rows, d], held["position_tokens"][rows, d]
        return mean_of(entropy_R, tokens_R, problems_of(evidence.answers, rows))

    return of


def _quantiles(evidence: Evidence, arm: Arm) -> list[Estimate]:
    """Quantiles over tokens, where the window is made of whole cells of the token table."""
    estimates = []
    for window in (arm.late, arm.early):
        histogram = None if window is None else Histogram.of(evidence, window.rows)
        if histogram is not None and window is not None:
            estimates += [
                quantile_estimate(f"entropy_p{100 * q:g}", q, evidence, window.rows, histogram, window.at)
                for q in QUANTILES
            ]
    return estimates


def quantile_estimate(
    name: str, level: float, evidence: Evidence, rows: np.ndarray, histogram: Histogram, at: Mapping[str, Any]
) -> Estimate:
    """A quantile over tokens with Woodruff's interval: the quantiles at the bounds of the share of tokens below it."""
    table = tokens_of(evidence)
    value = float(histogram.quantiles(np.asarray([level]))[0])
    above_R = count_above(curve_of(table, rows), value)
    share = Sums(
        lambda above, tokens: above / tokens,
        (above_R, table.rows["entropy_tokens"][rows]),
        problems_of(evidence.answers, rows),
    ).interval()
    how = f"quantile over tokens; {provenance(evidence, 'entropies')}"
    if share.low is None or share.high is None:
        return Estimate(name, value, n=share.n, at=dict(at), how=f"{how}; {share.how}")
    half = (share.high - share.low) / 2
    low, high = histogram.quantiles(np.clip([level - half, level + half], 0, 1)).tolist()
    return Estimate(name, value, low, high, share.n, dict(at), f"{how}; Woodruff interval, jackknife over prompts")


def _surprisal(evidence: Evidence, baseline: Evidence | None) -> list[Estimate]:
    """−log π of the sampled tokens: its mean estimates the entropy without bias where sampling was not truncated."""
    mine = measured(evidence, "logp_tokens")
    if mine is None:
        return []
    source = int(tokens_of(mine).rows["logp_from"].min())  # the sampler's, unless only the trainer's are there

    def of(some: Evidence, rows: np.ndarray) -> Sums | None:
        held = tokens_of(some).rows
        rows = rows[held["logp_from"][rows] == source]
        return mean_of(-held["logp"][rows], held["logp_tokens"][rows], problems_of(some.answers, rows))

    how = "mean over tokens of −log π of the token drawn, which estimates the entropy if sampling was not truncated"
    statistic = Statistic("surprisal", of, f"{how}; {provenance(evidence, str(SOURCES[source]))}")
    theirs = None if baseline is None else measured(baseline, "logp_tokens")
    arms = arms_of(mine.answers, None if theirs is None else theirs.answers)
    return [number for arm in arms for number in summarise(statistic, arm, mine, theirs)]


def shannon(counts: Iterable[float]) -> float:
    """−Σ q ln q of a distribution given by counts, in nats."""
    share = np.asarray([count for count in counts if count > 0], dtype=np.float64)
    share /= share.sum()
    return float(-(share @ np.log(share)))


def _semantic(evidence: Evidence) -> list[Estimate]:
    """HICRA's semantic entropy: that of the distribution of strategic grams (https://arxiv.org/abs/2509.03646)."""
    if evidence.texts is None or not evidence.texts.grams:
        return []
    how = "Shannon entropy in nats of the strategic grams' frequencies; n counts grams; no interval: grams are counted by step, not by problem"
    estimates = []
    for at, window in step_windows(evidence.answers):
        steps = set(np.nan_to_num(evidence.answers.numbers["step"][window], nan=-1.0).tolist())
        grams = [counts for step, counts in evidence.texts.grams.items() if step in steps]
        if grams:
            pooled = sum(grams[1:], grams[0])
            estimates.append(Estimate("semantic_entropy", shannon(pooled.values()), n=pooled.total(), at=at, how=how))
    return estimates
