"""Groups, truncation and length in the first and last steps of a run, with the same problems in both, or with others.

Two steps of one group per problem. Between them the log-odds of a right answer move by +1 and scatter, the log of the length grows
by 0.3. "Other problems" draws new ones for the second step, so its changes are not paired. Counts read out of texts (`profile`) and
shares of formats (`format`) have the estimators of `length` and `truncated`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

import numpy as np

from benchmarks.coverage import worlds
from benchmarks.coverage.case import Case, Shown
from equipoise.measures.answers import AnswerTable, Interner
from equipoise.measures.evidence import Evidence, Options
from equipoise.measures.health import estimate_health
from equipoise.rollouts.run import Run, RunInfo

SHIFT, NOISE = 1.0, 0.5
GROWTH, BETWEEN, WITHIN, LIMIT = 0.3, 0.4, 0.4, 1500.0  # of the log of the length; completions are cut at LIMIT tokens


@cache
def truths(samples: int) -> dict[str, float]:
    """From 300,000 problems."""
    rng = np.random.default_rng(8)
    found: dict[str, dict[str, float]] = {}
    rate_P = worlds.success_rates(rng, worlds.POPULATION)
    for window, rates_P in (("early", rate_P), ("late", worlds.shifted_rates(rng, rate_P, shift=SHIFT, noise=NOISE))):
        wrong, right = ((1 - rates_P) ** samples).mean(), (rates_P**samples).mean()
        tokens = lengths(rng, worlds.POPULATION, 1, late=window == "late")
        found[window] = {
            "dead_groups": wrong + right,
            "all_wrong": wrong,
            "all_right": right,
            "effective_samples": 1 - wrong - right,
            "truncated": (tokens >= LIMIT).mean(),
            "length": tokens.mean(),
        }
    changes = {f"{name}_change": found["late"][name] - found["early"][name] for name in found["late"]}
    return found["late"] | changes


def lengths(
    rng: np.random.Generator, prompts: int, samples: int, *, late: bool, ease_P: np.ndarray | None = None
) -> np.ndarray:
    ease_P = rng.standard_normal(prompts) if ease_P is None else ease_P
    log = 6.5 + GROWTH * late + BETWEEN * ease_P[:, None] + WITHIN * rng.standard_normal((prompts, samples))
    return np.minimum(np.ceil(np.exp(log)), LIMIT)


def simulate(rng: np.random.Generator, prompts: int, samples: int, *, same: bool) -> Iterator[Shown]:
    first_P, ease_P = worlds.success_rates(rng, prompts), rng.standard_normal(prompts)
    again_P, ease_again_P = (
        (first_P, ease_P) if same else (worlds.success_rates(rng, prompts), rng.standard_normal(prompts))
    )
    later_P = worlds.shifted_rates(rng, again_P, shift=SHIFT, noise=NOISE)
    right = np.concatenate([(rng.random((prompts, samples)) < each[:, None]).ravel() for each in (first_P, later_P)])
    tokens = np.concatenate(
        [
            lengths(rng, prompts, samples, late=False, ease_P=ease_P).ravel(),
            lengths(rng, prompts, samples, late=True, ease_P=ease_again_P).ravel(),
        ]
    )
    prompt = np.concatenate([np.arange(prompts), np.arange(prompts) + (0 if same else prompts)]).repeat(samples)
    empty = AnswerTable()
    numbers = {name: np.full(len(right), np.nan) for name in empty.numbers}
    numbers |= {"reward": right.astype(float), "n_tokens": tokens, "step": np.repeat([1.0, 2.0], prompts * samples)}
    codes = {name: np.full(len(right), -1) for name in empty.codes}
    codes |= {"prompt_id": prompt, "group_id": prompt, "finish_reason": (tokens >= LIMIT).astype(int)}
    problems = Interner(map(str, range(2 * prompts)))
    names = dict(empty.names) | {
        "prompt_id": problems,
        "group_id": problems,
        "finish_reason": Interner(["stop", "length"]),
    }
    table = AnswerTable(numbers, codes, names, right.astype(float))
    evidence = Evidence(Run(Path("simulated"), RunInfo("simulated")), table)
    truth = truths(samples)
    for number in estimate_health(evidence, baseline=None, options=Options()):
        if number.at.get("window") != "early" and number.name in truth:
            yield number.name, number.low, number.high, truth[number.name]


CASES = [Case("the same problems", partial(simulate, same=True)), Case("other problems", partial(simulate, same=False))]
