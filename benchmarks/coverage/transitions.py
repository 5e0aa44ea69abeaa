"""Solve rates before against after, and votes by the share of the top answer: a run against the base model on the same problems.

Truths: 300,000 problems, each drawn as often as in the simulation, since classes of solve rates and of vote shares depend on that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial

import numpy as np

from benchmarks.coverage.case import Case, Shown
from benchmarks.coverage.pools import ABSTAIN, LOST_MORE, MOVED, Training, both, draw, population
from equipoise.base import Estimate
from equipoise.measures.evidence import Options
from equipoise.measures.transitions import CLASSES, estimate_transitions
from equipoise.measures.vote_profile import estimate_votes

CELLS = (("0", "0"), ("0", "1"), ("1", "0"), ("1", "1"), ("(0.25, 0.5]", "(0.5, 0.75]"), ("(0, 0.25]", "0"))
SHARES = ([0.2, 0.4], [0.4, 0.6], [0.6, 0.8], [0.8, 1.0], [1.0, 1.0])


def of_rate(rate_P: np.ndarray) -> np.ndarray:
    """The class of a solve rate, by its edges."""
    inner = np.digitize(rate_P, [0.25, 0.5, 0.75], right=True) + 1
    return np.where(rate_P == 0, 0, np.where(rate_P == 1, 5, inner))


@cache
def truths(training: Training, samples: int) -> dict[str, float]:
    rng, (run_PA, base_PA) = np.random.default_rng(11), population(training)
    after_PA, before_PA = (draw(rng, each, samples, abstain=training.abstain) for each in (run_PA, base_PA))
    before_P, after_P = (of_rate(each[:, 0] / samples) for each in (before_PA, after_PA))
    found = {
        f"transition {b} {a}": float(((before_P == CLASSES.index(b)) & (after_P == CLASSES.index(a))).mean())
        for b, a in CELLS
    }
    answered = 1 - training.abstain
    was_P, is_P = (1 - (1 - rates[:, 0] / rates.sum(axis=1) * answered) ** samples for rates in (base_PA, run_PA))
    found |= {"lost@n": float((was_P * (1 - is_P)).mean()), "won@n": float(((1 - was_P) * is_P).mean())}
    votes_PA = after_PA[:, :-1]
    cast_P, most_P = votes_PA.sum(axis=1), votes_PA.max(axis=1)
    leads_PA = (votes_PA == most_P[:, None]) & (votes_PA > 0)
    right_P = leads_PA[:, 0] / np.maximum(leads_PA.sum(axis=1), 1)
    voted = cast_P >= 2
    share_P, right_P = (most_P / np.maximum(cast_P, 1))[voted], right_P[voted]
    found |= {"vote_accuracy": float(right_P.mean()), "vote_overconfidence": float((share_P - right_P).mean())}
    for low, high in SHARES:
        inside = (share_P == 1) if low == 1 else (share_P > low) & (share_P <= high) & (share_P < 1)
        found[f"vote_accuracy_by_share {low} {high}"] = float(right_P[inside].mean())
    return found


def key(number: Estimate) -> str:
    if number.name == "transition":
        return f"transition {number.at['before']} {number.at['after']}"
    if "share" in number.at:
        return f"{number.name} {number.at['share'][0]} {number.at['share'][1]}"
    return number.name.split("@")[0] + "@n" if "@" in number.name else number.name


def simulate(rng: np.random.Generator, prompts: int, samples: int, *, training: Training) -> Iterator[Shown]:
    run, base = both(rng, prompts, samples, training)
    truth = truths(training, samples)
    numbers = estimate_transitions(run, baseline=base, options=Options())
    for number in [*numbers, *estimate_votes(run, baseline=None, options=Options())]:
        if key(number) in truth:
            exact = "at least: " if "share" in number.at else ""
            yield exact + key(number), number.low, number.high, truth[key(number)]


CASES = [
    Case("better", partial(simulate, training=replace(MOVED, abstain=ABSTAIN))),
    Case("one in five lost", partial(simulate, training=replace(LOST_MORE, abstain=ABSTAIN))),
]
