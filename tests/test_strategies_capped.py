"""Hard caps on thinking, budget forcing, and a budget split over parallel completions. A token is a character here."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from asking import ask, read, solve, with_how

from equipoise.base import Answer, Completion, Grade, Question, Sampling
from equipoise.errors import UsageError
from equipoise.infer.capped import Capped
from equipoise.infer.ledger import Ledger
from equipoise.infer.metered import Metered
from equipoise.infer.parallel import Parallel
from equipoise.infer.vote import Majority
from equipoise.samplers.scripted import Reply, Scripted

CHAT = [{"role": "user", "content": "Q"}]


def think(*, first, then="42"):
    """A model that says `first` to the question and `then` once its reply is begun."""
    return lambda prompt, index: first if prompt in ("Q", CHAT) else then


def capped(strategy, say, *, prompt="Q", max_tokens=100, **more):
    return solve(strategy, say, ask(max_tokens, prompt=prompt), **more)


def test_at_the_cap_the_end_marker_comes_and_then_the_answer():
    choice, sampler = capped(Capped(10, 5), think(first="t" * 50))
    assert sampler.prompts == ["Q", "Q" + "t" * 10 + "\n</think>\n\n"]
    assert (choice.answer, choice.stopped_by) == (Answer("42"), "finished")
    assert (choice.chosen.thinking, choice.chosen.text, choice.chosen.finish) == ("t" * 10, "42", "stop")
    assert (choice.spent.thinking, choice.spent.answer, sampler.generated) == (10, 2, 12)
    assert choice.chosen.n_tokens == 12


def test_thinking_that_ends_by_itself_takes_one_request():
    choice, sampler = capped(Capped(50, 5), think(first="abc</think>\n\n42"))
    assert len(sampler.prompts) == 1
    assert (choice.answer, choice.chosen.thinking, choice.chosen.text) == (Answer("42"), "abc", "42")
    assert (choice.spent.thinking, choice.spent.answer) == (len("abc</think>"), len("\n\n42"))


def test_a_model_that_does_not_think_is_left_alone():
    choice, sampler = capped(Capped(50, 5), think(first="42"))
    assert (choice.answer, choice.chosen.thinking, len(sampler.prompts)) == (Answer("42"), None, 1)
    assert (choice.spent.thinking, choice.spent.answer) == (0, 2)


def test_an_answer_cut_by_the_cap_is_continued():
    choice, sampler = capped(Capped(12, 5), think(first="abc</think>42", then="2"))
    assert sampler.prompts[1] == "Qabc</think>4"
    assert (choice.answer, choice.chosen.thinking) == (Answer("42"), "abc")
    assert (choice.spent.thinking, choice.spent.answer) == (11, 2)


def test_thinking_that_ends_without_an_answer_is_asked_for_one():
    choice, sampler = capped(Capped(50, 5), think(first="abc</think>"))
    assert sampler.prompts[1] == "Qabc</think>"
    assert choice.answer == Answer("42")


def test_a_backend_that_tells_thinking_apart():
    choice, sampler = capped(Capped(50, 5), think(first=Reply("42", thinking="abc")), prompt=CHAT)
    assert (choice.answer, choice.chosen.thinking, len(sampler.prompts)) == (Answer("42"), "abc", 1)
    assert (choice.spent.thinking, choice.spent.answer) == (3, 2)
    choice, sampler = capped(Capped(10, 5), think(first=Reply("42", thinking="t" * 50)), prompt=CHAT)
    assert sampler.prompts[1] == [*CHAT, {"role": "assistant", "content": "<think>\ntttttttttt\n</think>\n\n"}]
    assert (choice.answer, choice.spent.thinking, choice.spent.answer) == (Answer("42"), 10, 2)
    choice, sampler = capped(Capped(4, 5), think(first=Reply("42", thinking="abc"), then="2"), prompt=CHAT)
    assert sampler.prompts[1][-1]["content"] == "<think>\nabc\n</think>\n\n4"
    assert choice.answer == Answer("42")


def test_a_parser_that_calls_the_forced_answer_thinking_is_read_all_the_same():
    then = Reply("", thinking="42")
    choice, _ = capped(Capped(10, 5), think(first=Reply("", thinking="t" * 50), then=then), prompt=CHAT)
    assert (choice.answer, choice.chosen.text, choice.chosen.thinking) == (Answer("42"), "42", "t" * 10)


@pytest.mark.parametrize(
    ("prompt", "first", "begun"),
    [
        ("Q", "ttt", "ttt"),  # the text is continued as the model saw it
        (CHAT, "ttt", "<think>\nttt"),  # its template may have opened the thinking unseen
        (CHAT, "<think>tt", "<think>tt"),
        ([*CHAT, {"role": "assistant", "content": "<think>\n"}], "ttt", "<think>\nttt"),
    ],
)
def test_the_start_marker_stands_once(prompt, first, begun):
    cap = Capped(len(first), 5)
    choice, sampler = capped(cap, lambda p, i: first + "t" if p is prompt else "42", prompt=prompt)
    shown = sampler.prompts[1] if isinstance(prompt, str) else "Q" + sampler.prompts[1][-1]["content"]
    assert shown == f"Q{begun}\n</think>\n\n"
    assert choice.chosen.thinking == first.removeprefix("<think>")


@pytest.mark.parametrize(
    ("prompt", "begun"),
    [("Q", "<think>\n\n</think>\n\n"), ("Q<think>", "\n</think>\n\n"), (CHAT, "<think>\n\n</think>\n\n")],
)
def test_no_budget_is_an_end_marker_at_once(prompt, begun):
    choice, sampler = capped(Capped(0, 5), lambda p, i: "42", prompt=prompt)
    [only] = sampler.prompts
    assert (only if isinstance(prompt, str) else only[-1]["content"]) == (
        prompt + begun if isinstance(prompt, str) else begun
    )
    assert (choice.answer, choice.spent.thinking, choice.spent.answer) == (Answer("42"), 0, 2)


def test_markers_and_cue_are_yours():
    cap = Capped(3, 5, start="[THINK]", end="<|end|><|start|>final", cue="Final Answer: ")
    choice, sampler = solve(cap, think(first="ttttt"), Question("q", "Q", lambda c: Answer(c.text), Sampling()))
    assert sampler.prompts[1] == "Qttt\n<|end|><|start|>final\n\nFinal Answer: "
    assert choice.answer == Answer("Final Answer: 42")


def waiting(*thoughts, answer="7"):
    """Thinks one thought after another, each up to its end marker, and then answers."""

    def say(prompt, index):
        if "</think>" in prompt:
            return answer
        done = prompt.count("Wait")
        return f"{thoughts[done]}</think>{answer}"

    return say


def test_wait_is_said_as_often_as_asked_and_no_end_comes_before():
    choice, sampler = capped(Capped(50, 5, wait=2), waiting("one\n", "two\n", "three"))
    assert sampler.prompts == ["Q", "Qone\nWait", "Qone\nWaittwo\nWait"]
    assert choice.chosen.thinking == "one\nWaittwo\nWaitthree"
    assert (choice.answer, choice.notes) == (Answer("7"), ())
    assert sampler.generated == choice.spent.generated == len("one\ntwo\nthree</think>7")
    assert choice.spent.answer == 1


def test_what_was_made_is_taken_off_before_another_wait():
    # 8 tokens: 4 are made, Wait; 4 are left and made, none are: no second Wait, the end is forced.
    choice, sampler = capped(Capped(8, 5, wait=3), waiting("one\n", "two\n"))
    assert sampler.prompts == ["Q", "Qone\nWait", "Qone\nWaittwo\n</think>\n\n"]
    assert (choice.answer, choice.spent.thinking) == (Answer("7"), 8)
    assert choice.notes == ("Wait was said 1 of 3 times: no thinking tokens were left",)
    # 9: one token is left for a third thought, and cut there.
    choice, sampler = capped(Capped(9, 5, wait=3), waiting("one\n", "two\n", "three"))
    assert sampler.prompts[2:] == ["Qone\nWaittwo\nWait", "Qone\nWaittwo\nWaitt\n</think>\n\n"]
    assert choice.spent.thinking == 9


def test_what_a_server_says_past_the_stop_is_not_taken_for_thinking():
    def say(prompt, index):  # a text with its own token count is not stopped by the script
        return Reply("a</think>9" if prompt == "Q" else "b</think>7", n_tokens=4)

    choice, sampler = capped(Capped(50, 5, wait=1), say)
    assert sampler.prompts == ["Q", "QaWait"]
    assert (choice.answer, choice.chosen.thinking) == (Answer("7"), "aWaitb")


def test_the_limit_of_the_request_must_hold_both():
    with pytest.raises(
        UsageError, match=r"10 tokens of thinking and 5 kept for the answer need max_tokens of 15, found 14"
    ):
        capped(Capped(10, 5), think(first="t"), max_tokens=14)
    assert capped(Capped(10, 5), think(first="t" * 50), max_tokens=15)[0].answer == Answer("42")


def test_a_small_budget_leaves_room_for_the_answer_too():
    choice, _ = capped(Capped(50, 5), think(first="t" * 80), budget=20)
    assert (choice.answer, choice.spent.thinking, choice.spent.answer, choice.stopped_by) == (
        Answer("42"),
        15,
        2,
        "budget",
    )
    choice, sampler = capped(Capped(50, 5), think(first="t" * 80), budget=4)  # nothing but an answer has room
    assert (choice.answer, choice.spent.generated, len(sampler.prompts)) == (Answer("42"), 2, 1)


def test_a_failed_or_interrupted_thought_is_not_answered():
    choice, sampler = capped(Capped(10, 5), think(first=Reply("tt", error="reset")))
    assert (choice.answer, len(sampler.prompts), choice.notes) == (None, 1, ("a completion failed: reset",))

    async def go():
        metered = Metered(Scripted(think(first="t" * 50)), Ledger())
        metered.watch = lambda kind, chunk: metered.stop() if metered.ledger.spent.generated == 10 else None
        return await Capped(10, 5)(ask(prompt="Q"), metered)

    choice = asyncio.run(go())
    assert (choice.answer, choice.stopped_by, choice.spent.generated) == (None, "interrupted", 10)
    assert choice.drawn[0].thinking == "t" * 10


def test_token_lists_run_on_through_the_requests():
    first = Reply("t" * 50, confidences=[1.0] * 50, logprobs=[-1.0] * 50)
    choice, _ = capped(Capped(3, 5), think(first=first, then=Reply("42", confidences=[2.0, 3.0])))
    assert list(choice.chosen.token_confidences) == [1.0, 1.0, 1.0, 2.0, 3.0]
    assert choice.chosen.logprobs is None  # the second request has none


def test_a_recorded_completion_keeps_what_was_recorded_with_it():
    recorded = Reply("", n_tokens=7, trace_confidences={"mean": 2.0}, grade=Grade(Answer("4"), "right", 1.0))
    question = Question("q", "Q", lambda completion: completion.grade.answer, Sampling())
    choice, sampler = solve(Capped(10, 5), think(first=recorded), question)
    assert (choice.answer, len(sampler.prompts)) == (Answer("4"), 1)
    assert (choice.chosen.trace_confidences, choice.chosen.grade) == ({"mean": 2.0}, recorded.grade)
    cut = Reply("t" * 50, trace_confidences={"mean": 2.0})
    assert solve(Capped(10, 5), think(first=cut), ask(prompt="Q"))[0].chosen.trace_confidences is None


def test_native_leaves_it_to_the_server_and_tells_if_that_is_ignored():
    asked = []

    class Native(Scripted):
        def draw(self, prompt, how, **more):
            asked.append((how.thinking_budget, how.max_tokens))
            return Scripted.draw(self, prompt, how, **more)

    def go(thinking):
        sampler = Native([Reply("42", thinking=thinking)])
        return asyncio.run(Capped(10, 5, native=True)(ask(), Metered(sampler, Ledger())))

    assert go("t" * 10).notes == ()
    assert go("t" * 11).notes == ("the backend thought for 11 tokens, its budget was 10",)
    assert asked == [(10, 100), (10, 100)]


def test_never_more_thinking_than_the_cap_and_always_an_answer():
    random = Random(0)
    for _ in range(300):
        tokens, answer, wait = random.randint(0, 30), random.randint(2, 9), random.randint(0, 3)
        apart = random.random() < 0.5
        lengths = [random.randint(0, 20) for _ in range(wait + 1)]

        def say(prompt, index, lengths=lengths, apart=apart):
            begun = prompt if isinstance(prompt, str) else prompt[-1]["content"]
            if "</think>" in begun:
                return "2" if begun.endswith("4") else "42"
            thought = "z" * lengths[min(begun.count("Wait"), len(lengths) - 1)]
            return Reply("42", thinking=thought) if apart else f"{thought}</think>42"

        choice, sampler = capped(
            Capped(tokens, answer, wait=wait),
            say,
            prompt=CHAT if apart else "Q",
            max_tokens=tokens + answer,
            chunk=random.choice([1, 3]),
        )
        assert choice.answer == Answer("42"), (tokens, answer, wait, lengths, apart)
        assert (choice.chosen.thinking or "").count("z") <= tokens
        assert choice.spent.generated == sampler.generated == choice.chosen.n_tokens <= tokens + answer
        assert choice.spent.thinking <= tokens
        assert "</think>" not in (choice.chosen.thinking or "")
        if (
            sum(lengths[:wait]) + (2 * wait if apart else 0) < tokens
        ):  # the script says 42 where it tells thinking apart
            assert (choice.chosen.thinking or "").count("Wait") == wait, (tokens, lengths)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"tokens": -1}, "tokens is 0 or more"),
        ({"answer": 0}, "answer is 1 or more"),
        ({"end": ""}, "needs an end marker"),
        ({"native": True, "wait": 1}, "cannot wait=1 times"),
    ],
)
def test_caps_that_mean_nothing_are_refused(wrong, message):
    with pytest.raises(UsageError, match=message):
        Capped(**wrong)


def test_a_budget_is_split_into_equal_shares():
    # 20 over 3 is 6 each: the reply of 7 is cut and abstains, whatever it looks like.
    choice, sampler = solve(Parallel(3, 20), ["7777777", "4", "4"], Question("q", "Q", unless_cut, Sampling(100)))
    assert (choice.answer, choice.abstained) == (Answer("4"), 1)
    assert [completion.n_tokens for completion in choice.drawn] == [6, 1, 1]
    assert sampler.generated == 8


def unless_cut(completion: Completion) -> Answer | None:
    return None if completion.finish in ("length", "budget") else read(completion)


@pytest.mark.parametrize("answer", [0, 3])
def test_the_shares_never_exceed_the_budget_whatever_the_lengths(answer):
    random = Random(answer)
    for _ in range(200):
        n = random.randint(1, 6)
        budget, left = random.randint(4 * n, 80), random.randint(0, 80)
        lengths = [random.randint(1, 40) for _ in range(n)]

        def say(prompt, index, lengths=lengths):
            return "42" if "</think>" in prompt else "1" * lengths[index]

        choice, sampler = solve(Parallel(n, budget, answer), say, ask(1000, prompt="Q"), budget=left)
        assert choice.spent.generated == sampler.generated <= min(budget, left)
        assert all(completion.n_tokens <= budget // n for completion in choice.drawn)
        if left < sum(min(length, budget // n) for length in lengths) and not answer:
            assert (sampler.generated, choice.stopped_by) == (left, "budget")  # the last is cut to what is left


def test_with_room_for_all_it_is_the_majority():
    replies = ["4", "7", "?", "4"]
    plain, split = solve(Majority(4), replies)[0], solve(Parallel(4, 100), replies)[0]
    assert (split.answer, split.ballots, split.abstained) == (plain.answer, plain.ballots, plain.abstained)


def test_shares_that_think_are_made_to_answer():
    def say(prompt, index):
        return "42" if "</think>" in prompt else "t" * 50

    choice, sampler = solve(Parallel(4, 40, 3), say, ask(1000, prompt="Q"))
    assert (choice.ballots, choice.spent.thinking, choice.spent.answer) == ({"42": 4.0}, 28, 8)
    assert sampler.prompts[4:] == ["Q" + "t" * 7 + "\n</think>\n\n"] * 4


def test_a_lower_limit_of_the_request_holds():
    choice, _ = solve(Parallel(2, 100), ["1" * 30, "1" * 30], with_how(ask(), max_tokens=7))
    assert [completion.n_tokens for completion in choice.drawn] == [7, 7]
    with pytest.raises(UsageError, match="max_tokens of 7 leaves no thinking beside answer=9"):
        solve(Parallel(2, 100, 9), ["1"], with_how(ask(), max_tokens=7))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"n": 0}, "n is 1 or more"),
        ({"n": 8, "budget": 7}, "is 0 each"),
        ({"n": 2, "budget": 20, "answer": 10}, "10 each, of which 10 are kept"),
        ({"native": True}, "say with answer="),
    ],
)
def test_shares_that_mean_nothing_are_refused(wrong, message):
    with pytest.raises(UsageError, match=message):
        Parallel(**wrong)
