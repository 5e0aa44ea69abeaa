"""What every task keeps to: seeds, splits, references, canonical answers, hostile completions."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from equipoise.base import Completion
from equipoise.errors import UsageError
from equipoise.tasks.table import BY_NAME, TASKS, find_task
from equipoise.tasks.task import SPLITS, in_split, mix_seed

SPECS = [
    "countdown",
    "countdown:numbers=3,largest=99,operators=+-*/",
    "countdown:prompt=words",
    "game24",
    "queens",
    "queens:size=6,given=1,prompt=words,least_solutions=1",
    "colouring",
    "colouring:nodes=8,edges=12,prompt=words",
    "trips",
    "trips:cities=6,flights=9,dates=1,prompt=words",
    "chains",
    "chains:length=6,operators=+-*,prompt=words",
    "retrieval",
    "retrieval:hops=5,people=20,shown=2",
    "countdown:options=4",
    "queens:options=3",
    "colouring:options=4,prompt=words",
    "trips:options=4",
    "chains:options=5",
]
SMALL = {"queens:size=6,given=1,prompt=words,least_solutions=1": 8}  # this one has few problems


def count_of(spec):
    return SMALL.get(spec, 40)


def drawn(spec, seed=0, n=None, split="train"):
    return find_task(spec).problems(seed, n or count_of(spec), split=split)


@pytest.mark.parametrize("spec", SPECS)
def test_a_seed_makes_the_same_problems_and_a_longer_list_begins_with_the_shorter(spec):
    problems = drawn(spec)
    assert drawn(spec) == problems
    assert drawn(spec, n=5) == problems[:5]
    assert len({problem.id for problem in problems}) == len({problem.prompt for problem in problems}) == len(problems)
    assert {problem.env for problem in problems} == {find_task(spec).env}
    json.dumps([dict(problem.params) for problem in problems])


@pytest.mark.parametrize("spec", SPECS)
def test_splits_share_no_problem_whatever_the_seeds(spec):
    few = 3 if spec in SMALL else 20
    sets = [{p.id for p in drawn(spec, seed, few, split)} for split in ("train", "tune", "test") for seed in (0, 1)]
    ids = [set.union(*sets[at : at + 2]) for at in (0, 2, 4)]
    assert not ids[0] & ids[1]
    assert not ids[0] & ids[2]
    assert not ids[1] & ids[2]


@pytest.mark.parametrize(
    "spec",
    [
        "countdown:numbers=4,largest=100,target_to=999,largest_step=2000",
        "colouring:nodes=10,edges=16",
        "chains:length=8",
    ],
)
def test_seeds_share_no_problem_where_there_are_many(spec):
    seeds = [0, 1, 2, 3, "0", "run", ("run", 1), ("run", 2), (0, 1), (1, 0)]
    ids = Counter(problem.id for seed in seeds for problem in drawn(spec, seed, 60))
    assert len(ids) == 60 * len(seeds)


@pytest.mark.parametrize("spec", SPECS)
def test_the_reference_is_right_and_its_form_is_among_the_solutions(spec):
    task = find_task(spec)
    for problem in drawn(spec):
        for text in (
            problem.reference,
            f"<think>Let me see.</think>The answer is {problem.reference}.",
            rf"\boxed{{{problem.reference}}}",
        ):
            grade = task.grade(problem, Completion(text))
            assert (grade.outcome, grade.reward, grade.format_ok) == ("right", 1.0, True)
        assert grade.answer.text in task.solutions(problem)
        assert task.read(problem, grade.answer.text).text == grade.answer.text


@pytest.mark.parametrize("spec", SPECS)
def test_every_solution_is_right_and_in_canonical_form(spec):
    task = find_task(spec)
    for problem in drawn(spec, n=5):
        for solution in sorted(task.solutions(problem))[:50]:
            grade = task.grade(problem, Completion(f"<answer>{solution}</answer>"))
            assert (grade.outcome, grade.answer.text) == ("right", solution)


@pytest.mark.parametrize("spec", SPECS)
def test_no_answer_is_unparsable_and_an_answer_cut_off_is_none(spec):
    task = find_task(spec)
    problem = drawn(spec, n=1)[0]
    for text in (None, "", "I do not know.", "<think>1,2,3", "####"):
        grade = task.grade(problem, Completion(text))
        assert (grade.answer, grade.outcome, grade.reward, grade.format_ok) == (None, "unparsable", 0.0, False)
    assert task.grade(problem, Completion(problem.reference, finish="length")).outcome == "unparsable"
    boxed = Completion(rf"\boxed{{{problem.reference}}}, and then", finish="length")
    assert task.grade(problem, boxed).outcome == "right"


HOSTILE = [
    "9" * 10_000_000,
    "(" * 100_000 + "1" + ")" * 100_000,
    "<answer>" + "(" * 100_000 + "1" + ")" * 100_000 + "</answer>",
    r"\boxed{" * 50_000,
    "<answer>" * 50_000,
    "9**9**9**9",
    "<answer>9**9**9**9</answer>",
    "٣+٤",
    "<answer>٣,٤,٥</answer>",
    "1," * 1_000_000,
    "[" * 100_000,
    "__import__('os').system('true')",
    "<answer>__import__('os').system('true')</answer>",
    "the answer is " * 100_000,
    "\ud800\udfff\x00\u202e",
    "-" * 1_000_000 + "1",
    "<think>" * 100_000,
]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("at", range(len(HOSTILE)))
def test_hostile_completions_are_wrong_or_unparsable(spec, at):
    task = find_task(spec)
    grade = task.grade(drawn(spec, n=1)[0], Completion(HOSTILE[at]))
    assert grade.outcome in ("wrong", "unparsable")
    assert grade.reward == 0.0


def test_too_many_problems_are_refused_with_how_many_there_are():
    with pytest.raises(
        UsageError, match=r"^100 different problems were asked for, and this task has \d+ in split 'test'"
    ):
        find_task("queens:size=4,given=1,least_solutions=1").problems(0, 100, split="test")


def test_an_unknown_split_is_refused():
    with pytest.raises(UsageError, match="did you mean 'test'"):
        find_task("chains").problems(0, 1, split="tests")


def test_split_shares():
    counts = Counter(name for at in range(8000) for name in SPLITS if in_split(f"problem {at}", name))
    assert counts["all"] == 8000
    assert counts["train"] + counts["tune"] + counts["test"] == 8000
    # Binomial, three standard deviations: sqrt(8000 · 1/8 · 7/8) = 29.6
    assert abs(counts["test"] - 1000) < 89
    assert abs(counts["tune"] - 1000) < 89


def test_seed_parts_are_told_apart():
    parts = [(1, 2), (12,), ("1", 2), ("1,2",), (1, 2, ""), ([1, 2],), (2, 1), ("12",)]
    assert len({mix_seed(*part) for part in parts}) == len(parts)


# --- the table


def test_every_row_is_there():
    assert len(BY_NAME) == len(TASKS)
    for row in TASKS:
        assert find_task(row.name)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("countdwn", "did you mean 'countdown'"),
        ("countdown:number=3", "did you mean 'numbers'"),
        ("countdown:numbers=three", "takes a value such as 4, found 'three'"),
        ("countdown:numbers=3.5", "whole number"),
        ("countdown:numbers=9", "2 to 6, found 9"),
        ("countdown:operators=%", "found '%'"),
        ("countdown:target_from=9,target_to=3", "found 9 and 3"),
        ("countdown:smallest=30", "found 30 and 20"),
        ("countdown:prompt=long", "short or words"),
        ("countdown:numbers=3,numbers=4", "sets 'numbers' twice"),
        ("countdown:numbers", "is no setting"),
        ("countdown:", "names no task"),
        ("queens:size=40", "4 to 10"),
        ("queens:given=8", "0 to 7"),
        ("colouring:edges=99", "1 to 15 for 6 nodes"),
        ("colouring:colours=1", "2 to 6"),
        ("trips:cities=20", "3 to 9, found 20"),
        ("trips:flights=3", "7 to 28 for 8 cities, found 3"),
        ("trips:dates=9", "0 to 8, found 9"),
        ("chains:length=1", "at least 2"),
        ("chains:operators=/", "found '/'"),
        ("retrieval:hops=9", "1 to 6"),
        ("retrieval:people=3", "above hops"),
        ("countdown:options=1", "2 to 10"),
        ("countdown:options=many", "number of options"),
        ("gsm8k:seconds=0", "above 0"),
        ("gym:seed=3", "seed of gym/chain_sum"),
        ("no.such.module:Task", "there is no task"),
    ],
)
def test_a_bad_spec_is_one_line_that_says_what_would_work(spec, words):
    with pytest.raises(UsageError) as problem:
        find_task(spec)
    assert words in str(problem.value)
    assert "\n" not in str(problem.value)


def test_a_task_from_outside_the_package():
    task = find_task("equipoise.tasks.chains:Chains:length=3", largest=5)
    assert (task.length, task.largest) == (3, 5)


def test_maths_needs_its_file():
    with pytest.raises(UsageError, match="gsm8k:file=PATH"):
        find_task("gsm8k").problems(0, 1)
