"""Decoding as an arm, and questions in several wordings: what is asked for, what is refused, what the ledger says."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import replace

import pytest
from asking import ask, solve
from typer.testing import CliRunner

from equipoise.base import Answer, Grade, Sampling
from equipoise.cli.main import app
from equipoise.errors import UsageError
from equipoise.infer.decoded import Decoded
from equipoise.infer.diverse_prompts import DiversePrompts, worded
from equipoise.infer.ledger import Ledger
from equipoise.infer.metered import Metered
from equipoise.infer.prompts import WAYS, led_by
from equipoise.infer.together import together
from equipoise.infer.vote import Majority
from equipoise.samplers.recorded import RecordedPool
from equipoise.samplers.scripted import Scripted
from equipoise.tasks.asking import ask as ask_problem
from equipoise.tasks.asking import posed_as_chat
from equipoise.tasks.expressions import parse_expression
from equipoise.tasks.table import find_task
from equipoise.wire import DIALECTS, write_request

SAYS = ["7", "4", "4", "?", "9", "4"]


class Listening(Scripted):
    """Keeps how it was asked."""

    def draw(self, prompt, how, **rest):
        self.hows = [*getattr(self, "hows", []), how]
        return super().draw(prompt, how, **rest)


def judged(completion):
    return Grade(Answer(completion.text), "right", 1.0 if completion.text == "9" else 0.0)


# --- decoding as an arm


def test_settings_given_replace_the_questions_and_the_others_stay():
    how = Sampling(max_tokens=9, temperature=0.8, top_p=0.9, extra={"min_p": 0.2, "top_k": 5})
    assert Decoded().change(how) == how
    found = Decoded(temperature=1.6, min_p=0.05, repel=1.0).change(how)
    assert (found.temperature, found.top_p, found.max_tokens) == (1.6, 0.9, 9)
    assert found.extra == {"min_p": 0.05, "top_k": 5, "repel": 1.0}


def test_the_sampler_is_asked_with_them_and_the_vote_is_the_majoritys():
    sampler = Listening(SAYS)
    choice = asyncio.run(Decoded(n=6, edt=0.1)(ask(), Metered(sampler, Ledger())))
    assert [how.extra for how in sampler.hows] == [{"edt": 0.1}]
    plain, _ = solve(Majority(6), SAYS)
    assert (
        (choice.answer, dict(choice.ballots))
        == (plain.answer, dict(plain.ballots))
        == (Answer("4"), {"7": 1, "4": 3, "9": 1})
    )
    best, _ = solve(Decoded(n=6, by="judge"), SAYS, ask(judge=judged))
    assert best.answer == Answer("9")


def test_a_recorded_pool_cannot_be_drawn_in_another_way(tmp_path):
    path = tmp_path / "pool.jsonl"
    rows = [{"prompt_id": "a", "answer": str(i % 2), "correct": i % 2 == 0, "n_tokens": 3} for i in range(8)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    pool = RecordedPool.of(path)
    (question,) = pool.questions()
    assert asyncio.run(Decoded(n=4)(question, Metered(pool, Ledger()))).spent.generated == 12
    for arm in (Decoded(n=4, min_p=0.1), Decoded(n=4, temperature=0.5), Decoded(n=4, top_p=0.5)):
        with pytest.raises(UsageError, match="cannot be drawn again"):
            asyncio.run(arm(question, Metered(pool, Ledger())))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_server_is_told_what_it_knows_and_the_rest_is_refused(dialect):
    def write(**extra):
        return write_request("2+2=", Sampling(extra=extra), model="m", seed=5, dialect=dialect).body

    assert write(min_p=0.1)["min_p"] == 0.1
    if dialect in ("llama.cpp", "openai"):
        assert write(top_n_sigma=1.2)["top_n_sigma"] == 1.2
    else:
        with pytest.raises(UsageError, match="known to llama"):
            write(top_n_sigma=1.2)
    for name in ("edt", "repel", "alpha", "order", "repel_first"):
        with pytest.raises(UsageError, match=name):
            write(**{name: 1})


# --- several wordings


def test_completions_are_spread_over_the_wordings():
    choice, sampler = solve(DiversePrompts(n=6, wordings=4), SAYS)
    seen = Counter(map(str, sampler.prompts))
    assert list(seen.values()) == [2, 2, 1, 1]
    assert list(seen) == ["2+2=", *(f"{way}\n\n2+2=" for way in WAYS[:3])]
    assert (choice.answer, choice.abstained, choice.spent.generated) == (Answer("4"), 1, 6)
    assert len(choice.drawn) == 6


def test_the_judge_may_choose():
    choice, _ = solve(DiversePrompts(n=6, by="judge"), SAYS, ask(judge=judged))
    assert (choice.answer, choice.chosen.text) == (Answer("9"), "9")
    with pytest.raises(UsageError, match="judge"):
        solve(DiversePrompts(by="judge"), SAYS)


def test_a_task_may_have_wordings_of_its_own():
    asked = replace(ask(), reworded=lambda number: "2+2=" if number == 0 else f"{'I' * number}: 2+2=")
    _, sampler = solve(DiversePrompts(n=6, wordings=3), SAYS, asked)
    assert Counter(map(str, sampler.prompts)) == {"2+2=": 2, "I: 2+2=": 2, "II: 2+2=": 2}
    assert worded(asked, 9) == "IIIIIIIII: 2+2="
    with pytest.raises(UsageError, match="use fewer"):
        worded(ask(), len(WAYS) + 1)


def test_countdown_puts_its_numbers_in_other_orders():
    task = find_task("countdown")
    (problem,) = task.problems(3, 1, split="test")
    prompts = [task.reworded(problem, number) for number in range(12)]
    assert prompts[0] == problem.prompt
    assert len(set(prompts)) > 4
    for prompt in prompts:
        numbers, _, target = prompt.rstrip(">").partition("=")
        assert sorted(map(int, numbers.split(","))) == sorted(problem.params["numbers"])
        assert int(target) == problem.params["target"]
    assert prompts == [task.reworded(problem, number) for number in range(12)]
    assert parse_expression(problem.reference).value == problem.params["target"]
    assert ask_problem(task, problem).reworded(1) == prompts[1]
    assert ask_problem(task, posed_as_chat(problem)).reworded(1) == [{"role": "user", "content": prompts[1]}]


def test_words_go_before_the_last_message_of_the_user():
    said = [
        {"role": "system", "content": "s"}, {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"},
    ]  # fmt: skip
    found = led_by(said, "W.")
    assert [message["content"] for message in found] == ["s", "a", "b", "W.\n\nc", "d"]
    assert said[3]["content"] == "c"
    parts = led_by([{"role": "user", "content": [{"type": "image"}]}], "W.")
    assert parts[0]["content"] == [{"type": "text", "text": "W."}, {"type": "image"}]
    assert led_by([{"role": "system", "content": "s"}], "W.")[0] == {"role": "user", "content": "W."}
    assert led_by("a", "W.") == "W.\n\na"


def test_what_is_on_its_way_out_is_not_disturbed():
    """Cancelled, two coroutines end at different times; the slower one still puts everything in order."""
    ended = []

    async def slow(name, steps):
        try:
            await asyncio.sleep(10)
        finally:
            for _ in range(steps):
                await asyncio.sleep(0)
            ended.append(name)

    async def go():
        task = asyncio.ensure_future(together([slow("a", 0), slow("b", 9)]))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(go())
    assert ended == ["a", "b"]


# --- on the command line


def test_flags_reach_the_sampler_and_the_record(tmp_path):
    pytest.importorskip("torch")
    out = tmp_path / "pool"
    flags = ["--min-p", "0.3", "--top-n-sigma", "1.5", "--edt", "0.1", "--repel", "1"]
    common = ["countdown", "-o", str(out), "-n", "6", "--problems", "2", "--json"]
    made = CliRunner().invoke(app, ["sample", "packaged", *common, *flags])
    assert made.exit_code == 0, made.output
    told = json.loads((out / "run.json").read_text())
    expected = {"min_p": 0.3, "top_n_sigma": 1.5, "edt": 0.1, "repel": 1.0}
    assert told["settings"]["decoding"] == expected
    assert {name: told["sampling"][name] for name in expected} == expected
    again = CliRunner().invoke(app, ["sample", "packaged", *common])
    assert "decoding" in str(again.exception)
    asked = ["--task", "countdown", "--problems", "2", "--json"]
    for command in (["solve"], ["compare", "--model", "packaged", "--strategy", "majority:n=4"]):
        found = CliRunner().invoke(app, [*command, *asked, *flags])
        assert found.exit_code == 0, found.output
        assert json.loads(found.stdout)["schema"].startswith(f"equipoise.{command[0]}")
