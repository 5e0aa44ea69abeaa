"""A few made-up runs of each kind through the benchmark's own path; `benchmarks/verdicts` has the rates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binomtest

from benchmarks.verdicts.cases import COLLAPSE, INFLATION, LARGE, cases, truth_of
from benchmarks.verdicts.report import FAILURES, false_alarms, missed, share
from benchmarks.verdicts.run import try_once
from equipoise.lab.synthetic import World, draw_problems, trained

BY_NAME = {case.name: case for case in cases() if case.table != "power" and case.world.problems != 50}


def search_verdict(name: str, *, seed: int, baseline: bool = True) -> str:
    case = replace(BY_NAME[name], baseline=(baseline,), uses=("search",))
    [found] = try_once(case, seed)
    return str(found["verdict"])


@pytest.mark.parametrize("name", ["healthy: learns", "collapse", "inflation", "both"])
def test_severe_effects_are_named_and_a_healthy_run_is_not(name: str):
    assert search_verdict(name, seed=1) == BY_NAME[name].label


def test_eight_problems_are_too_few_for_any_verdict():
    for name in ("8 problems, learns", "8 problems, collapse and inflation"):
        for seed in range(3):
            assert search_verdict(name, seed=seed) == "not enough data"
            assert search_verdict(name, seed=seed, baseline=False) == "not enough data"


def test_a_collapse_that_raises_pass_at_1_harms_a_search_and_not_an_answer():
    world = BY_NAME["collapse"].world
    assert truth_of(world, 8).pass_1 > 0 > truth_of(world, 8).pass_k
    ways = {(t["use"], t["baseline"]): t["verdict"] for t in try_once(BY_NAME["collapse"], 2)}
    assert ways["search", True] == ways["search", False] == COLLAPSE
    assert ways["answer", True] == "healthy"


def test_the_truth_of_a_world_is_its_average_problem():
    world = World(collapse=0.5, budgets=(256, 16384))
    found = truth_of(world, 4)
    problems = draw_problems(replace(world, problems=4000), seed=0)
    final = trained(world, problems, 1.0)[:, 0]
    lost = [(1 - (1 - p) ** 4) - (1 - (1 - q) ** 4) for p, q in zip(final, problems.base_PA[:, 0], strict=True)]
    assert found.pass_k == pytest.approx(np.mean(lost))
    assert found.distinct_k_rel < 0
    assert found.overthinking == 0  # no inflation: the largest budget is the best


def test_counting_of_alarms_and_misses():
    row = {"label": "healthy", "world": {"collapse": 0}, "verdicts": {"healthy": 90, COLLAPSE: 4, "both": 1}}
    assert (false_alarms(row), missed(row)) == (5, 0)
    row = {
        "label": COLLAPSE,
        "world": {"collapse": 1},
        "verdicts": {COLLAPSE: 90, "both": 3, INFLATION: 2, "healthy": 1},
    }
    assert (false_alarms(row), missed(row)) == (5, 1)
    row = {"label": "both", "world": {"collapse": 1}, "verdicts": {"both": 90, COLLAPSE: 4, "healthy": 1}}
    assert (false_alarms(row), missed(row)) == (0, 5)
    low, high = binomtest(3, 100).proportion_ci(method="wilson")
    assert share(3, 100) == f"3% [{low:.0%}, {high:.0%}]"


@pytest.mark.slow
def test_rates_over_twenty_runs_a_class():
    """Wide bounds that a broken rule, interval or generator would leave: twenty runs of each class, large size."""
    alarms = healthy = 0
    for case in BY_NAME.values():
        if case.world.problems != LARGE.problems:
            continue
        verdicts = [search_verdict(case.name, seed=seed, baseline=case.baseline[0]) for seed in range(20)]
        if case.label == "healthy":
            alarms += sum(verdict in FAILURES for verdict in verdicts)
            healthy += len(verdicts)
        else:
            assert verdicts.count(case.label) >= 16, (case.name, verdicts)
    assert alarms <= 0.1 * healthy
