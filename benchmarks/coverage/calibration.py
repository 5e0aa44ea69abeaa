"""Stated confidence against correctness: Brier, over-confidence, AUROC, discrimination within a question, accuracy at a coverage.

"Half knows" is a model that half knows its problems and a little whether this sample is right; "calibrated" says each problem's
true rate, the same for all its samples, so that within a question it tells nothing apart (exactly ½, not counted here); "coarse"
says one of six round numbers, mostly 0.9 or more, as language models do. ECE and the parts of the Brier score
have no interval: bins bias them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

import numpy as np
from scipy import special

from benchmarks.coverage import worlds
from benchmarks.coverage.case import Case, Shown
from equipoise.measures.answers import AnswerTable, Interner
from equipoise.measures.calibration import (
    Ranked,
    accuracy_at_coverage,
    area_under_roc,
    estimate_calibration,
    within_question,
)
from equipoise.measures.evidence import Evidence, Options
from equipoise.rollouts.run import Run, RunInfo

ROUND = np.asarray([0.5, 0.7, 0.8, 0.9, 0.95, 1.0])
Pair = tuple[np.ndarray, np.ndarray]  # confidence and correctness, (P, G)


def half_knows(rng: np.random.Generator, prompts: int, samples: int) -> Pair:
    return worlds.stated_confidence(rng, prompts, samples)


def calibrated(rng: np.random.Generator, prompts: int, samples: int) -> Pair:
    rate_P1 = worlds.success_rates(rng, prompts)[:, None]
    return np.broadcast_to(rate_P1, (prompts, samples)), rng.random((prompts, samples)) < rate_P1


def coarse(rng: np.random.Generator, prompts: int, samples: int) -> Pair:
    confidence_PG, right_PG = worlds.stated_confidence(rng, prompts, samples)
    raised = special.expit(special.logit(confidence_PG) + 2)
    return ROUND[np.minimum(np.searchsorted(ROUND, raised), len(ROUND) - 1)], right_PG


WORLDS = {"half knows": half_knows, "calibrated": calibrated, "coarse": coarse}


@cache
def truths(world: str, samples: int) -> dict[str, float]:
    """From a population of problems. Within a question only those count where both kinds were drawn: that depends on n."""
    prompts = worlds.POPULATION * 4 // samples
    confidence_PG, right_PG = WORLDS[world](np.random.default_rng(6), prompts, samples)
    confidence, right = confidence_PG.ravel(), right_PG.ravel().astype(float)
    ranked = Ranked.of(confidence, right, np.repeat(np.arange(prompts), samples))
    found = {
        "brier": float(np.mean((confidence - right) ** 2)),
        "overconfidence": float(np.mean(confidence - right)),
        "auroc": area_under_roc(ranked),
        "within_question": float(np.nanmean(within_question(ranked)[1])),
        **{f"accuracy_at_coverage {c}": accuracy_at_coverage(ranked, c) for c in (0.25, 0.5, 0.75)},
    }
    if world == "calibrated":
        del found["within_question"]
    return found


def evidence_of(confidence_PG: np.ndarray, right_PG: np.ndarray) -> Evidence:
    prompts, samples = right_PG.shape
    empty = AnswerTable()
    numbers = {name: np.full(right_PG.size, np.nan) for name in empty.numbers} | {"confidence": confidence_PG.ravel()}
    codes = {name: np.full(right_PG.size, -1) for name in empty.codes}
    codes["prompt_id"] = np.repeat(np.arange(prompts), samples)
    names = dict(empty.names) | {"prompt_id": Interner(map(str, range(prompts)))}
    table = AnswerTable(numbers, codes, names, right_PG.ravel().astype(float))
    return Evidence(Run(Path("simulated"), RunInfo("simulated")), table)


def simulate(rng: np.random.Generator, prompts: int, samples: int, *, world: str) -> Iterator[Shown]:
    run = evidence_of(*WORLDS[world](rng, prompts, samples))
    truth = truths(world, samples)
    for number in estimate_calibration(run, baseline=None, options=Options(seed=int(rng.integers(1 << 30)))):
        coverage = number.at.get("coverage")
        name = number.name if coverage is None else f"{number.name} {coverage}"
        if name in truth:
            yield name, number.low, number.high, truth[name]


CASES = [Case(world, partial(simulate, world=world)) for world in WORLDS]
