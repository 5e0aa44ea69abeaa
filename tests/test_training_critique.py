"""The critique loop: what is asked again, what is learnt from the answers, and what it costs."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
import pytest
from slow_training import CAREFUL, Slow, assert_near, grpo_advantages, newest, ppo, step_rows
from tiny_training import TASK, TOKENS, read_metrics, read_rollouts

from equipoise.base import Answer, Completion, Grade, Problem
from equipoise.errors import UsageError
from equipoise.lab.make_refiner import second_tries
from equipoise.models.checkpoint import save_gpt
from equipoise.models.gpt import GPT, GPTConfig
from equipoise.rollouts.groups import Groups
from equipoise.tasks.again import ask_again
from equipoise.tasks.table import find_task
from equipoise.training.collect import Batch
from equipoise.training.critique import CritiqueLoop, failed, refine
from equipoise.training.sft import fine_tune, make_pairs

LOOP = {"demonstrations": ("critique_loop:tries=3,coef=0.5",)}
MANY_FAIL = {"prompts": 24, "samples": 4}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny GPT that was shown solutions, and solutions after a wrong try."""
    task, tiny = find_task(TASK), GPT(GPTConfig(TOKENS.size, width=32, layers=1, heads=2, context=40))
    pairs = make_pairs(task, seed="warm up", n=256)
    for problem in task.problems("warm up", 256):
        wrong = Completion(task.distractor(problem, Random(problem.id)) or "1+1")
        prompt = ask_again(task, problem, wrong, task.grade(problem, wrong))
        pairs += [] if prompt is None else [(prompt, problem.reference)]
    fine_tune(tiny, TOKENS, pairs, steps=300, batch=64, lr=1e-2, seed=0)
    path = tmp_path_factory.mktemp("model") / "tiny.safetensors"
    save_gpt(path, tiny, TOKENS)
    return path


def refined_rows(folder, step):
    return [row for row in read_rollouts(folder) if row["split"] == "refined" and row["step"] == step]


# ---------------------------------------------------------------- what is asked


def test_the_short_form_of_a_second_try_is_the_first_one_and_what_it_comes_to():
    task = find_task("countdown")
    problem = task.pose([3, 7, 2, 9], 24, reference="(9-7)*(3*4)")

    def again(text):
        return ask_again(task, problem, Completion(text), task.grade(problem, Completion(text)))

    assert again("3*7+2-9") == "3,7,2,9=24>3*7+2-9=14>"
    assert again("3-7-2-9") == "3,7,2,9=24>3-7-2-9=-15>"
    assert again("3+7+2") == "3,7,2,9=24>3+7+2=12>"  # not all of the numbers
    assert again("3/9+7+2") == "3,7,2,9=24>3/9+7+2=28/3>"
    for nothing_to_say in ("3*(7", "3/(2-2)+7+9", ""):
        assert again(nothing_to_say) is None
    right = task.pose([3, 7, 2, 9], 21)
    assert ask_again(task, right, Completion("3+7+2+9"), task.grade(right, Completion("3+7+2+9"))) is None


def test_in_words_the_checker_is_quoted_and_a_chat_goes_on():
    task = find_task("countdown:prompt=words")
    problem = task.pose([3, 7, 2, 9], 24, reference="GOLD")
    wrong = Completion("<answer>3*7+2-9</answer>")
    prompt = ask_again(task, problem, wrong, task.grade(problem, wrong))
    assert prompt.startswith(problem.prompt)
    assert "<answer>3*7+2-9</answer>" in prompt
    assert "The checker says: comes to 14, not 24." in prompt
    assert "GOLD" not in prompt
    chat = Problem("p", None, [{"role": "user", "content": "2+2?"}], "4")
    messages = ask_again(find_task("chains"), chat, Completion("5"), Grade(Answer("5"), "wrong", 0.0))
    assert [m["role"] for m in messages] == ["user", "assistant", "user"]
    assert "The checker says: it is wrong." in messages[2]["content"]
    assert ask_again(task, chat, Completion("5"), Grade(None, "timeout", None)) is None


def made(answers, right):
    """A batch of one row of answers for each problem; None cannot be read, "?" breaks the checker."""
    grades = [
        Grade(None, "unparsable", 0.0)
        if a is None
        else Grade(None, "timeout", None)
        if a == "?"
        else Grade(Answer(a), "right" if a in right else "wrong", float(a in right))
        for row in answers
        for a in row
    ]
    answers_PG = np.array([None if g.answer is None else g.answer.text for g in grades], dtype=object)
    shape = np.shape(answers)
    correct = np.array([np.nan if g.correct is None else float(g.correct) for g in grades]).reshape(shape)
    groups = Groups(tuple(map(str, range(shape[0]))), np.ones(shape, dtype=bool), correct_PG=correct)
    problems = [Problem(f"p{i}", None, f"q{i}", "gold") for i in range(shape[0])]
    texts = [Completion(a) for row in answers for a in row]
    return Batch(problems, texts, grades, groups, answers_PG.reshape(shape), None)


def test_only_problems_without_a_right_answer_are_asked_again_and_different_answers_first():
    batch = made(
        [
            ["a", "a", "b", "a", "c"],
            ["a", "x", "b", "a", "c"],  # solved
            ["?", "a", "a", "?", None],  # two that the checker could not judge
            ["?", "?", "?", "?", "?"],
        ],
        right={"x"},
    )
    assert failed(batch) == [[0, 2, 4, 1, 3], [11, 14, 12], []]


@pytest.mark.parametrize("settings", [{"tries": 0}, {"coef": -1.0}])
def test_settings_that_mean_nothing_are_refused(settings):
    with pytest.raises(UsageError, match="critique_loop needs tries >= 1 and coef >= 0"):
        CritiqueLoop(**settings)


def test_prompts_that_leave_no_room_are_not_asked():
    batch = made([["bb", "a"]], right=set())
    asked = []

    def sample(problems):
        asked.extend(problems)
        return made([["gold"]], right=set())

    # "q0\n\nYour answer was:\na\n\nThe checker says…": one character less than with "bb".
    longest = len(ask_again(find_task("chains"), batch.problems[0], batch.completions[1], batch.grades[1]))
    tokens = type("Letters", (), {"encode": staticmethod(list), "pad": 0})
    lesson = refine(CritiqueLoop(), batch, find_task("chains"), tokens, most_prompt=longest, sample=sample)
    assert [problem.id for problem in asked] == ["p0 again 1"]
    assert (lesson.parents, lesson.learnt, lesson.n_right) == ((1,), None, 0)
    assert refine(CritiqueLoop(), batch, find_task("chains"), tokens, most_prompt=3, sample=sample) is None


# ---------------------------------------------------------------- what is learnt


def test_a_step_learns_right_refinements_under_the_problem_as_posed(run, model):
    folder = run(method=LOOP, sampling=MANY_FAIL, learning=CAREFUL | {"steps": 1, "rows": 7}, save_every=1)
    rows, refined = step_rows(folder, 1), refined_rows(folder, 1)
    by_group = {}
    for row in rows:
        by_group.setdefault(row["group_id"], []).append(row)
    unsolved = {name: own for name, own in by_group.items() if not any(row["correct"] for row in own)}
    assert 0 < len(unsolved) < len(by_group)
    # Three wrong tries of every problem without a right one are asked again; each prompt holds the try that it refines.
    assert Counter(row["group_id"] for row in refined) == dict.fromkeys(unsolved, 3)
    for row in refined:
        parent = by_group[row["group_id"]][int(row["parent_id"])]
        assert row["prompt"].startswith(f"{parent['prompt']}{parent['completion']}=")
    lessons = {}
    for row in refined:
        if row["correct"]:
            lessons.setdefault(
                (row["group_id"], row["completion"]), row | {"prompt": row["prompt"].split(">")[0] + ">"}
            )
    assert lessons
    slow, line = Slow(model), read_metrics(folder)[1]
    loss, norm = slow.update(rows, grpo_advantages(rows), ppo, lr=0.5e-4, lessons=list(lessons.values()), coef=0.5)
    assert line["loss"] == pytest.approx(loss, abs=1e-6)
    assert line["grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert_near(newest(folder, "optimiser"), slow.moments(), 1e-6)
    assert line["rollouts"] == len(rows) + len(refined)
    assert line["critique/asked"] == len(refined)
    assert line["critique/right"] == sum(row["correct"] for row in refined)
    assert line["critique/learnt"] == len(lessons)
    assert line["accuracy"] == pytest.approx(np.mean([row["correct"] for row in rows]))


def test_lessons_are_learnt_where_filters_leave_nothing_else(run):
    """With one completion of a problem no group is mixed: all that can be learnt from are refinements."""
    settings = {"sampling": {"samples": 1, "prompts": 12}, "learning": {"steps": 3, "updates": 2}}
    filters = {"filters": ("dynamic_sampling",)}
    taught, untaught = run(method=LOOP | filters, **settings), run(method=filters, **settings)
    lines = read_metrics(taught)[1:]
    assert [("loss" in line) for line in lines] == [line["critique/learnt"] > 0 for line in lines]
    assert any("loss" in line for line in lines)
    assert not any("loss" in line for line in read_metrics(untaught)[1:])
    updates = sum(min(2, int(line["critique/learnt"])) for line in lines)
    assert int(newest(taught, "optimiser")["0.step"]) == updates


def test_every_update_takes_its_share_of_the_lesson(run):
    folder = run(method=LOOP, sampling=MANY_FAIL, learning={"steps": 2, "updates": 3})
    again = run(method=LOOP, sampling=MANY_FAIL, learning={"steps": 2, "updates": 3})
    assert_near(newest(folder), newest(again), 0)
    without = run(sampling=MANY_FAIL, learning={"steps": 2, "updates": 3})
    first, plain = read_metrics(folder)[1], read_metrics(without)[1]
    assert first["accuracy"] == plain["accuracy"]  # the step's own completions are those of a run without a critic
    assert first["loss"] > plain["loss"]
    assert not any("rollouts" in line or "critique/asked" in line for line in read_metrics(without))


# ---------------------------------------------------------------- a model that reads second tries


def test_pairs_of_second_tries_end_in_the_reference():
    task = find_task(TASK)
    problems = task.problems("pairs", 4)
    texts = [text for problem in problems for text in ("1+1", problem.reference, "(", "1+1")]
    grades = [task.grade(problems[i // 4], Completion(text)) for i, text in enumerate(texts)]
    batch = Batch(problems, [Completion(text) for text in texts], grades, None, np.empty((4, 4), dtype=object), None)
    assert second_tries(task, batch) == [(f"{problem.prompt}1+1=2>", problem.reference) for problem in problems]
