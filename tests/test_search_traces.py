"""Demonstrations that think, checked by Python's own arithmetic, and what of them is learnt."""

from __future__ import annotations

import ast
import operator
from collections import Counter
from fractions import Fraction
from random import Random

import pytest

from equipoise.base import Completion
from equipoise.errors import UsageError
from equipoise.lab.search_traces import END, NEXT, OFF, START, Piece, Shares, _first, make_trace, make_traces, work_out
from equipoise.tasks.countdown import Countdown
from equipoise.tasks.table import find_task

TASK = find_task("countdown:numbers=3")
SIGNS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def value_of(text):
    """By Python's own parser, in fractions."""

    def of(node):
        if isinstance(node, ast.Constant):
            return Fraction(node.value)
        return SIGNS[type(node.op)](of(node.left), of(node.right))

    return of(ast.parse(text, mode="eval").body)


def numbers_of(text):
    return sorted(node.value for node in ast.walk(ast.parse(text, mode="eval")) if isinstance(node, ast.Constant))


@pytest.fixture(scope="module")
def traces():
    return list(make_traces(TASK, seed="test", n=300))


def parts(trace):
    """Attempts of the thinking, and the answer."""
    thinking, closed, answer = trace.text.partition(END)
    assert closed
    assert trace.text.startswith(START)
    return [attempt for attempt in thinking[1:].split(NEXT) if attempt], answer


def was_cut(trace):
    return any(piece == Piece(END, False) for piece in trace.pieces)


def test_every_answer_is_right_also_after_thinking_that_was_cut(traces):
    for trace in traces:
        answer = parts(trace)[1]
        assert value_of(answer) == trace.problem.params["target"]
        assert numbers_of(answer) == sorted(trace.problem.params["numbers"])
        assert TASK.grade(trace.problem, Completion(answer, finish="stop")).outcome == "right"


def test_attempts_come_to_what_they_say_use_every_number_and_are_wrong_but_for_the_last(traces):
    seen = 0
    for trace in traces:
        attempts, answer = parts(trace)
        whole = attempts[:-1] if was_cut(trace) else attempts
        for attempt in whole:
            worked_out, off = attempt.split(OFF)
            expression, *steps = worked_out.split("=")
            assert int(off) == abs(value_of(expression) - trace.problem.params["target"])
            assert {value_of(step) for step in steps} == {value_of(expression)}  # every step comes to the same
            assert [len(numbers_of(step)) for step in steps] == [2, 1]  # one operation less each
            assert numbers_of(expression) == sorted(trace.problem.params["numbers"])
            seen += 1
        right = [attempt for attempt in whole if attempt.endswith(f"{OFF}0")]
        assert [attempt.split("=")[0] for attempt in right] == ([] if was_cut(trace) else [answer])
        forms = {TASK.read(trace.problem, attempt.split("=")[0]).text for attempt in whole}
        assert len(forms) == len(whole)
    assert seen > 500


def test_kinds_come_in_their_shares(traces):
    cut = [trace for trace in traces if was_cut(trace)]
    at_once = [trace for trace in cut if trace.text.startswith(START + END)]
    whole = [trace for trace in traces if not was_cut(trace)]
    none_wrong = [trace for trace in whole if len(parts(trace)[0]) == 1]
    # Binomial, five standard deviations: 0.4 of 300; half of those; 0.25 of the others.
    assert abs(len(cut) - 120) < 5 * (300 * 0.4 * 0.6) ** 0.5
    assert abs(len(at_once) - len(cut) / 2) < 5 * (len(cut) / 4) ** 0.5
    assert abs(len(none_wrong) - 0.25 * len(whole)) < 5 * (len(whole) * 0.1875) ** 0.5
    assert max(len(parts(trace)[0]) for trace in whole) <= Shares().most_wrong + 1


def test_wrong_expressions_and_forced_ends_are_not_learnt():
    problem = TASK.problems("one", 1)[0]
    shares = Shares(cut=0.0, go_on=1.0, most_wrong=2)
    trace = make_trace(TASK, problem, Random(1), shares=shares)
    (first, _, one), (second, _, two), (last, _, three) = (a.partition("=") for a in parts(trace)[0])
    assert trace.pieces == (
        Piece("[", True),
        Piece(first, False),
        Piece(f"={one},", True),
        Piece(second, False),
        Piece(f"={two},", True),
        Piece(f"{last}={three}]", True),
        Piece(last, True),
    )
    assert last == problem.reference


@pytest.mark.parametrize(
    ("expression", "worked_out"),
    [
        ("13-2-4", "=11-4=7"),
        ("10+3*5", "=10+15=25"),
        ("9-(19-11)", "=9-8=1"),
        ("2*(3+4*5)", "=2*(3+20)=2*23=46"),
        ("(1+2)*(3+4)", "=3*(3+4)=3*7=21"),
        ("2*3*4", "=6*4=24"),
        ("7", ""),
    ],
)
def test_worked_out_by_hand(expression, worked_out):
    assert work_out(expression) == worked_out


def test_a_cut_keeps_what_is_learnt_of_what_it_keeps():
    pieces = [Piece("[", True), Piece("1+2", False), Piece("=3,", True)]
    assert list(_first(pieces, 1)) == [Piece("[", True)]
    assert list(_first(pieces, 3)) == [Piece("[", True), Piece("1+", False)]
    assert list(_first(pieces, 5)) == [Piece("[", True), Piece("1+2", False), Piece("=", True)]


def test_cuts_fall_anywhere(traces):
    more = [*traces, *make_traces(TASK, seed="more", n=700)]
    last = Counter(trace.text.partition(END)[0][-1] for trace in more if was_cut(trace))
    assert {"[", "=", "+", "*", ","} <= set(last)
    assert any(character.isdigit() for character in last)


def test_equal_seeds_give_equal_traces_and_other_seeds_others(traces):
    assert list(make_traces(TASK, seed="test", n=20)) == traces[:20]
    assert [t.text for t in make_traces(TASK, seed="other", n=20)] != [t.text for t in traces[:20]]


def test_near_misses_are_nearer():
    def off(near):
        found = make_traces(TASK, seed=3, n=200, shares=Shares(cut=0.0, near=near))
        each = [int(attempt.split(OFF)[1]) for trace in found for attempt in parts(trace)[0][:-1]]
        return sum(each) / len(each)

    assert off(1.0) < 0.8 * off(0.0)


def test_what_has_no_solution_or_no_short_prompt_is_refused():
    with pytest.raises(UsageError, match="single characters"):
        next(make_traces(Countdown(prompt="words"), seed=0, n=1))
    with pytest.raises(UsageError, match=r"operators=\+-\*/"):
        next(make_traces(Countdown(operators="+-*/"), seed=0, n=1))
    bare = TASK.pose([1, 2, 3], 6)
    with pytest.raises(UsageError, match="no solution to show"):
        make_trace(TASK, bare, Random(0))


def test_few_numbers_make_few_attempts():
    """2 and 2 make 4 and 0 alone: once 0 was tried there is nothing else that is wrong."""
    task = Countdown(numbers=2, operators="+-")
    problem = task.pose([2, 2], 4, reference="2+2")
    trace = make_trace(task, problem, Random(0), shares=Shares(cut=0.0, go_on=1.0))
    assert trace.text == "[2-2=0:4,2+2=4:0]2+2"
