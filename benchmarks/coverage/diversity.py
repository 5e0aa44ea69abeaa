"""Distinct answers, collisions and abstentions, on all problems and on those that neither the run nor the base model solved.

The truth on solved or unsolved problems weighs every problem by its chance to fall into that class with so many samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial

import numpy as np

from benchmarks.coverage.case import Case, Shown
from benchmarks.coverage.pools import ABSTAIN, LOST_MORE, MOVED, Training, both, ks_of, population, shown
from equipoise.measures.diversity import estimate_diversity
from equipoise.measures.evidence import Options


@cache
def truths(training: Training, samples: int) -> dict[str, float]:
    run_PA, base_PA = population(training)
    found = {"abstained": training.abstain}
    missed_run_P, missed_base_P = (
        (1 - rates_PA[:, 0] * (1 - training.abstain)) ** samples for rates_PA in (run_PA, base_PA)
    )
    # Given that no sample of a problem is right, its answers are draws from the wrong ones.
    wrong_run_PA, wrong_base_PA = (given_wrong(rates_PA) for rates_PA in (run_PA, base_PA))
    everywhere = np.ones(len(run_PA))
    found |= _truths("all", run_PA, base_PA, everywhere, everywhere, samples)
    found |= _truths("unsolved", wrong_run_PA, wrong_base_PA, missed_run_P, missed_run_P * missed_base_P, samples)
    return found


def given_wrong(rates_PA: np.ndarray) -> np.ndarray:
    wrong_PA = rates_PA.copy()
    wrong_PA[:, 0] = 0
    return wrong_PA / np.maximum(wrong_PA.sum(axis=1, keepdims=True), 1e-300)


def _truths(
    problems: str, run_PA: np.ndarray, base_PA: np.ndarray, weight_P: np.ndarray, both_P: np.ndarray, samples: int
) -> dict[str, float]:
    """Means over problems: `weight_P` for the run alone, `both_P` in comparisons."""

    def level(values_P: np.ndarray) -> float:
        return float(np.average(values_P, weights=weight_P))

    def compared(run_P: np.ndarray, base_P: np.ndarray) -> tuple[float, float]:
        return np.average(run_P, weights=both_P), np.average(base_P, weights=both_P)

    run_P, base_P = ((rates_PA**2).sum(axis=1) for rates_PA in (run_PA, base_PA))
    mine, theirs = compared(run_P, base_P)
    found = {f"collision, {problems}": level(run_P), f"collision_vs_baseline, {problems}": mine - theirs}
    for k in _ks(samples):
        run_P, base_P = ((1 - (1 - rates_PA) ** k).sum(axis=1) for rates_PA in (run_PA, base_PA))
        mine, theirs = compared(run_P, base_P)
        found |= {
            f"distinct@{k}, {problems}": level(run_P),
            f"distinct@{k}_vs_baseline, {problems}": mine - theirs,
            f"distinct@{k}_vs_baseline_rel, {problems}": mine / theirs - 1,
        }
    return found


def _ks(samples: int) -> tuple[int, ...]:
    """Without the largest: some sample of almost every problem abstains, and then it has fewer answers than that."""
    return tuple(k for k in ks_of(samples) if 1 < k < samples)


def simulate(rng: np.random.Generator, prompts: int, samples: int, *, training: Training) -> Iterator[Shown]:
    run, base = both(rng, prompts, samples, training)
    found = estimate_diversity(run, baseline=base, options=Options(k=_ks(samples)))
    yield from shown(found, truths(training, samples), samples)


CASES = [
    Case("sharper", partial(simulate, training=replace(MOVED, abstain=ABSTAIN))),
    Case("sharper, one in five lost", partial(simulate, training=replace(LOST_MORE, abstain=ABSTAIN))),
]
