"""The same problems posed as multiple choice."""

from __future__ import annotations

from collections import Counter

import pytest

from equipoise.base import Completion, Problem
from equipoise.errors import UsageError
from equipoise.tasks.choices import Choices
from equipoise.tasks.table import find_task
from equipoise.tasks.task import right_or_wrong

FREE = find_task("countdown")
POSED = Choices(FREE, 4)


def test_the_problems_are_the_free_ones():
    free, posed = FREE.problems(5, 30, split="test"), POSED.problems(5, 30, split="test")
    assert [problem.params["free"] for problem in posed] == [problem.id for problem in free]
    assert not {problem.id for problem in posed} & {problem.id for problem in free}


@pytest.mark.parametrize("spec", ["countdown", "game24", "queens", "colouring", "chains"])
def test_exactly_one_option_is_right_by_the_free_checker(spec):
    free, posed = find_task(spec), find_task(spec, options=4)
    for inner, problem in zip(free.problems(0, 25), posed.problems(0, 25), strict=True):
        outcomes = [free.grade(inner, Completion(f"<answer>{o}</answer>")).outcome for o in problem.params["options"]]
        assert sorted(outcomes) == ["right", "wrong", "wrong", "wrong"]
        assert "ABCD"[outcomes.index("right")] == problem.reference


def test_no_letter_is_favoured():
    letters = Counter(problem.reference for problem in POSED.problems(0, 400))
    # Binomial(400, 1/4): sd 8.7; four letters within four of them
    assert set(letters) == set("ABCD")
    assert all(abs(count - 100) < 35 for count in letters.values())


def test_the_short_prompt_holds_the_options():
    problem = POSED.problems(0, 1)[0]
    question, *options = problem.prompt.removesuffix(">").split("|")
    assert question + ">" == FREE.problems(0, 1)[0].prompt
    assert [option[0] for option in options] == list("ABCD")
    assert [option[1:] for option in options] == problem.params["options"]


def test_the_prompt_in_words_says_nothing_of_the_free_answer():
    problem = find_task("countdown:prompt=words,options=4").problems(0, 1)[0]
    assert "expression alone" not in problem.prompt
    assert problem.prompt.count("<answer>") == 1
    assert all(f"\n{letter}) " in problem.prompt for letter in "ABCD")


@pytest.mark.parametrize(
    "text", ["{}", "({})", "{}.", "The answer is {}.", r"\boxed{{{}}}", "<answer>{}</answer>", "<answer>({})</answer>"]
)
def test_letters_as_models_write_them(text):
    problem = POSED.problems(0, 1)[0]
    for letter in "ABCD":
        grade = POSED.grade(problem, Completion(text.format(letter)))
        assert grade.answer.text == letter
        assert grade.outcome == ("right" if letter == problem.reference else "wrong")


@pytest.mark.parametrize("text", ["E", "AB", "A or B", "24", "", "<answer>3*7</answer>"])
def test_what_is_no_option_is_unparsable(text):
    assert POSED.grade(POSED.problems(0, 1)[0], Completion(text)).outcome == "unparsable"


class Words:
    """A task without distractors of its own."""

    env = "words"

    def problems(self, seed, n, *, split="train"):
        return [
            Problem(f"w{at}", "words", f"{at}? Say it.", f"word {at % 7}", {"question": f"{at}?"}) for at in range(n)
        ]

    def read(self, problem, text):
        return find_task("gym").read(problem, text)

    def grade(self, problem, completion):
        answer = self.read(problem, completion.text)
        return right_or_wrong(answer, answer.text == problem.reference)


def test_other_problems_answers_fill_up():
    for problem in Choices(Words(), 4).problems(0, 10):
        assert len(set(problem.params["options"])) == 4
        assert all(option.startswith("word ") for option in problem.params["options"])


class Even(Words):
    """A task with many right answers, whose distractors are often right."""

    env = "even"

    def problems(self, seed, n, *, split="train"):
        return [Problem(f"e{at}", "even", f"{at}. An even number?", "2", {"question": "Even?"}) for at in range(n)]

    def grade(self, problem, completion):
        answer = self.read(problem, completion.text)
        return right_or_wrong(answer, int(answer.text) % 2 == 0)

    def distractor(self, problem, random):
        return str(random.randint(3, 40))


def test_another_right_answer_is_no_distractor():
    for problem in Choices(Even(), 4).problems(0, 10):
        assert sorted(int(option) % 2 for option in problem.params["options"]) == [0, 1, 1, 1]


def test_too_many_options_for_a_problem_are_refused():
    with pytest.raises(UsageError, match="options=7, or fewer"):
        Choices(Words(), 8).problems(0, 1)
