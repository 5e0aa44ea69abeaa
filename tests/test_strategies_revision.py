"""Sequential revision: what is put back, when it stops, and which answer of the chain is taken."""

from __future__ import annotations

import pytest
from asking import ask, graded, solve

from equipoise.base import Answer, Grade
from equipoise.errors import UsageError
from equipoise.infer.revision import Revision
from equipoise.samplers.scripted import Reply


def checker(right):
    def judge(completion):
        ok = completion.text == right
        return Grade(None, "right" if ok else "wrong", float(ok), feedback=f"{completion.text} is off")

    return judge


def test_the_last_reply_and_its_feedback_are_put_back():
    choice, sampler = solve(Revision(turns=3), ["5", "6", "7"], ask(judge=checker("9")))
    first, second, third = sampler.prompts
    assert first == "2+2="
    assert second.startswith(
        "2+2=5\n\nA checker says:\n<feedback>\n5 is off\n</feedback>\n\nGo through your last reply"
    )
    assert third.startswith("2+2=6\n\n")  # not the first reply any more
    assert (len(choice.drawn), choice.stopped_by) == (3, "finished")


def test_it_stops_at_the_first_that_the_judge_calls_right():
    choice, sampler = solve(Revision(turns=4), ["5", "5", "4", "5"], ask(judge=checker("4")))
    assert (choice.answer, choice.stopped_by, sampler.generated) == (Answer("4"), "first_right", 3)
    assert choice.chosen is choice.drawn[2]
    assert choice.ballots == {"5": 2.0, "4": 1.0}


@pytest.mark.parametrize(("pick", "answer"), [("vote", "5"), ("last", "6")])
def test_without_a_judge_it_goes_on_and_says_so(pick, answer):
    choice, sampler = solve(Revision(turns=4, pick=pick), ["5", "5", "6", "?"])
    assert (choice.answer, choice.abstained, len(sampler.prompts)) == (Answer(answer), 1, 4)
    assert choice.notes == ("the question has no judge: revised without feedback",)


def test_the_judge_may_pick_where_its_feedback_is_not_used():
    strategy = Revision(turns=3, pick="judge", feedback="none")
    choice, sampler = solve(strategy, ["5", "6", "5"], ask(judge=graded(_5=0.1, _6=0.4)))
    assert (choice.answer, choice.notes) == (Answer("6"), ())
    assert all("checker" not in prompt for prompt in sampler.prompts)
    with pytest.raises(UsageError, match="picks by judge need a verifier"):
        solve(strategy, ["5"])


def test_a_turn_without_a_reply_asks_afresh():
    choice, sampler = solve(
        Revision(turns=3, feedback="none"), [Reply("", error="reset"), Reply("", thinking="hm"), "5"]
    )
    assert sampler.prompts == ["2+2=", "2+2=", "2+2="]
    assert choice.notes[-1] == "2 replies had no text to revise: the question was asked again"


def test_a_chat_goes_on_as_a_chat():
    chat = [{"role": "user", "content": "2+2="}]
    _, sampler = solve(Revision(turns=2), ["5", "4"], ask(prompt=chat))
    assert [message["role"] for message in sampler.prompts[1]] == ["user", "assistant", "user"]
    assert sampler.prompts[1][1]["content"] == "5"
    assert chat == [{"role": "user", "content": "2+2="}]


def test_the_chain_so_far_answers_when_the_budget_ends():
    choice, sampler = solve(Revision(turns=9), lambda p, i: "55", ask(3), budget=5)
    assert (choice.answer, choice.stopped_by, sampler.generated) == (Answer("55"), "budget", 5)
    assert [c.finish for c in choice.drawn] == ["stop", "stop", "budget"]


def test_settings_that_mean_nothing_are_refused():
    for wrong, message in (({"turns": 0}, "turns is 1 or more"), ({"pick": "best"}, "unknown pick 'best'")):
        with pytest.raises(UsageError, match=message):
            Revision(**wrong)
