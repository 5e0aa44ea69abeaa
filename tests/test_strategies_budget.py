"""What strategies need of the metered sampler: room kept for later, thinking told afterwards, and no piece lost."""

from __future__ import annotations

import asyncio
from random import Random

from asking import ask, with_how

from equipoise.infer.ledger import Ledger
from equipoise.infer.metered import Metered
from equipoise.infer.together import together
from equipoise.samplers.scripted import Reply, Scripted


def test_thinking_that_stays_in_the_text_is_booked_once_and_given_up_tokens_are_not():
    async def go():
        metered = Metered(Scripted(["abcdef", "xyz"]), Ledger())
        draw = metered.draw(ask(), n=2)
        async with draw:
            async for _ in draw:
                if metered.ledger.spent.generated == 4:
                    draw.cancel(1, "cancelled")
        draw.tell_thinking(0, 4)
        draw.tell_thinking(1, 1)
        return metered.ledger.spent

    spent = asyncio.run(go())
    assert (spent.thinking, spent.answer) == (4, 2)
    assert spent.cancelled == 2


def test_tokens_that_are_kept_stay_free_for_each_that_starts():
    async def go(budget):
        metered = Metered(Scripted(["1" * 10] * 4), Ledger(budget))
        draw = metered.draw(ask(10), n=4, keep=5)
        drawn = await draw.completions()
        return [completion.n_tokens for completion in drawn], metered.ledger.left

    assert asyncio.run(go(60)) == ([10, 10, 10, 10], 20)
    assert asyncio.run(go(45)) == ([10, 10, 10], 15)
    assert asyncio.run(go(41)) == ([10, 10, 6], 15)
    assert asyncio.run(go(5)) == ([], 5)


def test_what_is_kept_in_a_run_is_kept_in_its_ledger_too():
    async def go():
        whole = Ledger(30)
        metered = Metered(Scripted(["1" * 10] * 4), Ledger(100, within=whole))
        await metered.draw(ask(10), n=4, keep=5).completions()
        return whole.left

    assert asyncio.run(go()) == 10  # two pairs


def test_what_is_kept_is_waited_for_while_others_may_give_back():
    async def go():
        ledger = Ledger(30)
        other = await ledger.reserve(10)
        waiting = asyncio.ensure_future(ledger.reserve(15, keep=10))
        await asyncio.sleep(0)
        assert not waiting.done()  # 20 are free, of which 10 are kept
        other.close()
        return (await waiting).tokens, ledger.left

    assert asyncio.run(go()) == (15, 15)


def test_every_completion_that_ends_is_handed_on_however_short():
    random = Random(0)

    async def go():
        for _ in range(500):
            n = random.randint(1, 5)
            sampler = Scripted(["1" * random.randint(1, 12) for _ in range(n)], chunk=random.randint(1, 8))
            metered = Metered(sampler, Ledger(random.randint(1, 60)))
            draw = metered.draw(ask(random.randint(1, 12)), n=n, at_once=random.randint(1, n))
            seen = [index async for index, _ in draw.finished()]
            assert sorted(seen) == sorted(draw.done)

    asyncio.run(go())


def test_a_stop_string_ends_a_scripted_reply():
    sampler = Scripted(["abc;def", Reply("f", thinking="ab;cd"), Reply("a;b", n_tokens=9)])

    async def go():
        return await Metered(sampler, Ledger()).draw(with_how(ask(), stop=(";", "d")), n=3).completions()

    drawn = asyncio.run(go())
    assert [(c.text, c.thinking, c.n_tokens) for c in drawn] == [("abc", None, 3), ("", "ab", 2), ("a;b", None, 9)]


def test_together_ends_the_others_before_an_error_travels():
    ended = []

    async def wait():
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    async def fail():
        await asyncio.sleep(0)
        raise ZeroDivisionError

    async def go():
        try:
            await asyncio.wait_for(together([wait(), fail(), wait()]), 5)
        except ZeroDivisionError:
            return len(ended), len(asyncio.all_tasks())

    assert asyncio.run(go()) == (2, 1)
