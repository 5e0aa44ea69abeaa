"""Recorded pools: what is written is what the model makes, in one go or in several, from this process or by a sampler."""

from __future__ import annotations

import asyncio
import json
import os
import signal

import numpy as np
import pandas as pd
import pytest

torch = pytest.importorskip("torch")

from equipoise.base import Completion, Grade, Problem  # noqa: E402
from equipoise.errors import UsageError  # noqa: E402
from equipoise.infer.ledger import Ledger  # noqa: E402
from equipoise.infer.metered import Metered  # noqa: E402
from equipoise.lab import sample as sample_file  # noqa: E402
from equipoise.lab.sample import sample  # noqa: E402
from equipoise.lab.sample_draws import _runs  # noqa: E402
from equipoise.measures.trace_confidence import trace_confidence  # noqa: E402
from equipoise.models.loaders import load_model  # noqa: E402
from equipoise.rollouts.folder import info_of, open_folder  # noqa: E402
from equipoise.samplers.in_process import InProcess  # noqa: E402
from equipoise.samplers.recorded import RecordedPool  # noqa: E402
from equipoise.samplers.scripted import Reply, Scripted  # noqa: E402
from equipoise.tasks.asking import ask, ask_text, default_split, find_task_or_file  # noqa: E402
from equipoise.tasks.table import find_task  # noqa: E402
from equipoise.tasks.task import AtMost  # noqa: E402

TASK = "countdown:numbers=4"


def rows_of(folder):
    """The rows as pandas reads the Parquet files, in the order of problems and samples."""
    rows = pd.concat([pd.read_parquet(path) for path in sorted(folder.glob("rollouts/*/*.parquet"))])
    return rows.sort_values(["prompt_id", "budget", "sample_index"], kind="stable").reset_index(drop=True)


def same(one, other):
    assert list(one["prompt_id"]) == list(other["prompt_id"])
    for name in ("sample_index", "completion", "answer", "correct", "n_tokens", "finish_reason", "budget"):
        pd.testing.assert_series_equal(one[name], other[name])
    for mine, theirs in zip(one["token_confidences"], other["token_confidences"], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4)


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pools") / "whole"
    return sample("packaged", TASK, folder, problems=12, samples=6, temperature=1.3), folder


def test_what_is_told_is_what_pandas_counts(pool):
    told, folder = pool
    rows = rows_of(folder)
    assert (
        (told.problems, told.rollouts, told.drawn)
        == (12, 72, 72)
        == (rows["prompt_id"].nunique(), len(rows), len(rows))
    )
    numbers = {number.name: number for number in told.estimates}
    by_problem = rows.assign(cut=rows["finish_reason"] == "length", no_answer=rows["answer"].isna()).groupby(
        "prompt_id"
    )
    assert numbers["pass@1"].value == pytest.approx(by_problem["correct"].mean().mean())
    assert numbers["tokens"].value == pytest.approx(by_problem["n_tokens"].mean().mean())
    assert numbers["cut"].value == pytest.approx(by_problem["cut"].mean().mean())
    assert numbers["no_answer"].value == pytest.approx(by_problem["no_answer"].mean().mean())
    assert told.tokens == rows["n_tokens"].sum()
    assert set(rows["temperature"]) == {1.3}
    assert told.to_dict()["pass@1"][0]["n"] == 12
    assert "12 problems" in told._repr_html_()


def test_answers_are_those_of_the_task(pool):
    _, folder = pool
    task = find_task(TASK)
    posed = {problem.id: problem for problem in task.problems(("sample", 0), 12, split="test")}
    for row in rows_of(folder).itertuples():
        grade = task.grade(posed[row.prompt_id], Completion(row.completion, finish=row.finish_reason))
        answer = None if pd.isna(row.answer) else row.answer
        assert (answer, row.correct, row.reward) == (grade.answer and grade.answer.text, grade.correct, grade.reward)


def test_token_lists_fit_and_traces_are_made_of_them(pool):
    _, folder = pool
    for row in rows_of(folder).itertuples():
        for name in ("token_ids", "logprobs_rollout", "entropies", "token_confidences"):
            assert len(getattr(row, name)) == row.n_tokens
        told = json.loads(row.extra)["trace_confidences"]
        expected = {
            rule: trace_confidence(row.token_confidences, rule) for rule in ("mean", "bottom", "lowest", "tail")
        }
        assert told == pytest.approx(expected, abs=1e-5)
    vocab = open_folder(folder).vocab()
    texts = load_model("packaged").tokens
    assert vocab == {token: texts.decode([token]) for token in vocab}


def test_a_sampler_draws_the_same_pool(pool, tmp_path):
    _, folder = pool
    drawn = sample(
        InProcess(load_model("packaged")), TASK, tmp_path / "by-sampler", problems=12, samples=6, temperature=1.3,
        max_tokens=20, at_once=3,
    )  # fmt: skip
    assert drawn.rollouts == 72
    same(rows_of(folder), rows_of(tmp_path / "by-sampler"))


def test_gone_on_with_it_is_the_pool_that_one_go_makes(pool, tmp_path):
    _, folder = pool
    out = tmp_path / "in-parts"
    assert sample("packaged", TASK, out, problems=5, samples=2, temperature=1.3).drawn == 10
    assert sample("packaged", TASK, out, problems=12, samples=6, temperature=1.3, rows=7).drawn == 62
    again = sample("packaged", TASK, out, problems=12, samples=6, temperature=1.3)
    assert (again.drawn, again.rollouts) == (0, 72)
    same(rows_of(folder), rows_of(out))


def test_another_pool_is_not_mixed_in(pool, tmp_path):
    _, folder = pool
    with pytest.raises(UsageError, match=r"was sampled with temperature=1\.3, not 0\.5"):
        sample("packaged", TASK, folder, problems=12, samples=6, temperature=0.5)
    with pytest.raises(UsageError, match="was sampled with model=packaged"):
        sample("packaged:medium", TASK, folder, problems=12, samples=6, temperature=1.3)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("mine")
    with pytest.raises(UsageError, match="no run folder"):
        sample("packaged", TASK, tmp_path / "notes", problems=1, samples=1)


def test_ctrl_c_keeps_the_batches_that_were_drawn(pool, tmp_path, monkeypatch):
    _, folder = pool
    real = sample_file.draw_batches

    def stopped_in_the_second(*args, **settings):
        yield next(iter(real(*args, **settings)))
        raise KeyboardInterrupt

    monkeypatch.setattr(sample_file, "draw_batches", stopped_in_the_second)
    out = tmp_path / "stopped"
    first = sample("packaged", TASK, out, problems=12, samples=6, temperature=1.3, rows=24)
    assert (first.interrupted, first.rollouts) == (True, 24)
    monkeypatch.setattr(sample_file, "draw_batches", real)
    second = sample("packaged", TASK, out, problems=12, samples=6, temperature=1.3)
    assert (second.interrupted, second.drawn) == (False, 48)
    same(rows_of(folder), rows_of(out))


def test_a_budget_is_a_limit_and_its_completions_begin_alike(tmp_path):
    told = sample("packaged", TASK, tmp_path / "b", problems=6, samples=4, budgets=(4, 9, 20))
    rows = rows_of(tmp_path / "b")
    assert [number.at["budget"] for number in told.estimates if number.name == "pass@1"] == [4, 9, 20]
    assert rows.groupby("budget")["n_tokens"].max().le([4, 9, 20]).all()
    wide = rows.pivot(index=["prompt_id", "sample_index"], columns="budget", values="completion")
    assert all(long.startswith(short) for short, long in zip(wide[4], wide[20], strict=True))
    pool = RecordedPool.of(tmp_path / "b", budget=9)
    assert pool.budgets == (4, 9, 20)
    assert rows["group_id"].nunique() == 18
    with pytest.raises(UsageError, match="different numbers"):
        sample("packaged", TASK, tmp_path / "c", budgets=(4, 4))


def test_token_lists_of_a_share_are_those_of_the_same_problems(tmp_path):
    sample("packaged", TASK, tmp_path / "some", problems=40, samples=2, tokens=0.4)
    rows = rows_of(tmp_path / "some")
    listed = rows.groupby("prompt_id")["token_ids"].apply(lambda lists: lists.notna().mean())
    assert set(listed) == {0.0, 1.0}
    assert 5 <= (listed == 1).sum() <= 28
    assert all("trace_confidences" in json.loads(extra) for extra in rows["extra"])
    sample("packaged", TASK, tmp_path / "more", problems=40, samples=1, tokens=0.7)
    more = rows_of(tmp_path / "more").dropna(subset="token_ids")["prompt_id"]
    assert set(listed[listed == 1].index) < set(more)


def test_the_pool_replays_as_recorded(pool):
    _, folder = pool
    recorded, rows = RecordedPool.of(folder), rows_of(folder)

    async def draw(question):
        return await Metered(recorded, Ledger()).draw(question, n=6).completions()

    for question in recorded.questions(seed=None):
        part = rows[rows["prompt_id"] == question.id]
        drawn = asyncio.run(draw(question))
        assert [c.n_tokens for c in drawn] == part["n_tokens"].tolist()
        assert [c.grade.correct for c in drawn] == part["correct"].tolist()
        for completion, values in zip(drawn, part["token_confidences"], strict=True):
            np.testing.assert_array_equal(np.float32(completion.token_confidences), values)


def test_provenance_and_settings_are_written(pool):
    info = info_of(pool[1] / "run.json")
    assert (info.model, info.settings["task"], info.settings["samples"]) == ("packaged", TASK, 6)
    assert info.provenance["entropies"]["temperature"] == 1.3
    assert info.provenance["token_confidences"] == {"k": 20, "kind": "raw"}


# --- any sampler -----------------------------------------------------------------------------------------------------------


class Words:
    """A task whose right answer is the word "yes"; it has no seed and no splits."""

    env = "words"

    def problems(self, seed, n, *, split="train"):
        return [Problem(f"w{i}", "words", f"say yes {i}") for i in range(n)]

    def read(self, problem, text):
        return None

    def grade(self, problem, completion):
        right = completion.text == "yes"
        return Grade(None, "right" if right else "wrong", float(right))


def test_what_failed_is_not_recorded_and_is_drawn_another_time(tmp_path):
    fails = {(1, 2), (0, 0)}

    def say(prompt, number):
        problem = int(prompt[0]["content"].rsplit(" ", 1)[1])
        return (
            Reply("ye", error="reset")
            if (problem, number) in fails
            else Reply("yes" if number else "no", thinking="hm")
        )

    sampler = Scripted(say, chunk=2)
    out = tmp_path / "served"
    first = sample(sampler, Words(), out, problems=3, samples=4, top_logprobs=None)
    assert (first.rollouts, len(sampler.prompts)) == (10, 12)
    fails.clear()
    second = sample(sampler, Words(), out, problems=3, samples=4, top_logprobs=None)
    assert (second.drawn, second.rollouts, len(sampler.prompts)) == (2, 12, 14)
    rows = rows_of(out)
    assert (rows["completion"] == "yes").sum() == 9
    assert rows["messages"].notna().all()
    assert set(rows["n_thinking"]) == {2}
    assert {number.name: number.value for number in second.estimates}["pass@1"] == 0.75


def test_a_retry_leaves_only_its_last_try(tmp_path):
    sample(
        Scripted(lambda p, i: Reply("yes", restarts=5)),
        Words(),
        tmp_path / "r",
        problems=1,
        samples=2,
        top_logprobs=None,
    )
    assert rows_of(tmp_path / "r")["completion"].tolist() == ["yes", "yes"]
    assert rows_of(tmp_path / "r")["n_tokens"].tolist() == [3, 3]


def test_ctrl_c_keeps_what_a_sampler_had_finished(tmp_path):
    def say(prompt, number):
        if prompt[0]["content"] == "say yes 0":
            return "yes"
        os.kill(os.getpid(), signal.SIGINT)
        return "y" * 100_000

    settings = {"samples": 4, "top_logprobs": None, "max_tokens": 10**6, "at_once": 1}
    sampler = Scripted(say)
    told = sample(sampler, Words(), tmp_path / "s", problems=5, **settings)
    assert told.interrupted
    assert rows_of(tmp_path / "s")["completion"].tolist() == ["yes"] * 4
    assert sampler.generated < 1000
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_error_of_the_sampler_is_the_error_and_not_a_group_of_them(tmp_path):
    with pytest.raises(UsageError, match="script has 1 replies"):
        sample(Scripted(["yes"]), Words(), tmp_path / "e", problems=2, samples=2, top_logprobs=None)


def test_numbers_that_follow_each_other_are_one_draw():
    assert list(_runs([5, 0, 1, 2, 7, 8])) == [range(3), range(5, 6), range(7, 9)]
    assert list(_runs([])) == []


# --- questions -------------------------------------------------------------------------------------------------------------


def test_a_problem_as_a_question_reads_without_its_checker_and_judges_with_it():
    task = find_task(TASK)
    first, second = task.problems(0, 2)
    question = ask(task, first, seed=3)
    right = Completion(f"<answer>{first.reference}</answer>", finish="stop")
    assert question.read(right) == task.read(first, right.text)
    assert (question.judge(right).outcome, question.judge(Completion("no idea")).outcome) == ("right", "unparsable")
    assert question.read(Completion(first.reference, finish="length")) is None  # it may have gone on
    assert len({ask(task, p, seed=s).seed for p in (first, second) for s in (0, 1)}) == 4


def test_a_text_as_a_question_reads_what_is_stated_or_a_short_line():
    read = ask_text("What is 17*23?").read
    assert read(Completion("17*23 = 391, so the answer is \\boxed{391}.", finish="stop")).text == "391"
    assert read(Completion(" 391\n", finish="stop")).text == "391"
    assert read(Completion("I would rather\nnot say", finish="stop")) is None
    with pytest.raises(UsageError, match="empty"):
        ask_text("  ")


def test_a_problem_file_is_a_task(tmp_path):
    maths, numbers = tmp_path / "m.jsonl", tmp_path / "n.jsonl"
    maths.write_text('{"question": "1+1?", "answer": "2"}\n')
    numbers.write_text('{"numbers": [1, 2, 3, 4], "target": 10}\n')
    assert find_task_or_file(str(maths)).problems(0, 1, split="all")[0].reference == "2"
    assert find_task_or_file(str(numbers)).problems(0, 1, split="all")[0].params["target"] == 10
    assert find_task_or_file("countdown").env == "countdown"
    assert (default_split(find_task_or_file(str(maths))), default_split(find_task("countdown"))) == ("all", "test")


# --- the command -----------------------------------------------------------------------------------------------------------


def test_the_command_prints_only_json_where_asked(equipoise, tmp_path):
    code, out, err = equipoise("sample", "packaged", TASK, "-o", tmp_path / "p", "-n", 2, "--problems", 3, "--json")
    told = json.loads(out)
    assert (code, told["n"], told["problems"]) == (0, 6, 3)
    assert "s left" in err
    code, out, _ = equipoise("sample", "packaged", TASK, "-o", tmp_path / "p", "-n", 2, "--problems", 3)
    assert code == 0
    assert "6 completions of 3 problems" in out
    assert "0 drawn" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["packaged", "countdwn"], "did you mean 'countdown'"),
        (["nowhere.safetensors", "countdown"], "cannot read nowhere.safetensors"),
        (["packaged", "countdown", "--served", "qwen"], "give the server's URL"),
        (["packaged", "countdown", "--split", "teest"], "did you mean 'test'"),
        (["packaged", "gsm8k"], "file=PATH"),
    ],
)
def test_what_cannot_be_sampled_is_one_line(equipoise, tmp_path, words, said):
    code, out, err = equipoise("sample", *words, "-o", tmp_path / "x")
    assert (code, out) == (2, "")
    assert said in err.strip().splitlines()[-1]


@pytest.mark.parametrize(
    "words",
    [
        ("sample", "packaged", "TASK", "-n", 1, "-o", "OUT"),
        ("probe", "--model", "packaged", "--task", "TASK", "-n", 1, "--budgets", "4,8,12", "-o", "OUT"),
        ("solve", "--task", "TASK", "--strategy", "single"),
        ("compare", "--model", "packaged", "--task", "TASK", "--strategies", "single,majority:n=2", "--repeats", 1),
    ],
    ids=lambda words: words[0],
)
def test_the_default_number_of_problems_is_no_more_than_a_file_holds(equipoise, tmp_path, words):
    file = tmp_path / "three.jsonl"
    targets = (24, 12, 10)
    file.write_text("".join(json.dumps({"numbers": [3, 4, 5, 6], "target": target}) + "\n" for target in targets))
    words = [{"TASK": f"countdown:file={file}", "OUT": tmp_path / "out"}.get(word, word) for word in words]
    code, out, err = equipoise(*words, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["asked" if words[0] == "solve" else "problems"] == 3
    code, out, err = equipoise(*words, "--problems", 4, "--json")
    assert code == 2
    assert "4 different problems were asked for, and this task has 3 in split 'all': ask for fewer (--problems" in err


def test_a_split_of_which_a_file_has_no_problem_is_refused(tmp_path):
    file = tmp_path / "one.jsonl"
    file.write_text('{"numbers": [3, 4, 5, 6], "target": 24}\n')
    task, given, refused = find_task("countdown", file=str(file)), [], []
    for split in ("train", "tune", "test"):  # one problem is in one of them
        try:
            given.append(task.problems(0, AtMost(5), split=split))
        except UsageError as problem:
            refused.append(str(problem))
    assert [len(problems) for problems in given] == [1]
    assert len(refused) == 2
    assert "has 0 in split" in refused[0]
