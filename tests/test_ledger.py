"""The ledger and the metered sampler: no token is lost, none is spent twice, none beyond the budget but one piece."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from equipoise.base import Answer, Chunk, Completion, Question, Sampling, Spend
from equipoise.errors import UsageError
from equipoise.infer.ledger import Ledger, Prices
from equipoise.infer.metered import Metered, join_chunks
from equipoise.infer.vote import Majority
from equipoise.samplers.scripted import Reply, Scripted


def read(completion: Completion) -> Answer | None:
    text = completion.text or ""
    return Answer(text) if text.isdigit() else None


def ask(max_tokens: int = 100) -> Question:
    return Question("q", "2+2", read, Sampling(max_tokens=max_tokens))


def run(coroutine):
    return asyncio.run(coroutine)


def test_vote_skips_unreadable_answers():
    metered = Metered(Scripted(["?", "7", "?", "4", "4"]), Ledger(100), watch=None)
    choice = run(Majority(5)(ask(20), metered))
    assert choice.answer == Answer("4")
    assert (choice.abstained, choice.ballots, choice.stopped_by) == (2, {"7": 1, "4": 2}, "finished")
    assert choice.chosen is choice.drawn[3]
    assert choice.spent.answer == choice.spent.generated == 5


def test_a_budget_of_two_completions_draws_two_and_says_so():
    sampler = Scripted(["11111", "22222", "33333"])
    choice = run(Majority(3)(ask(5), Metered(sampler, Ledger(10))))
    assert len(choice.drawn) == 2
    assert (choice.stopped_by, choice.spent.generated, sampler.generated) == ("budget", 10, 10)


def test_room_that_was_not_used_goes_to_the_next_and_the_last_gets_what_is_left():
    # 12 tokens, limit 10: the first takes 4 and gives 6 back; 8 are left, less than 10 but all there is: it is cut at 8.
    sampler = Scripted(["1111", "2" * 10])
    choice = run(Majority(2)(ask(10), Metered(sampler, Ledger(12))))
    assert [c.n_tokens for c in choice.drawn] == [4, 8]
    assert [c.finish for c in choice.drawn] == ["stop", "budget"]
    assert choice.stopped_by == "budget"


def test_least_keeps_a_completion_from_starting_with_too_little():
    async def go():
        metered = Metered(Scripted(["1111", "2" * 10]), Ledger(12))
        draw = metered.draw(ask(10), n=2, least=9)
        return await draw.completions(), draw.out_of_budget

    drawn, out = run(go())
    assert ([c.n_tokens for c in drawn], out) == ([4], True)


def test_a_nested_ledger_reserves_in_both():
    async def go():
        whole = Ledger(30)
        first, second = Ledger(20, within=whole), Ledger(20, within=whole)
        one = await first.reserve(20)
        assert (first.left, second.left, whole.left) == (0, 10, 10)
        two = await asyncio.wait_for(_reserve_after(second, one), 5)
        return whole, two.tokens

    async def _reserve_after(ledger, held):
        waiting = asyncio.ensure_future(ledger.reserve(20))
        await asyncio.sleep(0)
        assert not waiting.done()  # 10 are free; it waits for the other to give back
        held.commit("answer", 5)
        assert not waiting.done()
        held.close()
        return await waiting

    whole, granted = run(go())
    assert granted == 20
    assert (whole.spent.answer, whole.left) == (5, 5)


def test_a_question_that_is_itself_out_does_not_wait_for_others():
    async def go():
        whole = Ledger(1000)
        other, mine = Ledger(within=whole), Ledger(8, within=whole)
        await other.reserve(100)
        granted = await asyncio.wait_for(mine.reserve(20), 5)
        return granted.tokens

    assert run(go()) == 8


def test_money_and_prompts():
    prices = Prices(prompt=1.0, cached=0.1, generated=4.0)
    replies = [Reply("11", prompt_tokens=1000, cached_tokens=400), Reply("22", prompt_tokens=1000, cached_tokens=1000)]
    choice = run(Majority(2)(ask(), Metered(Scripted(replies), Ledger(prices=prices))))
    # 600 fresh and 1,400 cached tokens of prompts, 4 generated
    assert choice.spent.money == pytest.approx((600 * 1.0 + 1400 * 0.1 + 4 * 4.0) / 1e6)
    assert (choice.spent.prompt, choice.spent.cached) == (2000, 1400)
    unknown = run(Majority(1)(ask(), Metered(Scripted(["1"]), Ledger(prices=prices))))
    assert (unknown.spent.prompt, unknown.spent.money) == (None, None)


def test_retries_are_charged_and_their_text_is_gone():
    sampler = Scripted([Reply("44", restarts=7)])
    choice = run(Majority(1)(ask(), Metered(sampler, Ledger())))
    assert (choice.answer, choice.spent.retry, choice.spent.answer) == (Answer("4" * 2), 7, 2)
    assert sampler.generated == choice.spent.generated == 9


def test_cancelled_tokens_stand_in_their_own_line():
    async def go():
        sampler = Scripted(["1" * 50, "2" * 50, "33"], chunk=2)
        metered = Metered(sampler, Ledger(1000))
        async with metered.draw(ask(), n=3) as draw:
            async for _index, completion in draw.finished():
                assert completion.text == "33"
                break
        return sampler, metered, draw

    sampler, metered, draw = run(go())
    assert metered.ledger.spent.answer == 2
    assert metered.ledger.spent.cancelled == sampler.generated - 2 > 0
    assert {c.finish for c in draw.done.values()} == {"stop", "cancelled"}
    assert metered.ledger.left == 1000 - sampler.generated  # every reservation was given back


def test_thinking_is_apart_and_a_probe_too():
    async def go():
        metered = Metered(Scripted([Reply("42", thinking="hmmm")]), Ledger())
        await metered.draw(ask()).completions()
        await metered.draw(ask(), kind="probe").completions()
        return metered.ledger.spent

    spent = run(go())
    assert (spent.thinking, spent.answer, spent.probe) == (4, 2, 6)


def test_completions_of_a_kind_are_numbered_on_from_draw_to_draw():
    async def go():
        metered = Metered(Scripted(["1", "2", "3"]), Ledger())
        texts = [c.text for c in await metered.draw(ask(), n=2).completions()]
        return texts + [c.text for c in await metered.draw(ask()).completions()]

    assert run(go()) == ["1", "2", "3"]


def test_at_once_holds_the_others_back():
    async def go():
        sampler = Scripted(["1" * 9, "2" * 3, "3" * 3])
        most = 0
        draw = Metered(sampler, Ledger()).draw(ask(), n=3, at_once=2)
        async for _ in draw:
            most = max(most, len(draw._running))
        return most, sorted(draw.done)

    assert run(go()) == (2, [0, 1, 2])


def test_stop_ends_a_strategy_with_what_it_has():
    async def go():
        metered = Metered(Scripted(lambda prompt, i: Reply("7" if i == 0 else "8" * 10_000)), Ledger())
        metered.watch = lambda kind, chunk: metered.stop() if metered.ledger.spent.generated > 50 else None
        return await Majority(4)(ask(20_000), metered)

    choice = run(go())
    assert (choice.answer, choice.stopped_by) == (Answer("7"), "interrupted")
    assert choice.spent.answer == 1
    assert choice.spent.cancelled >= 50


def test_a_failed_completion_is_a_note_and_its_tokens_are_spent():
    choice = run(Majority(2)(ask(), Metered(Scripted([Reply("44", error="reset"), "5"]), Ledger())))
    assert choice.notes == ("a completion failed: reset",)
    assert choice.spent.generated == 3


def test_a_sampler_that_ends_without_a_finish_is_an_error_not_a_result():
    class Broken:
        def __init__(self):
            self.pieces = [Chunk(0, "4", n_tokens=1)]

        def draw(self, prompt, how, *, n, seed, first=0):
            return self

        def cancel(self, index, why):
            pass

        def __aiter__(self):
            return self

        async def __anext__(self):
            if not self.pieces:
                raise StopAsyncIteration
            return self.pieces.pop()

    with pytest.raises(RuntimeError, match="without a finish"):
        run(asyncio.wait_for(Majority(1)(ask(), Metered(Broken(), Ledger(10))), 5))


def test_a_thousand_questions_never_overspend_by_more_than_a_piece_for_each_completion():
    random = Random(0)

    async def go():
        for _ in range(1000):
            chunk, budget, n = random.randint(1, 7), random.randint(0, 120), random.randint(1, 6)
            lengths = [random.randint(1, 60) for _ in range(n)]
            sampler = Scripted([Reply("1" * m) for m in lengths], chunk=chunk, keeps_limits=random.random() < 0.3)
            whole = Ledger(random.randint(0, 200))
            metered = Metered(sampler, Ledger(budget, within=whole))
            choice = await Majority(n)(ask(random.randint(1, 40)), metered)
            over = chunk * (0 if sampler.keeps_limits else n)
            assert choice.spent.generated == sampler.generated == whole.spent.generated
            assert choice.spent.generated <= min(budget, whole.budget) + over
            assert metered.ledger._reserved == whole._reserved == 0

    run(go())


def test_spends_add_and_unknown_stays_unknown():
    one, two = Spend(prompt=3, answer=5, seconds=1.0), Spend(prompt=None, answer=1, judge=2)
    assert (one + two).prompt is None
    assert ((one + two).answer, (one + two).generated, (one + two).money) == (6, 8, None)


def test_pieces_join_and_a_list_that_one_piece_lacks_is_unknown():
    parts = [
        Chunk(0, "a", n_tokens=1, logprobs=[-1.0], token_confidences=[2.0]),
        Chunk(0, "b", n_tokens=1, logprobs=[-2.0]),
        Chunk(0, finish="stop"),
    ]
    joined = join_chunks(parts, "stop")
    assert (joined.text, joined.n_tokens, list(joined.logprobs)) == ("ab", 2, [-1.0, -2.0])
    assert joined.token_confidences is None


@pytest.mark.parametrize("wrong", [{"n": 0}, {"n": 2, "at_once": 0}])
def test_a_draw_of_nothing_is_refused(wrong):
    with pytest.raises(UsageError, match="1 or more"):
        Metered(Scripted(["1"]), Ledger()).draw(ask(), **wrong)
