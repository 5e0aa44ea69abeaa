"""The bridge to reasoning-gym: its own scores, seeds that share nothing, and code that is not run."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from equipoise.base import Completion
from equipoise.errors import MissingExtra, UsageError
from equipoise.tasks import gym
from equipoise.tasks.gym import Gym
from equipoise.tasks.table import find_task

needs_extra = pytest.mark.skipif(find_spec("reasoning_gym") is None, reason="needs the extra 'tasks' (reasoning-gym)")


def test_the_extra_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setattr(gym, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'equipoise\[tasks\]'"):
        Gym().problems("another seed", 1)


@needs_extra
@pytest.mark.parametrize("name", ["chain_sum", "word_sorting", "knights_knaves", "pool_matrix", "simple_equations"])
def test_references_are_right_and_problems_come_again(name):
    task = find_task(f"gym:dataset={name}")
    problems = task.problems(3, 12)
    assert task.problems(3, 12) == problems
    assert task.problems(3, 4) == problems[:4]
    assert len({problem.id for problem in problems}) == 12
    for problem in problems:
        grade = task.grade(problem, Completion(f"<think>…</think><answer>{problem.reference}</answer>"))
        assert (grade.outcome, grade.reward) == ("right", 1.0)
        assert task.grade(problem, Completion("<answer>no idea at all</answer>")).outcome == "wrong"
        assert task.grade(problem, Completion("")).outcome == "unparsable"


@needs_extra
def test_neighbouring_seeds_and_splits_share_no_problem():
    # With seed + index, seeds 0 and 1 would share all but one item.
    task = find_task("gym:dataset=chain_sum,min_terms=4,max_terms=6,min_digits=3,max_digits=5")
    sets = [{p.id for p in task.problems(seed, 30, split=s)} for seed in (0, 1, 2, "0") for s in ("train", "test")]
    assert len(set.union(*sets)) == 30 * len(sets)


@needs_extra
def test_settings_reach_the_dataset():
    problems = find_task("gym:dataset=chain_sum,min_terms=9,max_terms=9,min_digits=1,max_digits=1").problems(0, 5)
    for problem in problems:
        signs = [part for part in problem.params["question"].split() if part in "+-"]
        assert len(signs) == 8


@needs_extra
@pytest.mark.parametrize("spec", ["gym:dataset=no_such_dataset", "gym:dataset=chain_sum,no_such_setting=3"])
def test_what_reasoning_gym_refuses_is_a_usage_error(spec):
    with pytest.raises(UsageError, match="reasoning-gym made no problems"):
        find_task(spec).problems(0, 1)


@needs_extra
def test_a_partial_score_is_a_reward_and_wrong():
    # ProceduralDataset's own scorer: the reference within a longer answer scores their length ratio.
    task = find_task("gym:dataset=chain_sum")
    problem = task.problems(0, 1)[0]
    given = f"{problem.reference} apples"
    grade = task.grade(problem, Completion(f"<answer>{given}</answer>"))
    assert (grade.outcome, grade.reward) == ("wrong", len(problem.reference) / len(given))


@needs_extra
@pytest.mark.parametrize("name", ["string_insertion", "binary_matrix", "spiral_matrix", "polynomial_multiplication"])
@pytest.mark.parametrize(
    "answer",
    [
        "[__import__('pathlib').Path('{0}').write_text('x')]",
        "[open('{0}', 'w')]",
        "[exec (\"open('{0}', 'w')\")]",
        "9**9**9**9**9",
        "(" * 100_000,
        "[" * 9000,
        "9" * 1_000_000,
    ],
)
def test_answers_that_scorers_would_evaluate_do_no_harm(tmp_path, name, answer):
    task = find_task(f"gym:dataset={name},seconds=1.0")
    grade = task.grade(
        task.problems(0, 1)[0], Completion(f"<answer>{answer.replace('{0}', str(tmp_path / 'new'))}</answer>")
    )
    assert grade.outcome in ("wrong", "unparsable", "timeout", "error")
    assert not grade.reward or grade.reward < 0.1
    assert list(tmp_path.iterdir()) == []


@needs_extra
def test_the_guard_holds_where_the_filter_does_not(tmp_path, monkeypatch):
    monkeypatch.setattr(gym, "_CODE", gym.re.compile("(?!)"))
    task = find_task("gym:dataset=string_insertion,seconds=1.0")
    path = tmp_path / "new"
    for answer in (f"[open({str(path)!r}, 'w').write('x')]", f"[__import__('os').system('touch {path}')]"):
        grade = task.grade(task.problems(0, 1)[0], Completion(f"<answer>{answer}</answer>"))
        assert grade.outcome != "right"
    assert not path.exists()


@needs_extra
def test_multiple_choice_of_a_gym_dataset():
    task = find_task("gym:dataset=chain_sum,options=4")
    for problem in task.problems(0, 5):
        assert len(set(problem.params["options"])) == 4
        assert task.grade(problem, Completion(problem.reference)).outcome == "right"
