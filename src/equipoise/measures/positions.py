"""Mean token entropy by step and by tenth of the completion: where in the answer did it collapse?"""

from __future__ import annotations

import numpy as np

from equipoise.base import Estimate
from equipoise.measures.evidence import Evidence, Options
from equipoise.measures.forks import MISSING
from equipoise.measures.frames import DECILES
from equipoise.measures.prompts import conditions
from equipoise.measures.step_buckets import step_buckets
from equipoise.measures.sums import mean_of
from equipoise.measures.token_arms import measured, problems_of, provenance, tokens_of

MOST = 40  # rows of the map


def estimate_positions(evidence: Evidence, *, baseline: Evidence | None, options: Options) -> list[Estimate]:
    """Mean over the tokens of each tenth, 0 to 9, at every step of every condition; tenths without a token are left out."""
    mine = measured(evidence, "entropy_tokens")
    if mine is None:
        return [Estimate("entropy_at_position", None, missing=MISSING)]
    held = tokens_of(mine).rows
    how = f"mean over tokens of this tenth of the completion; {provenance(mine, 'entropies')}"
    estimates = []
    for at, rows in conditions(mine.answers):
        steps = [
            ({"step": step}, inside) for step, inside in step_buckets(mine.answers.numbers["step"][rows], most=MOST)
        ]
        for step, inside in steps or [({}, np.arange(len(rows)))]:
            chosen = rows[inside]
            problem_R = problems_of(mine.answers, chosen)
            for d in range(DECILES):
                sums = mean_of(held["position_entropy"][chosen, d], held["position_tokens"][chosen, d], problem_R)
                if sums is not None:
                    found = sums.interval("log" if sums.value > 0 else "plain")
                    here = {**at, **step, "position": d}
                    words = f"{how}; {found.how}"
                    estimates.append(
                        Estimate("entropy_at_position", found.value, found.low, found.high, found.n, here, words)
                    )
    return estimates
