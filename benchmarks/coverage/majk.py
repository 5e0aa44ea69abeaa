"""maj@k of a run, its difference from a base model on the same problems, and how often the vote loses a right answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial

import numpy as np

from benchmarks.coverage.case import Case, Shown
from benchmarks.coverage.pools import ABSTAIN, LOST_MORE, MOVED, Training, both, draw, ks_of, population, shown
from equipoise.measures.evidence import Options
from equipoise.measures.majk import estimate_majk


def votes(rng: np.random.Generator, rates_PA: np.ndarray, k: int, abstain: float) -> tuple[np.ndarray, np.ndarray]:
    """Of one vote of k samples per problem: is it right (a share, where it ties), and is any sample right."""
    counts_PA = draw(rng, rates_PA, k, abstain=abstain)[:, :-1]
    leads_PA = (counts_PA == counts_PA.max(axis=1, keepdims=True)) & (counts_PA > 0)
    return leads_PA[:, 0] / np.maximum(leads_PA.sum(axis=1), 1), counts_PA[:, 0] > 0


@cache
def truths(training: Training, samples: int) -> dict[str, float]:
    """By one vote on each of 300,000 problems."""
    rng, (run_PA, base_PA) = np.random.default_rng(5), population(training)
    found: dict[str, float] = {}
    for k in ks_of(samples):
        right_P, any_P = votes(rng, run_PA, k, training.abstain)
        found |= {
            f"maj@{k}": right_P.mean(),
            f"maj@{k}_vs_baseline": (right_P - votes(rng, base_PA, k, training.abstain)[0]).mean(),
        }
        if k == samples:
            found["majority_wrong"] = ((1 - right_P) * any_P).mean()
    return found


def simulate(rng: np.random.Generator, prompts: int, samples: int, *, training: Training) -> Iterator[Shown]:
    run, base = both(rng, prompts, samples, training)
    found = estimate_majk(run, baseline=base, options=Options(k=ks_of(samples)))
    yield from shown(found, truths(training, samples), samples)


CASES = [
    Case("better", partial(simulate, training=replace(MOVED, abstain=ABSTAIN))),
    Case("one in five lost", partial(simulate, training=replace(LOST_MORE, abstain=ABSTAIN))),
]
