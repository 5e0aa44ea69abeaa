"""The gap between the sampler's and the trainer's log-probs step by step; see `mismatch` for the numbers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from equipoise.base import Estimate
from equipoise.measures.evidence import Evidence, Options
from equipoise.measures.log_curves import logged_points
from equipoise.measures.mismatch import MISSING
from equipoise.measures.prompts import conditions
from equipoise.measures.step_buckets import step_buckets
from equipoise.measures.sums import mean_of
from equipoise.measures.token_arms import measured, problems_of, provenance, tokens_of

MEANS = {
    "mismatch_abs_at_step": ("gap_abs", "mean over tokens of |log w|"),
    "mismatch_tail_at_step": ("weight_tail", "share of tokens with w > 2 or w < 1/2"),
}


def estimate_mismatch_course(evidence: Evidence, *, baseline: Evidence | None, options: Options) -> list[Estimate]:
    """Mean and largest gap and the tail of the importance ratios at every step; what the trainer logged stands apart."""
    made = provenance(evidence, "mismatch")
    estimates = [
        *_from_tokens(evidence),
        *logged_points("mismatch_logged_at_step", evidence.metrics, "mismatch", at={}, source=made),
    ]
    if not estimates:
        estimates.append(
            Estimate("mismatch_abs_at_step", None, missing=f"{MISSING}, or a mismatch in the trainer's log")
        )
    return estimates


def _from_tokens(evidence: Evidence) -> Iterator[Estimate]:
    mine = measured(evidence, "gap_tokens")
    if mine is None:
        return
    held = tokens_of(mine).rows
    source = "; ".join(provenance(mine, name) for name in ("logprobs_rollout", "logprobs_train"))
    for condition, held_rows in conditions(mine.answers):
        for step, inside in step_buckets(mine.answers.numbers["step"][held_rows]):
            rows = held_rows[inside]
            at = {**condition, "source": "rollouts", "step": step}
            problem_R = problems_of(mine.answers, rows)
            for name, (total, words) in MEANS.items():
                sums = mean_of(held[total][rows], held["gap_tokens"][rows], problem_R)
                if sums is not None and np.isfinite(sums.value):
                    found = sums.interval("log" if sums.value > 0 else "plain")
                    how = f"{words}; {source}; {found.how}"
                    yield Estimate(name, found.value, found.low, found.high, found.n, at, how)
            how = f"largest |log w| of any token; {source}; no interval: a maximum grows with the number of tokens"
            largest = float(held["gap_max"][rows].max())
            yield Estimate("mismatch_max_at_step", largest, n=len(np.unique(problem_R)), at=at, how=how)
