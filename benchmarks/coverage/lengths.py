"""Lengths of right and wrong rollouts, and what the limit cuts off. Harder problems take longer, and wrong rollouts a little more."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
from scipy import special

from benchmarks.coverage import worlds
from benchmarks.coverage.case import Case, Shown
from equipoise.measures.answers import AnswerTable, Interner
from equipoise.measures.evidence import Evidence, Options
from equipoise.measures.lengths import estimate_lengths
from equipoise.rollouts.run import Run, RunInfo

LIMIT = 1500.0
EDGES = (
    200,
    400,
    800,
)  # the classes that truth is known for: the estimate's own bins depend on the longest rollout drawn


def draw(rng: np.random.Generator, prompts: int, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """(P, G) tokens and verdicts."""
    rate_P1 = worlds.success_rates(rng, prompts)[:, None]
    right_PG = rng.random((prompts, samples)) < rate_P1
    hard_P1 = -0.1 * special.logit(rate_P1) + 0.3 * rng.standard_normal((prompts, 1))
    log_PG = 6 + hard_P1 + 0.2 * ~right_PG + 0.4 * rng.standard_normal((prompts, samples))
    tokens_PG = np.minimum(np.ceil(np.exp(log_PG)), LIMIT)
    return tokens_PG, right_PG & (tokens_PG < LIMIT)


@cache
def truths(samples: int) -> dict[str, float]:
    tokens_PG, right_PG = draw(np.random.default_rng(14), worlds.POPULATION * 4 // samples, samples)
    cut_PG = tokens_PG >= LIMIT
    n_right, n_wrong = right_PG.sum(axis=1), (~right_PG).sum(axis=1)
    both = (n_right > 0) & (n_wrong > 0)
    right = (tokens_PG * right_PG).sum(axis=1)[both] / n_right[both]
    wrong = (tokens_PG * ~right_PG).sum(axis=1)[both] / n_wrong[both]
    return {
        "length_right": float(tokens_PG[right_PG].mean()),
        "length_wrong": float(tokens_PG[~right_PG].mean()),
        "length_wrong_minus_right": float((wrong - right).mean()),
        "truncated": float(cut_PG.mean()),
        "accuracy_finished": float(right_PG[~cut_PG].mean()),
    }


@cache
def true_share(samples: int, verdict: str, low: int, high: int) -> float:
    tokens_PG, right_PG = _population(samples)
    tokens = tokens_PG[right_PG if verdict == "right" else ~right_PG]
    return float(((tokens >= low) & (tokens < high)).mean())


@cache
def _population(samples: int) -> tuple[np.ndarray, np.ndarray]:
    return draw(np.random.default_rng(15), worlds.POPULATION * 2 // samples, samples)


def evidence_of(tokens_PG: np.ndarray, right_PG: np.ndarray) -> Evidence:
    prompts, samples = right_PG.shape
    empty = AnswerTable()
    numbers = {name: np.full(right_PG.size, np.nan) for name in empty.numbers} | {"n_tokens": tokens_PG.ravel()}
    codes = {name: np.full(right_PG.size, -1) for name in empty.codes}
    codes |= {
        "prompt_id": np.repeat(np.arange(prompts), samples),
        "finish_reason": (tokens_PG.ravel() >= LIMIT).astype(int),
    }
    names = dict(empty.names)
    names |= {"prompt_id": Interner(map(str, range(prompts))), "finish_reason": Interner(["stop", "length"])}
    table = AnswerTable(numbers, codes, names, right_PG.ravel().astype(float))
    return Evidence(Run(Path("simulated"), RunInfo("simulated")), table)


def simulate(rng: np.random.Generator, prompts: int, samples: int) -> Iterator[Shown]:
    truth = truths(samples)
    for number in estimate_lengths(evidence_of(*draw(rng, prompts, samples)), baseline=None, options=Options()):
        if number.name == "length_share":
            low, high = number.at["tokens"]
            if any(low <= edge < high for edge in EDGES):
                place = next(edge for edge in EDGES if low <= edge < high)
                share = true_share(samples, number.at["verdict"], low, high)
                yield f"length_share {number.at['verdict']}, bin of {place}", number.low, number.high, share
        elif number.name in truth:
            yield number.name, number.low, number.high, truth[number.name]


CASES = [Case("harder is longer", simulate)]
