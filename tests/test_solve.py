"""Strategies run from plain functions: budgets of a question and of a run, Ctrl-C, notebooks, and what is written."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from dataclasses import dataclass

import pandas as pd
import pytest

from equipoise.base import Answer, Choice, Completion, Grade, Question, Sampling
from equipoise.errors import UsageError
from equipoise.infer.ledger import Prices
from equipoise.infer.vote import Majority
from equipoise.lab.interrupting import run_to_end
from equipoise.lab.solve import solve, solve_all
from equipoise.lab.solve_record import HEADS
from equipoise.samplers.recorded import RecordedPool
from equipoise.samplers.scripted import Reply, Scripted


def read(completion):
    return Answer(completion.text) if (completion.text or "").isdigit() else None


def judge(completion: Completion) -> Grade:
    right = completion.text == "4"
    return Grade(read(completion), "right" if right else "wrong", float(right))


def ask(name="q", max_tokens=10, graded=True):
    return Question(name, name, read, Sampling(max_tokens=max_tokens), judge if graded else None)


# --- one question ----------------------------------------------------------------------------------------------------------


def test_a_text_is_answered_with_a_choice():
    sampler = Scripted(["The answer is 391.", "391", "I see no answer\nhere", "The answer is 390."])
    choice = solve("What is 17*23?", sampler, strategy="majority:n=4", budget=1000)
    assert isinstance(choice, Choice)
    assert (choice.answer.text, choice.ballots, choice.abstained) == ("391", {"391": 2.0, "390": 1.0}, 1)
    assert sampler.prompts[0] == [{"role": "user", "content": "What is 17*23?"}]
    plain = Scripted(["391"])
    solve("What is 17*23?", plain, strategy="majority:n=1", chat=False)
    assert plain.prompts == ["What is 17*23?"]


def test_a_question_has_its_budget():
    choice = solve(ask(max_tokens=5), Scripted(["44444", "22222", "33333"]), strategy=Majority(3), budget=10)
    assert (choice.spent.generated, choice.stopped_by, len(choice.drawn)) == (10, "budget", 2)


def test_prices_are_passed_on():
    sampler = Scripted([Reply("4", prompt_tokens=100)])
    choice = solve(ask(), sampler, strategy="majority:n=1", prices=Prices(prompt=1.0, generated=10.0))
    assert choice.spent.money == pytest.approx(110 / 1e6)


def test_inside_a_running_loop_it_runs_all_the_same():
    async def cell():
        return solve(ask(), Scripted(["4"]), strategy="majority:n=1")

    assert asyncio.run(cell()).answer == Answer("4")


def test_ctrl_c_answers_with_what_was_found():
    def say(prompt, number):
        return "7" if number == 0 else "8" * 100_000

    @dataclass(frozen=True)
    class Signalled:
        async def __call__(self, question, metered):
            metered.watch = lambda kind, chunk: (
                os.kill(os.getpid(), signal.SIGINT) if metered.ledger.spent.generated == 100 else None
            )
            return await Majority(4)(question, metered)

    sampler = Scripted(say)
    choice = solve(ask(max_tokens=200_000), sampler, strategy=Signalled())
    assert (choice.answer, choice.stopped_by) == (Answer("7"), "interrupted")
    assert choice.spent.generated == sampler.generated < 5_000
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_reaches_the_thread_of_a_notebook():
    """The caller's loop is running, so the work is in a thread, and the signal comes to the main one."""
    stopped = []

    async def work():
        asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), signal.SIGINT)
        while not stopped:
            await asyncio.sleep(0.01)
        return "ended by itself"

    async def cell():
        return run_to_end(work, stop=lambda: stopped.append(True))

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        # As in a notebook: the loop does not handle the signal itself.
        loop = asyncio.new_event_loop()
        assert loop.run_until_complete(cell()) == "ended by itself"
        loop.close()
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_second_ctrl_c_is_not_caught():
    async def deaf():
        loop = asyncio.get_running_loop()
        for delay in (0.02, 0.1):
            loop.call_later(delay, os.kill, os.getpid(), signal.SIGINT)
        await asyncio.sleep(30)

    with pytest.raises(KeyboardInterrupt):
        run_to_end(deaf, stop=lambda: None)


# --- many questions --------------------------------------------------------------------------------------------------------


def by_name(replies):
    return Scripted(lambda prompt, number: replies[prompt][number])


def test_many_questions_are_counted_one_by_one_and_together():
    sampler = by_name({"a": ["4", "4", "5"], "b": ["?", "7", "7"], "c": ["?", "?", "?"]})
    found = solve_all([ask("a"), ask("b"), ask("c")], sampler, strategy="majority:n=3", at_once=2)
    assert found.rows() == [
        ["a", "4", "yes", "3", "3", "finished"],
        ["b", "7", "no", "3", "3", "finished"],
        ["c", "–", "no", "3", "3", "finished"],
    ]
    assert len(HEADS) == 6
    assert (found.accuracy.value, found.accuracy.n) == (pytest.approx(1 / 3), 3)
    assert (found.tokens.value, found.spent.generated, found.asked) == (3.0, 9, 3)
    assert found.to_dict()["results"][0]["spent"]["generated"] == 3
    assert "<td>a</td>" in found._repr_html_()


def test_nobody_can_say_what_is_right_without_a_judge():
    found = solve_all([ask("a", graded=False)], by_name({"a": ["4"]}), strategy="majority:n=1")
    assert (found.answered[0].correct, found.accuracy.value) == (None, None)


def test_a_run_has_a_budget_of_its_own():
    sampler = Scripted(lambda prompt, number: "4" * 5)
    found = solve_all(
        [ask(name, 5) for name in "abcd"], sampler, strategy=Majority(2), budget=10, run_budget=25, at_once=1
    )
    assert [one.choice.spent.generated for one in found.answered] == [10, 10, 5, 0]
    assert [one.choice.stopped_by for one in found.answered] == ["finished", "finished", "budget", "budget"]
    assert found.spent.generated == sampler.generated == 25


def test_questions_under_way_together_are_at_most_at_once():
    open_now, most = [0], [0]

    @dataclass(frozen=True)
    class Slow:
        async def __call__(self, question, metered):
            open_now[0] += 1
            most[0] = max(most[0], open_now[0])
            await asyncio.sleep(0.001)
            open_now[0] -= 1
            return metered.choice(None, [])

    solve_all([ask(str(i)) for i in range(9)], Scripted([]), strategy=Slow(), at_once=3)
    assert most == [3]


def test_after_ctrl_c_no_further_question_is_asked():
    @dataclass(frozen=True)
    class Stopping:
        async def __call__(self, question, metered):
            if question.id == "1":
                os.kill(os.getpid(), signal.SIGINT)
                await asyncio.sleep(0.05)
            return metered.choice(None, [])

    found = solve_all([ask(str(i)) for i in range(9)], Scripted([]), strategy=Stopping(), at_once=1)
    assert [one.question for one in found.answered] == ["0", "1"]
    assert (found.interrupted, found.asked) == (True, 9)


def test_a_recorded_pool_is_solved_by_its_own_questions(tmp_path):
    rows = [{"prompt_id": p, "answer": a, "correct": a == "4", "n_tokens": 7} for p in "pq" for a in ("4", "4", "5")]
    path = tmp_path / "pool.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    pool = RecordedPool.of(path)
    found = solve_all(pool.questions(), pool, strategy="majority:n=3")
    assert (found.accuracy.value, found.spent.generated) == (1.0, 42)


def test_an_error_of_one_question_is_the_error():
    with pytest.raises(UsageError, match="script has 1 replies"):
        solve_all([ask("a"), ask("b")], Scripted(["4"]), strategy="majority:n=2")


def test_samplers_are_closed_in_the_loop_that_used_them():
    class Closing(Scripted):
        async def close(self):
            closed.append(asyncio.get_running_loop().is_running())

    closed = []
    solve(ask(), Closing(["4"]), strategy="majority:n=1")
    assert closed == [True]


# --- what is written -------------------------------------------------------------------------------------------------------


def test_choices_and_everything_drawn_are_written(tmp_path):
    sampler = by_name({"a": ["4", "x"], "b": ["7", "4"]})
    out = tmp_path / "run"
    found = solve_all([ask("a"), ask("b")], sampler, strategy="majority:n=2", budget=50, out=out)
    lines = [json.loads(line) for line in (out / "choices.jsonl").read_text().splitlines()]
    assert {line["prompt_id"]: line["correct"] for line in lines} == {
        one.question: one.correct for one in found.answered
    }
    assert all(line["strategy"] == "majority:n=2" and line["spent"]["generated"] == 2 for line in lines)
    rows = pd.concat([pd.read_parquet(path) for path in out.glob("rollouts/*/*.parquet")])
    rows = rows.sort_values(["prompt_id", "sample_index"])
    assert rows["completion"].tolist() == ["4", "x", "7", "4"]
    assert [None if pd.isna(answer) else answer for answer in rows["answer"]] == ["4", None, "7", "4"]
    assert set(rows["strategy"]) == {"majority:n=2"}
    assert json.loads((out / "run.json").read_text())["settings"]["strategy_settings"] == {"n": 2}
    with pytest.raises(UsageError, match="holds a run already"):
        solve(ask(), sampler, strategy="majority:n=1", out=out)


@pytest.mark.parametrize(
    ("asked", "settings", "said"),
    [
        ([], {}, "no question"),
        (" ", {}, "empty"),
        (ask(), {"strategy": "forking"}, "is a weight, not a strategy: known are .*majority"),
        (ask(), {"strategy": "majorit"}, "did you mean 'majority'"),
        (ask(), {"strategy": "majority:k=3"}, "unknown setting"),
        ([ask()], {"at_once": 0}, "at_once is 0"),
        (ask(), {"budget": -1}, "0 or more"),
    ],
)
def test_what_cannot_be_solved_is_one_line(asked, settings, said):
    with pytest.raises(UsageError, match=said) as refused:
        (solve_all if isinstance(asked, list) else solve)(asked, Scripted(["4"]), **settings)
    assert "\n" not in str(refused.value)


# --- the command -----------------------------------------------------------------------------------------------------------


def test_the_command_on_a_task(equipoise, tmp_path):
    pytest.importorskip("torch")
    words = ["solve", "--task", "countdown", "--problems", 3, "--strategy", "majority:n=4", "--budget", 30]
    code, out, err = equipoise(*words, "--json")
    told = json.loads(out)
    assert (code, told["asked"], told["answered"]) == (0, 3, 3)
    assert all(one["spent"]["generated"] <= 30 for one in told["results"])
    assert told["spent"]["generated"] == sum(one["spent"]["generated"] for one in told["results"])
    assert "s left" in err
    code, out, _ = equipoise(*words, "-o", tmp_path / "run")
    assert code == 0
    assert out.splitlines()[0].split() == ["question", "answer", "right", "tokens", "samples", "stopped", "by"]
    assert len(out.splitlines()) == 6
    assert len((tmp_path / "run" / "choices.jsonl").read_text().splitlines()) == 3


def test_the_command_on_a_question(equipoise):
    pytest.importorskip("torch")
    code, out, _ = equipoise("solve", "3,4,5,6=24>", "--strategy", "majority:n=4")
    assert code == 0
    assert "stopped by finished: 4 completions" in out
    code, out, err = equipoise("solve")
    assert (code, out) == (2, "")
    assert "one of the two" in err
