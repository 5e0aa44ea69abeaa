"""Queens, colouring and chains against counts from the literature, enumeration and hand values."""

from __future__ import annotations

from itertools import permutations, product
from random import Random

import pytest

from equipoise.base import Completion, Problem
from equipoise.tasks.chains import Chains
from equipoise.tasks.colouring import Colouring
from equipoise.tasks.queens import Queens, all_boards


@pytest.mark.parametrize(("size", "count"), [(4, 2), (5, 10), (6, 4), (7, 40), (8, 92), (9, 352), (10, 724)])
def test_boards_as_counted_by_others(size, count):
    assert len(all_boards(size)) == len(set(all_boards(size))) == count  # https://oeis.org/A000170


def safe(board):
    """By diagonals: a slower way to say it."""
    rows = range(len(board))
    return len({board[r] + r for r in rows}) == len({board[r] - r for r in rows}) == len(set(board)) == len(board)


def test_queens_solutions_are_those_of_all_permutations():
    task = Queens(size=6, given=1, least_solutions=1)
    for problem in task.problems(0, 6, split="all"):
        columns = problem.params["columns"]
        right = {
            ",".join(map(str, board))
            for board in permutations(range(1, 7))
            if safe(board) and all(c in (0, b) for b, c in zip(board, columns, strict=True))
        }
        assert task.solutions(problem) == right
        for board in permutations(range(1, 7)):
            text = ",".join(map(str, board))
            assert (task.grade(problem, Completion(text)).outcome == "right") == (text in right)


@pytest.mark.parametrize(
    ("text", "outcome", "feedback"),
    [
        ("2,4,1,3", "right", None),
        ("[2, 4, 1, 3]", "right", None),
        (r"\boxed{2, 4, 1, 3}", "right", None),
        ("2 4 1 3", "right", None),
        ("3,1,4,2", "wrong", "the queen of row 1 stands in column 2"),
        ("2,1,4,3", "wrong", "the queens of rows 1 and 2 attack each other"),
        ("2,4,2,3", "wrong", "the queens of rows 1 and 3 attack each other"),
        ("2,4,1,5", "wrong", "there is no column 5"),
        ("2,4,1", "unparsable", "no list of 4 columns found"),
        ("2,4,1,3,2", "unparsable", "no list of 4 columns found"),
    ],
)
def test_queens_by_hand(text, outcome, feedback):
    task = Queens(size=4, given=1, least_solutions=1)
    problem = Problem("q", "queens", "2,0,0,0>", params={"columns": [2, 0, 0, 0]})
    grade = task.grade(problem, Completion(text))
    assert (grade.outcome, grade.feedback) == (outcome, feedback)
    if outcome == "right":
        assert grade.answer.text == "2,4,1,3"


def test_queens_problems_have_as_many_solutions_as_asked():
    task = Queens(size=8, given=2, least_solutions=3)
    for problem in task.problems(0, 30):
        assert sum(column > 0 for column in problem.params["columns"]) == 2
        assert len(task.solutions(problem)) >= 3


def colouring(edges, nodes, colours):
    return Problem("g", "colouring", "", params={"nodes": nodes, "colours": colours, "edges": edges})


@pytest.mark.parametrize(
    ("edges", "nodes", "colours", "count"),
    [
        ([[1, 2]], 2, 3, 1),  # two different colours, whichever
        ([[1, 2], [2, 3]], 3, 3, 2),  # the ends alike or not
        ([[1, 2], [2, 3], [1, 3]], 3, 3, 1),
        ([[1, 2], [2, 3], [1, 3]], 3, 2, 0),
        ([[1, 2], [3, 4]], 4, 2, 2),
    ],
)
def test_colourings_counted_by_hand(edges, nodes, colours, count):
    assert len(Colouring().solutions(colouring(edges, nodes, colours))) == count


def test_colouring_solutions_are_those_of_all_assignments_as_partitions():
    task = Colouring(nodes=6, edges=7, colours=3)
    for problem in task.problems(0, 10):
        proper, partitions = set(), set()
        for colours in product((1, 2, 3), repeat=6):
            if all(colours[a - 1] != colours[b - 1] for a, b in problem.params["edges"]):
                proper.add(colours)
                partitions.add(frozenset(frozenset(at for at in range(6) if colours[at] == c) for c in set(colours)))
        assert len(task.solutions(problem)) == len(partitions) >= 2
        # The colourings of one partition are one answer.
        forms = {task.grade(problem, Completion(",".join(map(str, colours)))).answer.text for colours in proper}
        assert forms == task.solutions(problem)


@pytest.mark.parametrize(
    ("text", "outcome", "answer"),
    [
        ("1,2,1", "right", "1,2,1"),
        ("3,1,3", "right", "1,2,1"),
        ("[2, 3, 1]", "right", "1,2,3"),
        ("0,1,0", "right", "1,2,1"),
        ("1,1,2", "wrong", "1,1,2"),
        ("1,2", "unparsable", None),
    ],
)
def test_colouring_by_hand(text, outcome, answer):
    grade = Colouring().grade(colouring([[1, 2], [2, 3]], 3, 3), Completion(text))
    assert (grade.outcome, grade.answer and grade.answer.text) == (outcome, answer)


def test_too_many_colours_are_wrong():
    grade = Colouring().grade(colouring([[1, 2], [2, 3]], 3, 2), Completion("1,2,3"))
    assert (grade.outcome, grade.feedback) == ("wrong", "uses 3 colours, not 2")


def stepwise(chain):
    """Products first, then left to right."""
    total = 0
    for part in chain.replace("-", "+-").split("+"):
        value = 1
        for factor in part.split("*"):
            value *= int(factor)
        total += value
    return total


def test_chains_come_to_what_a_slow_loop_says():
    for problem in Chains(length=6, operators="+-*").problems(0, 100):
        assert int(problem.reference) == stepwise(problem.params["chain"])
        assert len(problem.params["numbers"]) == 6


@pytest.mark.parametrize(
    ("text", "outcome", "answer"),
    [
        ("9", "right", "9"),
        ("9.0", "right", "9"),
        (r"7+5 is 12, so \boxed{9}", "right", "9"),
        ("<answer>7+5-3 = 9</answer>", "right", "9"),
        ("-9", "wrong", "-9"),
        ("nine", "unparsable", None),
    ],
)
def test_chains_by_hand(text, outcome, answer):
    problem = Problem("c", "chains", "7+5-3>", "9", {"chain": "7+5-3", "numbers": [7, 5, 3]})
    grade = Chains().grade(problem, Completion(text))
    assert (grade.outcome, grade.answer and grade.answer.text) == (outcome, answer)


@pytest.mark.parametrize("task", [Queens(), Colouring(), Chains()], ids=lambda task: task.env)
def test_distractors_are_wrong_and_look_like_answers(task):
    for problem in task.problems(0, 15):
        texts = {task.distractor(problem, Random(at)) for at in range(12)} - {None}
        assert len(texts) >= 3
        for text in texts:
            assert task.grade(problem, Completion(text)).outcome == "wrong"
