"""The sampler's log-probs against the trainer's, on the same tokens: are the samples from the policy that is trained?

    w_t = π_train(a_t) / π_rollout(a_t);   k1 = −log w,   k3 = w − 1 − log w,   ESS = (Σ w)² / (n Σ w²)

Different kernels, precisions and stale weights make them differ; a wide gap turns on-policy learning off-policy without any
setting having changed (https://fengyao.notion.site/off-policy-rl). An effective sample share of 1 means equal weights.
"""

from __future__ import annotations

import numpy as np

from equipoise.base import Estimate
from equipoise.measures.arms import Window, arms_of
from equipoise.measures.evidence import Evidence, Options
from equipoise.measures.sums import Sums
from equipoise.measures.token_arms import (
    Statistic,
    mean_per_token,
    measured,
    problems_of,
    provenance,
    summarise,
    tokens_of,
)

MISSING = "the log-probs of both the sampler and the trainer (columns logprobs_rollout and logprobs_train)"


def estimate_mismatch(evidence: Evidence, *, baseline: Evidence | None, options: Options) -> list[Estimate]:
    """Mean and largest gap, k1, k3, the tail of the importance ratios and effective sample shares, first and last steps."""
    mine = measured(evidence, "gap_tokens")
    if mine is None:
        return [Estimate("mismatch_abs", None, missing=MISSING)]
    source = "; ".join(provenance(evidence, name) for name in ("logprobs_rollout", "logprobs_train"))
    heavy = "importance weights have heavy tails"
    statistics = [
        Statistic("mismatch_abs", mean_per_token("gap_abs", "gap_tokens"), f"mean over tokens of |log w|; {source}"),
        Statistic("mismatch_k1", mean_per_token("gap_k1", "gap_tokens"), f"mean over tokens of −log w; {source}", positive=False),
        Statistic("mismatch_k3", mean_per_token("gap_k3", "gap_tokens"), f"mean over tokens of w − 1 − log w; {source}"),
        Statistic("mismatch_tail", mean_per_token("weight_tail", "gap_tokens"), f"share of tokens with w > 2 or w < 1/2; {source}"),
        Statistic("mismatch_ess", _token_ess, f"(Σ w)² / (n Σ w²) over tokens; {source}", moves=False, no_interval=heavy),
        Statistic("mismatch_ess_sequence", _sequence_ess, f"(Σ W)² / (n Σ W²) over completions, W the product of a completion's w; {source}", moves=False, no_interval=heavy),
    ]  # fmt: skip
    estimates: list[Estimate] = []
    for arm in arms_of(mine.answers, None):
        for statistic in statistics:
            estimates += summarise(statistic, arm, mine, None)
        estimates += [_largest(mine, window, source) for window in (arm.late, arm.early) if window is not None]
    return estimates


def _token_ess(evidence: Evidence, rows: np.ndarray) -> Sums | None:
    held = tokens_of(evidence).rows
    terms = (held["weight"][rows], held["weight_square"][rows], held["gap_tokens"][rows])
    return Sums(lambda w, w2, n: w * w / (n * w2), terms, problems_of(evidence.answers, rows))


def _sequence_ess(evidence: Evidence, rows: np.ndarray) -> Sums | None:
    log_weight_R = -tokens_of(evidence).rows["gap_k1"][rows]
    weight_R = np.exp(log_weight_R - log_weight_R.max())  # the share is the same for any common factor
    terms = (weight_R, weight_R**2, np.ones(len(rows)))
    return Sums(lambda w, w2, n: w * w / (n * w2), terms, problems_of(evidence.answers, rows))


def _largest(evidence: Evidence, window: Window, source: str) -> Estimate:
    value = float(tokens_of(evidence).rows["gap_max"][window.rows].max())
    n = len(np.unique(problems_of(evidence.answers, window.rows)))
    how = f"largest |log w| of any token; {source}; no interval: a maximum grows with the number of tokens"
    return Estimate("mismatch_max", value, n=n, at=dict(window.at), how=how)
