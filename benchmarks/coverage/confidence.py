"""Accuracy by bins of confidence, and accuracy of the surest share, in the worlds of `calibration`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial

import numpy as np

from benchmarks.coverage import worlds
from benchmarks.coverage.calibration import WORLDS, evidence_of
from benchmarks.coverage.case import Case, Shown
from equipoise.base import Estimate
from equipoise.measures.confidence import estimate_confidence
from equipoise.measures.evidence import Options

KEPT = (0.05, 0.1, 0.2, 0.3, 0.5, 0.8)


@cache
def truths(world: str, samples: int) -> dict[str, float]:
    """From a population of problems, by sorting."""
    prompts = worlds.POPULATION * 4 // samples
    confidence_PG, right_PG = WORLDS[world](np.random.default_rng(12), prompts, samples)
    confidence, right = confidence_PG.ravel(), right_PG.ravel().astype(float)
    # Ties come in any order; with so many replies the proportion of a tie is that of its right ones.
    order = np.lexsort((np.random.default_rng(13).random(len(right)), -confidence))
    found = {f"selective_accuracy {c}": float(right[order[: round(c * len(right))]].mean()) for c in KEPT}
    found["selective_gain 0.5"] = found["selective_accuracy 0.5"] - float(right.mean())
    for b in range(10):
        inside = (confidence >= b / 10) & ((confidence < (b + 1) / 10) | (b == 9))
        if inside.any():
            found[f"reliability {b / 10}"] = float(right[inside].mean())
    return found


def key(number: Estimate) -> str:
    if number.name == "reliability":
        return f"reliability {number.at['bin'][0]}"
    return f"{number.name} {number.at.get('coverage')}"


def simulate(rng: np.random.Generator, prompts: int, samples: int, *, world: str) -> Iterator[Shown]:
    run = evidence_of(*WORLDS[world](rng, prompts, samples))
    truth = truths(world, samples)
    for number in estimate_confidence(run, baseline=None, options=Options(seed=int(rng.integers(1 << 30)))):
        if key(number) in truth:
            yield key(number), number.low, number.high, truth[key(number)]


CASES = [Case(world, partial(simulate, world=world)) for world in WORLDS]
