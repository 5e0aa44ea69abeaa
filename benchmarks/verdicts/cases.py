"""The classes of made-up runs that the verdicts are measured on, and what is true of each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from equipoise.base import Verdict
from equipoise.lab.synthetic import World, at_budget, distinct_at, draw_problems, pass_at, trained

COLLAPSE: Verdict = "training-time entropy collapse"
INFLATION: Verdict = "inference-time variance inflation"
NO_DATA: Verdict = "not enough data"
TRUTH_PROBLEMS = 4000  # problems over which a world's true effects are averaged


@dataclass(frozen=True, slots=True)
class Case:
    """A class of runs. `label` is the verdict that its making implies."""

    name: str
    table: str  # which table of the report it belongs to
    world: World
    label: Verdict
    effect: float | None = None
    baseline: tuple[bool, ...] = (True, False)  # diagnosed with and without the base model's rollouts
    uses: tuple[str, ...] = ("search",)


LARGE = World(problems=100, samples=16, tokens=12)
SMALL = World(problems=50, samples=8, budget_samples=4, tokens=12)
EFFECTS = (0.1, 0.25, 0.5, 0.75, 1.0)
ALL_USES = ("answer", "vote", "search")


def cases() -> list[Case]:
    found = []
    for size in (LARGE, SMALL):
        found += _classes(size) + _curves(size)
    return [*found, *_too_little()]


def _classes(size: World) -> list[Case]:
    learning = replace(size, learning=1.0, narrowing=0.2)
    collapse = replace(size, learning=0.2, collapse=1.0)
    inflation = replace(size, learning=0.5, narrowing=0.2, inflation=1.0)
    return [
        Case("healthy: learns", "classes", learning, "healthy", uses=ALL_USES),
        Case("healthy: learns, routine tokens narrow", "classes", replace(learning, narrowing=1.0), "healthy"),
        Case("healthy: untrained", "classes", replace(size, passes=0), "healthy"),
        Case("healthy: learns, budgets continue one trace", "classes", replace(learning, continued=True), "healthy"),
        Case("collapse", "classes", collapse, COLLAPSE, uses=ALL_USES),
        # As reported: three quarters of the entropy gone in the first twelfth of the run (https://arxiv.org/abs/2505.22617).
        Case("collapse at once", "classes", replace(collapse, pace=0.06, steps_per_pass=10), COLLAPSE),
        Case("collapse while learning much", "classes", replace(collapse, learning=1.0), COLLAPSE),
        Case("inflation", "classes", inflation, INFLATION),
        Case("inflation, budgets continue one trace", "classes", replace(inflation, continued=True), INFLATION),
        Case("both", "classes", replace(collapse, inflation=1.0), "both"),
    ]


def _curves(size: World) -> list[Case]:
    collapse = replace(size, learning=0.2, budgets=())
    inflation = replace(size, passes=0)
    return [
        *(Case("collapse", "power", replace(collapse, collapse=e), COLLAPSE, e) for e in EFFECTS),
        *(Case("inflation", "power", replace(inflation, inflation=e), INFLATION, e, baseline=(True,)) for e in EFFECTS),
    ]


def _too_little() -> list[Case]:
    few = replace(SMALL, problems=8, samples=4)
    alone = replace(LARGE, passes=0, budgets=())
    return [
        Case("8 problems, learns", "too little", replace(few, learning=1.0), NO_DATA),
        Case("8 problems, collapse and inflation", "too little", replace(few, collapse=1.0, inflation=1.0), NO_DATA),
        Case("100 problems of one step, no budgets", "too little", alone, NO_DATA, baseline=(False,)),
    ]


@dataclass(frozen=True, slots=True)
class Truth:
    """Exact effects of a world, averaged over many problems: final model against the base model."""

    pass_1: float
    pass_k: float
    distinct_k_rel: float  # on problems that the base model cannot solve
    overthinking: float  # accuracy at the largest budget minus the best
    k: int


@lru_cache(maxsize=256)
def truth_of(world: World, k: int) -> Truth:
    many = replace(world, problems=TRUTH_PROBLEMS)
    problems = draw_problems(many, seed=0)
    base, final = problems.base_PA, trained(many, problems, 1.0) if world.passes else problems.base_PA
    never = base[:, 0] == 0
    accuracy = [at_budget(many, problems, final, budget)[:, 0].mean() for budget in world.budgets]
    return Truth(
        float((pass_at(final, 1) - pass_at(base, 1)).mean()),
        float((pass_at(final, k) - pass_at(base, k)).mean()),
        float(distinct_at(final, k)[never].sum() / distinct_at(base, k)[never].sum() - 1),
        float(accuracy[-1] - np.max(accuracy)) if accuracy else 0.0,
        k,
    )
