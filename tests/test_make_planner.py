"""What a planner is taught: wrong plans as tries, and the solution that is nearest to them."""

from __future__ import annotations

from random import Random

import pytest
import torch

from equipoise.base import Completion
from equipoise.lab.make_planner import TOKENS, Recipe, make_pairs, measure_planner, moved, nearest, pair_after, teach
from equipoise.tasks.table import find_task

SPEC = "trips:cities=5,flights=7,dates=1"


def test_a_moved_plan_has_the_same_cities():
    random = Random(0)
    plans = {moved("ABCDEF", random) for _ in range(200)}
    assert {"".join(sorted(plan)) for plan in plans} == {"ABCDEF"}
    assert len(plans) > 50


def test_the_nearest_solution_keeps_most_of_one_try():
    # ABDC: of ABCD it has the places of A and B and the neighbours AB and CD, 4; of DCAB the neighbours AB and CD, 2.
    assert nearest(["DCAB", "ABCD"], ["ABDC"], Random(0)) == "ABCD"
    # Two tries: DCAB itself is one of them.
    assert nearest(["DCAB", "ABCD"], ["ABDC", "DCAB"], Random(0)) == "DCAB"
    assert {nearest(["AB", "CD"], ["EF"], Random(seed)) for seed in range(20)} == {"AB", "CD"}


def test_pairs_end_in_a_solution_and_show_wrong_plans_the_best_last():
    task = find_task(SPEC)
    pairs = make_pairs((SPEC, 0, 0, 40))
    assert pairs == make_pairs((SPEC, 0, 0, 40))
    by_prompt = {problem.prompt: problem for problem in task.problems(("planner", 0, 0), 40)}
    shown = 0
    for prompt, plan in pairs:
        posed, _, tries = prompt.partition(">")
        problem = by_prompt[f"{posed}>"]
        assert plan in task.solutions(problem)
        told = [one.split("!")[0] for one in tries.split(">") if one]
        rewards = [task.grade(problem, Completion(one)).reward for one in told]
        assert rewards == sorted(rewards)
        assert all(reward < 1 for reward in rewards)
        shown += len(told)
        TOKENS.encode(prompt)
    assert shown > 40


def test_a_plan_that_cannot_be_read_is_no_try():
    task = find_task(SPEC)
    problem = task.problems(0, 1)[0]
    assert pair_after(task, problem, ["?"], Random(0)) is None


@pytest.mark.parametrize("seed", [0])
def test_a_planner_from_nothing(seed):
    recipe = Recipe(
        task=SPEC, width=16, layers=1, heads=2, problems=64, steps=3, own_problems=8, own_steps=2, batch=8, seed=seed
    )
    torch.manual_seed(1)
    model = teach(recipe, device="cpu", jobs=1)
    numbers = measure_planner(model, SPEC, problems=4, samples=16)
    assert 0 <= numbers["pass@1"]["value"] <= 1
    assert numbers["missed by 16"] <= 4
