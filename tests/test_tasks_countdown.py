"""Countdown and Game of 24: drawing, grading by hand values, problems of a file."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from equipoise.base import Completion
from equipoise.errors import UsageError
from equipoise.tasks.countdown import Countdown
from equipoise.tasks.table import find_task

REAL = Path(__file__).parent / "data" / "real"
TASK = Countdown()
PROBLEM = TASK.pose([3, 7, 2, 9], 24)


def graded(text, task=TASK, problem=PROBLEM):
    return task.grade(problem, Completion(text))


def test_the_short_prompt():
    assert PROBLEM.prompt == "3,7,2,9=24>"
    assert PROBLEM.id == "countdown:3,7,2,9=24"


@pytest.mark.parametrize(
    "text", ["2*(3*7-9)", "(7*3-9)*2", "9+3*(7-2)", "9-(2-7)*3", "(2-7)*-3+9", " 2 * ( 3*7 - 9 ) \n"]
)
def test_right_by_hand(text):
    grade = graded(text)
    assert (grade.outcome, grade.correct, grade.feedback) == ("right", True, None)
    assert grade.answer.text in {"2*(3*7-9)", "9+3*(7-2)"}


@pytest.mark.parametrize(
    ("text", "answer", "feedback"),
    [
        ("3+7+2+9", "2+3+7+9", "comes to 21, not 24"),
        ("7*3+2+1", "1+2+3*7", "uses 1, 2, 3, 7, not 2, 3, 7, 9"),
        ("24", "24", "uses 24, not 2, 3, 7, 9"),
        ("3*(7+9)/2", "3*(7+9)/2", "uses /, which is not allowed"),
        ("3*7+9/(2-2)", "3*7+9/(2-2)", "uses 2, 2, 3, 7, 9, not 2, 3, 7, 9"),
        ("9-3*7*2", "9-2*3*7", "comes to -33, not 24"),
    ],
)
def test_wrong_by_hand(text, answer, feedback):
    grade = graded(text)
    assert (grade.outcome, grade.answer.text, grade.reward, grade.feedback) == ("wrong", answer, 0.0, feedback)


def test_division_where_it_is_allowed():
    task = Countdown(operators="+-*/")
    assert graded("3*(7+9)/2", task).outcome == "right"
    problem = task.pose([8, 3, 3, 8], 24)
    assert graded("8/(3-8/3)", task, problem).outcome == "right"
    assert graded("3/(8-8)*3", task, problem).feedback == "divides by 0"
    assert graded("8/3*(8/3)", task, problem).feedback == "comes to 64/9, not 24"
    assert task.solutions(problem) == {"8/(3-8/3)"}


@pytest.mark.parametrize(
    "text",
    [
        r"First 3*7=21. So \boxed{2 \times (3 \times 7 - 9)}",
        "<think>2*(3*7)=42</think><answer>(7×3−9)×2</answer>",
        "The answer is 2*(3*7-9) = 24.",
        "<think>hm</think>\n2*(3*7-9)",
        "2*(3*7-9)=24",
    ],
)
def test_answers_as_models_write_them(text):
    grade = graded(text)
    assert (grade.outcome, grade.answer.text) == ("right", "2*(3*7-9)")
    start, end = grade.answer.span
    assert "7" in text[start:end]


def test_orders_of_one_problem_are_in_one_split():
    by_content = {}
    for split in ("train", "tune", "test"):
        for problem in Countdown(numbers=3, largest=6).problems(0, 60, split=split):
            key = (tuple(sorted(problem.params["numbers"])), problem.params["target"])
            assert by_content.setdefault(key, split) == split


def test_settings_bound_the_problems():
    task = Countdown(numbers=5, smallest=3, largest=9, operators="+*", target_from=50, target_to=60)
    for problem in task.problems("bounds", 50):
        numbers, target = problem.params["numbers"], problem.params["target"]
        assert len(numbers) == 5
        assert set(numbers) <= set(range(3, 10))
        assert 50 <= target <= 60
        assert re.fullmatch(r"[0-9+*()]+", problem.reference)


def test_references_have_no_parentheses_to_spare():
    for problem in TASK.problems(1, 200):
        assert len(problem.prompt) <= 15
        assert len(problem.reference) <= 15
        assert not problem.reference.startswith("((")
        assert "((" not in problem.reference or "))" in problem.reference


def test_impossible_settings_end():
    with pytest.raises(UsageError, match="this task has 0"):
        Countdown(numbers=2, largest=2, target_from=50).problems(0, 1)


def test_game24_is_a_row():
    task = find_task("game24")
    problems = task.problems(0, 30)
    assert {problem.params["target"] for problem in problems} == {24}
    assert all(max(problem.params["numbers"]) <= 13 for problem in problems)
    assert problems[0].env == "game24"


# Puzzles 900 to 919 of tests/data/real/game24.parquet, in order.
PUZZLES = (
    "4 5 6 10; 1 2 4 7; 2 5 8 11; 3 4 4 13; 6 7 8 9; 1 11 11 13; 1 8 10 11; "
    "2 3 6 9; 1 3 5 9; 3 3 7 12; 4 5 7 9; 1 2 8 13; 4 6 6 9; 1 4 4 8; "
    "1 5 10 11; 3 4 6 11; 2 4 8 9; 1 4 5 13; 2 2 7 12; 3 3 6 7"
)


def test_verdicts_on_real_completions_are_those_of_the_authors():
    task = find_task("game24")
    puzzles = [[int(number) for number in puzzle.split()] for puzzle in PUZZLES.split("; ")]
    outcomes = Counter()
    for row in pq.read_table(REAL / "game24.parquet").to_pylist():
        problem = task.pose(puzzles[int(row["prompt_id"].removeprefix("game24-")) - 900], 24)
        grade = task.grade(problem, Completion(row["completion"]))
        assert grade.correct == row["correct"]
        outcomes[grade.outcome] += 1
    assert sum(outcomes.values()) == 2000
    assert min(outcomes["right"], outcomes["wrong"], outcomes["unparsable"]) > 50


def test_distractors_use_the_numbers_and_miss_the_target():
    for problem in TASK.problems(2, 20):
        for text in filter(None, (TASK.distractor(problem, Random(at)) for at in range(10))):
            grade = TASK.grade(problem, Completion(text))
            assert grade.outcome == "wrong"
            assert grade.feedback.startswith("comes to")


# --- files


def test_problems_of_a_parquet_file(tmp_path):
    rows = {"nums": [[1, 2, 3], [4, 5, 6], [7, 8, 9]], "target": [6, 15, 24]}
    pq.write_table(pa.table(rows), tmp_path / "p.parquet")
    task = find_task(f"countdown:file={tmp_path / 'p.parquet'}")
    assert {p.prompt for p in task.problems(0, 3, split="all")} == {"1,2,3=6>", "4,5,6=15>", "7,8,9=24>"}
    parts = []
    for split in ("train", "tune", "test"):
        with pytest.raises(UsageError, match="for split 'all'") as refusal:
            task.problems(0, 3, split=split)
        parts.append(int(re.search(r"has (\d+)", str(refusal.value))[1]))
    assert sum(parts) == 3


def test_problems_of_json_lines_and_a_fixed_target(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps({"puzzle": f"1 1 {a} 6", "rank": a}) + "\n" for a in range(1, 14)))
    problems = find_task(f"game24:file={path}").problems(0, 13, split="all")
    assert sorted(p.params["numbers"][2] for p in problems) == list(range(1, 14))
    assert {p.params["target"] for p in problems} == {24}
    orders = {tuple(p.id for p in find_task(f"game24:file={path}").problems(s, 13, split="all")) for s in range(5)}
    assert len(orders) == 5


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"target": 3}', "none of the columns numbers, nums, puzzle: found target"),
        ('{"numbers": [1, 2]}', "none of the columns target"),
        ('{"numbers": "a b", "target": 3}', "'a b'"),
        ('{"numbers": [1,2,3,4,5,6,7], "target": 3}', "1 to 6 whole numbers"),
        ('{"numbers": [1], "target": -3}', "-3"),
        ('{"numbers": [1], "target": 1.5}', "1.5"),
        ("[1]", "must be whole"),
        ("{", "must be whole"),
        ("", "no rows"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(tmp_path, line, words):
    path = tmp_path / "bad.jsonl"
    path.write_text(line)
    with pytest.raises(UsageError) as problem:
        Countdown(file=str(path)).problems(0, 1, split="all")
    assert words in str(problem.value)


def test_a_problem_file_is_parquet_by_its_bytes_and_text_to_the_last_one(tmp_path):
    path = tmp_path / "x.jsonl"
    pq.write_table(pa.table({"numbers": [[1, 2, 3, 4]], "target": [10]}), path)
    (problem,) = Countdown(file=str(path)).problems(0, 1, split="all")
    assert problem.params["numbers"] == [1, 2, 3, 4]
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(b'{"numbers": [1, 2, 3, 4], "target": 10, "from": "caf\xe9"}\n')
    with pytest.raises(UsageError, match="line 1 is not UTF-8: a problem file must be whole"):
        Countdown(file=str(bad)).problems(0, 1, split="all")


def test_a_missing_file_and_one_that_is_no_parquet(tmp_path):
    with pytest.raises(UsageError, match="there is no problem file"):
        Countdown(file=str(tmp_path / "none.jsonl")).problems(0, 1)
    (tmp_path / "x.parquet").write_text("hello")
    with pytest.raises(UsageError, match="no Parquet file"):
        Countdown(file=str(tmp_path / "x.parquet")).problems(0, 1)
