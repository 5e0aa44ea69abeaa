"""GSM8K and MATH: four outcomes, equal answers in other notation, and a checker that cannot hang."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest

from equipoise.base import Completion
from equipoise.child import Child
from equipoise.errors import MissingExtra, UsageError
from equipoise.tasks import maths
from equipoise.tasks.maths import Maths, compare_maths
from equipoise.tasks.table import find_task

needs_extra = pytest.mark.skipif(find_spec("math_verify") is None, reason="needs the extra 'tasks' (math-verify)")
TASK = Maths(seconds=1.0)


def graded(reference, text, task=TASK):
    return task.grade(task.pose("What is it?", reference, name="0"), Completion(text))


@pytest.mark.parametrize(
    ("reference", "text", "outcome"),
    [
        ("18", r"16 - 3 - 4 = 9, 9 * 2 = \boxed{18}", "right"),
        ("18", "She makes $18.\n#### 18", "right"),
        ("1,200", "The answer is 1200.", "right"),
        ("18", r"\boxed{19}", "wrong"),
        ("18", "I give up", "unparsable"),
        (r"\frac{1}{2}", r"\boxed{0.5}", "right"),
        (r"\text{Evelyn}", r"\boxed{Evelyn}", "right"),
    ],
)
def test_without_the_extra(monkeypatch, reference, text, outcome):
    monkeypatch.setattr(maths, "find_spec", lambda name: None)
    assert graded(reference, text).outcome == outcome


def test_the_extra_is_named_where_it_is_needed(monkeypatch):
    monkeypatch.setattr(maths, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'equipoise\[tasks\]'"):
        graded(r"\sqrt{2}", r"\boxed{\frac{2}{\sqrt{2}}}")


@needs_extra
@pytest.mark.parametrize(
    ("reference", "answer"),
    [
        (r"\sqrt{2}", r"\frac{2}{\sqrt{2}}"),
        ("p - q", "-q + p"),
        (r"2\sqrt{3}", r"\sqrt{12}"),
        (r"\left( 3, \frac{\pi}{2} \right)", r"(3, \pi/2)"),
        ("x^2+2x+1", "(x+1)^2"),
        ("[-2,7]", r"x \in [-2,7]"),
    ],
)
def test_equal_in_other_notation_is_right_and_one_answer(reference, answer):
    grade = graded(reference, rf"So \boxed{{{answer}}}")
    assert (grade.outcome, grade.reward) == ("right", 1.0)
    assert grade.answer.text == graded(reference, rf"\boxed{{{reference}}}").answer.text


@needs_extra
@pytest.mark.parametrize(
    ("reference", "answer"),
    [(r"\sqrt{2}", r"\sqrt{3}"), ("p - q", "q - p"), ("(3, 4)", "(4, 3)"), ("9", "9**9"), (r"\frac{1}{3}", "0.3")],
)
def test_unequal_is_wrong_and_keeps_its_own_form(reference, answer):
    grade = graded(reference, rf"\boxed{{{answer}}}")
    assert (grade.outcome, grade.reward) == ("wrong", 0.0)
    assert grade.answer.text != graded(reference, rf"\boxed{{{reference}}}").answer.text


@needs_extra
def test_what_is_no_mathematics_is_unparsable():
    grade = graded("x+1", r"\boxed{\frac{}{} ++ \\ & }")
    assert (grade.outcome, grade.answer) == ("unparsable", None)


@needs_extra
def test_an_answer_that_takes_for_ever_is_a_timeout_without_a_reward():
    grade = graded("2", r"\boxed{10^{10^{10}}!}")
    assert (grade.outcome, grade.reward, grade.correct) == ("timeout", None, None)
    assert grade.answer is not None
    assert graded("p-q", r"\boxed{-q+p}").outcome == "right"  # a new child


@needs_extra
def test_a_checker_that_dies_is_an_error_without_a_reward(monkeypatch):
    maths._verified.cache_clear()
    tiny = Child(seconds=1.0, memory_mb=40)  # too little to import sympy
    monkeypatch.setattr(maths, "shared_child", lambda **limits: tiny)
    grade = graded("y", r"\boxed{\sqrt{y^2}}")
    maths._verified.cache_clear()
    tiny.close()
    assert (grade.outcome, grade.reward, grade.correct) == ("error", None, None)
    assert grade.feedback


@needs_extra
def test_a_parser_that_reads_nothing_at_all_is_no_verdict_on_the_answer(monkeypatch):
    from equipoise.tasks import maths_worker

    assert maths_worker.compare(["y"], [r"\frac{}{}"]) == "unparsable"
    monkeypatch.setattr(maths_worker, "parse", lambda *args, **settings: [])
    with pytest.raises(MemoryError):
        maths_worker.compare(["y"], [r"\sqrt{y^2}"])


@needs_extra
@pytest.mark.parametrize(
    "answer",
    [
        "9" * 10_000_000,
        "(" * 100_000 + "1" + ")" * 100_000,
        "{" * 5000,
        r"\frac{" * 2000,
        "9**9**9**9",
        "٣",
        "__import__('os').system('true')",
        "x" * 9000,
    ],
)
def test_hostile_answers_never_pass_and_never_hang(answer):
    assert graded("3", f"<answer>{answer}</answer>").outcome in ("wrong", "unparsable", "timeout", "error")


@needs_extra
def test_no_answer_runs_python():
    assert compare_maths("3", "print(3)", 1.0)[0] != "right"
    assert compare_maths("3", "len('abc')", 1.0)[0] != "right"


def test_problems_of_a_file(tmp_path):
    path = tmp_path / "gsm8k.jsonl"
    rows = [
        {"question": f"How many are {n} and {n}?", "answer": f"{n}+{n}=<<{n}+{n}={2 * n}>>{2 * n}\n#### {2 * n}"}
        for n in range(20)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = find_task(f"gsm8k:file={path}")
    problems = task.problems(0, 20, split="all")
    assert sorted(int(problem.reference) for problem in problems) == [2 * n for n in range(20)]
    assert problems[0].env == "gsm8k"
    assert r"\boxed{}" in problems[0].prompt
    splits = [
        {p.id for p in task.problems(0, 2, split=split)} for split in ("train", "tune", "test") if _enough(task, split)
    ]
    assert len(set.union(*splits)) == 2 * len(splits)


def _enough(task, split):
    try:
        return len(task.problems(0, 2, split=split)) == 2
    except UsageError:
        return False


def test_number_distractors_are_wrong(tmp_path):
    path = tmp_path / "p.jsonl"
    rows = [{"problem": f"{n}?", "answer": str(3 * n + 1), "id": f"p{n}"} for n in range(100)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for problem in find_task(f"math:file={path},options=4").problems(0, 50, split="all"):
        assert len(set(problem.params["options"])) == 4
        assert problem.params["options"]["ABCD".index(problem.reference)] == str(
            3 * int(problem.params["free"][6:]) + 1
        )
