"""Whether the beginning of a Countdown expression can still become a solution: against a slow search over whole texts."""

from __future__ import annotations

from itertools import permutations, product

import pytest

from equipoise.base import Completion
from equipoise.tasks.asking import ask
from equipoise.tasks.countdown import Countdown
from equipoise.tasks.countdown_prefixes import can_become, solution_texts
from equipoise.tasks.expressions import parse_expression

THREE = Countdown(numbers=3)


def flat_and_bracketed(numbers, operators):
    """Every expression over three numbers that has no brackets, or one pair of them, whether needed or not."""
    for a, b, c in permutations(map(str, numbers)):
        for s, t in product(operators, repeat=2):
            yield from (f"{a}{s}{b}{t}{c}", f"({a}{s}{b}){t}{c}", f"{a}{s}({b}{t}{c})")


@pytest.mark.parametrize(("numbers", "target"), [((2, 3, 4), 20), ((2, 3, 7), 2), ((5, 5, 1), 4), ((2, 8, 4), 1)])
def test_all_texts_of_three_numbers(numbers, target):
    found = set(solution_texts(tuple(sorted(numbers)), target, "+-*/"))
    slow = {
        text
        for text in flat_and_bracketed(numbers, "+-*/")
        if (made := parse_expression(text)) is not None and made.value == target
    }
    assert found <= slow
    # What the slow one has besides has brackets that it does not need: without them it is another text of the same form.
    forms = {parse_expression(text).form for text in found}
    assert {parse_expression(text).form for text in slow} == forms
    assert {text for text in slow if "(" not in text} == {text for text in found if "(" not in text}


def test_every_text_is_graded_right_and_every_beginning_of_one_is_good():
    task = Countdown()
    for problem in task.problems(0, 5, split="test"):
        texts = solution_texts(tuple(sorted(problem.params["numbers"])), problem.params["target"], task.allowed)
        assert problem.reference in texts
        for text in texts[:40]:
            assert task.grade(problem, Completion(text)).correct
            assert all(task.progress(problem, Completion(text[:end])) == 1.0 for end in range(len(text) + 1))


def test_by_hand():
    # 4, 13, 2 = 7: 13-4-2 in its orders and as 13-(4+2).
    problem = THREE.pose([4, 13, 2], 7)
    good, bad = ("", "1", "13", "13-", "13-2", "13-(", "13-(4+", "2-"), ("4-2+", "13+", "13*", "7", "13-2-4+", "x")
    assert [THREE.progress(problem, Completion(text)) for text in good[:-1]] == [1.0] * 7
    assert [THREE.progress(problem, Completion(text)) for text in bad] == [0.0] * 6


def test_in_the_thinking_an_attempt_that_hits_is_all_that_counts():
    problem = THREE.pose([4, 13, 2], 7)
    assert THREE.progress(problem, Completion("", thinking="4+13-2=15,13-4*2=5")) == 0.0
    assert THREE.progress(problem, Completion("", thinking="4+13-2=15,13-2-4=7")) == 1.0
    assert THREE.progress(problem, Completion("", thinking="9-2=7")) == 0.0  # other numbers


def test_more_numbers_are_not_measured_and_a_question_has_it():
    five = Countdown(numbers=5)
    problem = five.problems(0, 1)[0]
    assert five.progress(problem, Completion("1+")) is None
    question = ask(THREE, THREE.pose([4, 13, 2], 7))
    assert question.progress(Completion("13-")) == 1.0
    assert question.tools == {}


def test_a_sorted_lookup_is_a_prefix_test():
    texts = ("1+2", "1+2-3", "2*3", "2-1")
    for prefix in ("", "1", "1+2", "1+2-", "2", "2*", "3", "1+3", "0"):
        assert can_become(prefix, texts) == any(text.startswith(prefix) for text in texts)
