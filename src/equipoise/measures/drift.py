"""How far the policy has moved from the reference model, along its own samples.

    d_t = log π(a_t) − log π_ref(a_t);   k1 = d,   k3 = exp(−d) − 1 + d

Both have the mean KL(π ‖ π_ref) over samples of π; k1 is signed and noisy, k3 never negative (http://joschu.net/blog/kl-approx.html).
Neither is clamped: one token that the reference finds nearly impossible can carry a k3.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from equipoise.base import Estimate
from equipoise.measures.arms import arms_of, unmatched
from equipoise.measures.evidence import Evidence, Options
from equipoise.measures.logprobs import SOURCES
from equipoise.measures.sums import Sums, mean_of
from equipoise.measures.token_arms import Statistic, measured, problems_of, provenance, summarise, tokens_of

MISSING = "log-probs of the reference model (column logprobs_ref) beside those of the policy (logprobs_train or logprobs_rollout)"


def estimate_drift(evidence: Evidence, *, baseline: Evidence | None, options: Options) -> list[Estimate]:
    """k1 and k3 per token and per completion, in the first and last steps."""
    mine = measured(evidence, "drift_tokens")
    if mine is None:
        return [Estimate("kl_k1", None, missing=MISSING)]
    theirs = None if baseline is None else measured(baseline, "drift_tokens")
    # The trainer's log-probs where any rollout has them: the sampler's differ from them, and the two are not mixed.
    source = int(tokens_of(mine).rows["drift_from"].max())
    of = f"{SOURCES[source]} against logprobs_ref; {provenance(evidence, 'logprobs_ref')}"
    statistics = [
        Statistic("kl_k1", _mean("kl_k1", source), f"mean of k1 over tokens, {of}", positive=False),
        Statistic("kl_k3", _mean("kl_k3", source), f"mean of k3 over tokens, {of}"),
        Statistic("kl_k1_sequence", _mean("kl_k1", source, per_token=False), f"mean over completions of Σ k1, {of}", positive=False),
        Statistic("kl_k3_sequence", _mean("kl_k3", source, per_token=False), f"mean over completions of Σ k3, {of}"),
    ]  # fmt: skip
    estimates: list[Estimate] = []
    for arm in arms_of(mine.answers, None if theirs is None else theirs.answers):
        for statistic in statistics:
            estimates += summarise(statistic, arm, mine, theirs)
        estimates += unmatched("kl_k1", arm)
    return estimates


def _mean(name: str, source: int, *, per_token: bool = True) -> Callable[[Evidence, np.ndarray], Sums | None]:
    def of(evidence: Evidence, rows: np.ndarray) -> Sums | None:
        held = tokens_of(evidence).rows
        rows = rows[held["drift_from"][rows] == source]
        count_R = held["drift_tokens"][rows] if per_token else np.ones(len(rows))
        return mean_of(held[name][rows], count_R, problems_of(evidence.answers, rows))

    return of
