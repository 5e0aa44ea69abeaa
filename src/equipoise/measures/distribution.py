"""How token entropies are distributed, at up to six stages of a run: did the tail die, or did everything shrink?

The bins are the edges of the token table, two to the octave from a thousandth of a nat up; the first holds all below, which in a
trained model is more than half the tokens, and the last has no end. Every rollout's tokens are counted, so shares have intervals
over problems. Axes: R rollouts, B bins.
"""

from __future__ import annotations

import numpy as np

from equipoise.base import Estimate
from equipoise.measures.evidence import Evidence, Options
from equipoise.measures.forks import MISSING
from equipoise.measures.intervals import Interval, ratio_of_sums
from equipoise.measures.prompts import conditions
from equipoise.measures.step_buckets import step_buckets
from equipoise.measures.token_arms import measured, problems_of, provenance, tokens_of
from equipoise.measures.tokens import EDGES

STAGES = 6
BOUNDS = (0.0, *EDGES.tolist(), None)


def estimate_distribution(evidence: Evidence, *, baseline: Evidence | None, options: Options) -> list[Estimate]:
    """Share of tokens whose entropy lies in each bin, `from` ≤ H < `to` in nats, at every stage of every condition."""
    mine = measured(evidence, "entropy_tokens")
    if mine is None:
        return [Estimate("entropy_bin", None, missing=MISSING)]
    held = tokens_of(mine).rows
    estimates = []
    for at, rows in conditions(mine.answers):
        stages = [
            ({"step": step}, inside) for step, inside in step_buckets(mine.answers.numbers["step"][rows], most=STAGES)
        ]
        for stage, inside in stages or [({}, np.arange(len(rows)))]:
            chosen = rows[inside]
            tokens_R, problem_R = held["entropy_tokens"][chosen], problems_of(mine.answers, chosen)
            for number, count_R in enumerate(held["entropy_bins"][chosen].T):
                found = _share(count_R, tokens_R, problem_R)
                here = {**at, **stage, "from": BOUNDS[number], "to": BOUNDS[number + 1]}
                how = f"share of tokens in the bin; {provenance(mine, 'entropies')}; {found.how}"
                estimates.append(Estimate("entropy_bin", found.value, found.low, found.high, found.n, here, how))
    return estimates


def _share(count_R: np.ndarray, tokens_R: np.ndarray, problem_R: np.ndarray) -> Interval:
    if not count_R.any():  # its limit would only tell how many problems there are
        n = len(np.unique(problem_R))
        return Interval(0.0, None, None, n, "no interval: no token of any problem is there")
    return ratio_of_sums(count_R, tokens_R, problem_R, bounds=(0.0, 1.0))
