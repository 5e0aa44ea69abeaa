"""A sweep over thinking budgets, and steps of search.

Four budgets, on the same problems: the log-odds of the right answer move with the budget and scatter. "Overthinking" peaks at the
second budget and loses 7 points by the last; "slight" loses 2 and has a third budget nearly as good; "flat" has the same accuracy
everywhere, so the loss is 0 and any budget is best; "rising" gains to the end: its loss is 0, where the interval ends, so it
covers by construction. The best budget is a set over four numbers, which cannot cover 95 % of the time: it covers 98 % or more.
Flips, disagreement and the gain of parallel samples are against the budgets that were picked, and so is their truth.

"Search" is an agent whose share of solved problems after t turns is c − d·exp(−t/τ), t up to 10; "slow" has bent little by then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from benchmarks.coverage import worlds
from benchmarks.coverage.case import Case, Shown
from equipoise.measures.answers import AnswerTable, Interner
from equipoise.measures.budget import against_best, estimate_budget, pick_budgets
from equipoise.measures.evidence import Evidence, Options
from equipoise.measures.intervals import mean_of_prompts
from equipoise.measures.search_steps import estimate_search_steps
from equipoise.measures.sweeps import sweep_budgets
from equipoise.rollouts.run import Run, RunInfo

BUDGETS = (1000, 2000, 4000, 8000)
NOISE = 0.5  # of a problem's log-odds between budgets
TURNS, CEILING, START = 10, 0.7, 0.15


@dataclass(frozen=True, slots=True)
class World:
    shifts: tuple[float, ...]  # of the log-odds at each budget
    powers: tuple[float, ...] = (1.5, 1.5, 1.0, 0.7)  # of the wrong answers' rates: longer thinking scatters them


WORLDS = {
    "overthinking": World((-1.0, 0.9, 0.5, 0.2)),
    "slight": World((-1.0, 0.6, 0.5, 0.4)),
    "flat": World((0.3, 0.3, 0.3, 0.3)),
    "rising": World((-1.0, 0.0, 0.5, 1.0)),
}


def rates(rng: np.random.Generator, prompts: int, world: World) -> list[np.ndarray]:
    """Answer rates at each budget, the right answer first, (P, A) each."""
    base_PA = worlds.answer_rates(rng, prompts)
    found = []
    for shift, power in zip(world.shifts, world.powers, strict=True):
        right_P = worlds.shifted_rates(rng, base_PA[:, 0], shift=shift, noise=NOISE)
        wrong_PA = worlds.sharpened(np.maximum(base_PA[:, 1:], 1e-300), power) * (1 - right_P)[:, None]
        found.append(np.column_stack([right_P, wrong_PA]))
    return found


@dataclass(frozen=True, slots=True)
class Truth:
    """Of the population, at each budget: accuracy, P(two samples differ), entropy of the answers, accuracy of a vote as long as the largest."""

    accuracy_B: np.ndarray
    differ_B: np.ndarray
    entropy_B: np.ndarray
    vote_B: np.ndarray
    lost_B: np.ndarray  # right at a budget and wrong at the next
    won_B: np.ndarray


@cache
def truth_of(name: str, samples: int) -> Truth:
    """From 100,000 problems; a vote is drawn once on each."""
    rng = np.random.default_rng(7)
    swept = [worlds.sum_to_one(each) for each in rates(rng, 100_000, WORLDS[name])]
    return Truth(
        np.asarray([each[:, 0].mean() for each in swept]),
        np.asarray([1 - (each**2).sum(axis=1).mean() for each in swept]),
        np.asarray([-(each * np.log(np.maximum(each, 1e-300))).sum(axis=1).mean() for each in swept]),
        np.asarray(
            [_vote(rng, each, min(BUDGETS[-1] // budget, samples)) for each, budget in zip(swept, BUDGETS, strict=True)]
        ),
        np.asarray([np.mean(a[:, 0] * (1 - b[:, 0])) for a, b in pairwise(swept)]),
        np.asarray([np.mean((1 - a[:, 0]) * b[:, 0]) for a, b in pairwise(swept)]),
    )


def _vote(rng: np.random.Generator, rates_PA: np.ndarray, k: int) -> float:
    if k == 1:
        return float(rates_PA[:, 0].mean())
    counts_PA = rng.multinomial(k, rates_PA)
    leads_PA = counts_PA == counts_PA.max(axis=1, keepdims=True)
    return float((leads_PA[:, 0] / leads_PA.sum(axis=1)).mean())


def evidence_of(swept: list[np.ndarray], rng: np.random.Generator, samples: int) -> Evidence:
    """One pass over `samples` rollouts of every problem at every budget."""
    prompts = len(swept[0])
    kinds = [_draw(rng, rates_PA, samples) for rates_PA in swept]
    answer = np.concatenate([each.ravel() for each in kinds])
    empty = AnswerTable()
    numbers = {name: np.full(len(answer), np.nan) for name in empty.numbers}
    numbers["budget"] = np.repeat(np.asarray(BUDGETS, dtype=float), prompts * samples)
    numbers["sample_index"] = np.tile(np.arange(samples, dtype=float), prompts * len(BUDGETS))
    codes = {name: np.full(len(answer), -1) for name in empty.codes} | {"answer": answer}
    codes["prompt_id"] = np.tile(np.repeat(np.arange(prompts), samples), len(BUDGETS))
    names = dict(empty.names)
    names |= {"prompt_id": Interner(map(str, range(prompts))), "answer": Interner(map(str, range(1 + worlds.WRONG)))}
    return Evidence(
        Run(Path("simulated"), RunInfo("simulated")), AnswerTable(numbers, codes, names, (answer == 0).astype(float))
    )


def _draw(rng: np.random.Generator, rates_PA: np.ndarray, samples: int) -> np.ndarray:
    """Answers, (P, samples): by where a uniform number falls among the cumulated rates."""
    edges_PA = np.cumsum(rates_PA, axis=1)[:, :-1]
    return (rng.random((len(rates_PA), samples, 1)) > edges_PA[:, None]).sum(axis=2)


def simulate(rng: np.random.Generator, prompts: int, samples: int, *, name: str) -> Iterator[Shown]:
    evidence, seed = evidence_of(rates(rng, prompts, WORLDS[name]), rng, samples), int(rng.integers(1 << 30))
    truth, sweep = truth_of(name, samples), sweep_budgets(evidence.answers)
    picked = pick_budgets(sweep, seed=seed)
    picked_P = picked.best_P
    last, loss = truth.accuracy_B[-1], truth.accuracy_B[-1] - truth.accuracy_B.max()
    # What is measured against the best budget speaks of the budgets picked; only the loss speaks of the best in truth.
    against = {
        "overthinking_loss": loss,
        "disagreement_rise": truth.differ_B[-1] - truth.differ_B[picked_P].mean(),
        "net_flips": truth.accuracy_B[picked_P].mean() - last,
        "parallel_gain": truth.vote_B[picked_P].mean() - last,
    }
    if name != "flat":
        against["best_budget"] = BUDGETS[int(np.argmax(truth.accuracy_B))]
    for number in estimate_budget(evidence, baseline=None, options=Options(seed=seed)):
        where = BUDGETS.index(int(number.at["budget"])) if "budget" in number.at else -1
        by_name = {
            "accuracy": truth.accuracy_B[where],
            "disagreement": truth.differ_B[where],
            "right_to_wrong": truth.lost_B[where - 1],
            "wrong_to_right": truth.won_B[where - 1],
        }
        if number.name in against:
            by_making = number.name == "best_budget" or (number.name == "overthinking_loss" and name == "rising")
            label = f"at least: {number.name}" if by_making else number.name
            yield label, number.low, number.high, against[number.name]
        elif number.name in by_name:
            yield f"{number.name} {number.at['budget']:.0f}", number.low, number.high, by_name[number.name]
    accuracy = sweep.accuracy_PB
    alone = against_best(picked, lambda best: accuracy[:, -1] - accuracy[:, best])
    if alone is not None:
        yield "rejected: overthinking_loss, cross-fitted interval alone", alone.low, alone.high, loss
    for b, budget in enumerate(BUDGETS):
        found = mean_of_prompts(sweep.entropy_PB[:, b], bounds=(0, np.inf))
        yield f"rejected: answer_entropy {budget}, t interval", found.low, found.high, truth.entropy_B[b]


def search(rng: np.random.Generator, prompts: int, samples: int, *, tau: float) -> Iterator[Shown]:
    """`samples` episodes per problem; a problem's share solved is the mean curve times U(0.6, 1.4)."""
    solved_T = CEILING - (CEILING - START) * np.exp(-np.arange(TURNS) / tau)
    by_PT = rng.uniform(0.6, 1.4, (prompts, 1)) * solved_T
    solved_PGT = rng.random((prompts, samples, 1)) < by_PT[:, None]
    empty = AnswerTable()
    n = solved_PGT.size
    numbers = {name: np.full(n, np.nan) for name in empty.numbers}
    numbers["turn"] = np.tile(np.arange(TURNS, dtype=float), prompts * samples)
    numbers["sample_index"] = np.tile(np.repeat(np.arange(samples, dtype=float), TURNS), prompts)
    codes = {name: np.full(n, -1) for name in empty.codes}
    codes["prompt_id"] = np.repeat(np.arange(prompts), samples * TURNS)
    names = dict(empty.names) | {"prompt_id": Interner(map(str, range(prompts)))}
    table = AnswerTable(numbers, codes, names, solved_PGT.ravel().astype(float))
    truth = {"search_ceiling": CEILING, "search_half_life": tau * float(np.log(2))}
    truth |= {f"search_best {t}": solved_T[t - 1] for t in (1, 5, 10)}
    truth |= {f"search_gain {t}": solved_T[t - 1] - solved_T[t - 2] for t in (2, 5, 10)}
    for number in estimate_search_steps(table, seed=int(rng.integers(1 << 30))):
        key = f"{number.name} {number.at['turn']}" if "turn" in number.at else number.name
        if key in truth:
            yield key, number.low, number.high, truth[key]


EPISODES = ((50, 1), (200, 1), (50, 8), (200, 8))
CASES = [
    *(Case(name, partial(simulate, name=name)) for name in WORLDS),
    Case("search", partial(search, tau=2.5), EPISODES),
    Case("stress: search, slow", partial(search, tau=5.0), EPISODES),
]
