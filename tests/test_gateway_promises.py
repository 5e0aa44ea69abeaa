"""What the gateway promises, measured at its full size (`make test-soak`): budgets, cancellation, overload, drain, keys.

Figures go to build/figures.json. Smaller versions of the same, without times, are in the other tests of the gateway.
"""

from __future__ import annotations

import asyncio
import random
import time

import aiohttp
import numpy as np
import pytest
from scipy import stats

pytest.importorskip("starlette", reason="needs starlette: pip install 'equipoise[serve]'")
pytest.importorskip("uvicorn", reason="needs uvicorn: pip install 'equipoise[serve]'")
pytest.importorskip("aiohttp", reason="needs aiohttp: pip install 'equipoise[serve]'")

from gateway_process import Served, served, upstream
from gateway_world import CHAT, read_events, run, saying, spend_budgets, thinking_for, until, world
from unruly_server import UnrulyServer

from equipoise.gateway.keys import VARIABLE, read_keys
from equipoise.gateway.settings import Settings

pytestmark = pytest.mark.soak

KEY = "planted-key-of-a-caller-0123456789"


def test_a_thousand_budgets_against_a_server_that_ignores_limits(figure, monkeypatch):
    spent = run(spend_budgets(1000, seed=1, monkeypatch=monkeypatch), 1200)
    over = max((each.booked - each.budget) / (each.calls * each.chunk) for each in spent)
    figure("budget: chunks beyond it for each completion, most of 1,000 requests", round(over, 3), most=1)
    figure("budget: requests of 1,000 that went beyond it at all", sum(each.booked > each.budget for each in spent))
    whole = [each for each in spent if not each.cut]
    figure("budget: requests of which nothing was cut", len(whole), least=50)
    figure(
        "budget: of these, whose spend is not the server's own count", sum(e.booked != e.sent for e in whole), most=0
    )


def test_time_limits_are_kept(figure):
    rng = random.Random(2)

    async def behave(reply, asked):
        await reply.head()
        await reply.say("The answer is 4")
        await reply.forever(0.01)

    lag = [0.0]  # of the loop itself, which others on the machine may keep waiting

    async def watch():
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.01)
            lag[0] = max(lag[0], time.monotonic() - began - 0.01)

    async def go():
        late, watching = [], asyncio.ensure_future(watch())
        async with UnrulyServer(behave) as server, world(server) as there:
            for _ in range(100):
                seconds = rng.uniform(0.2, 0.6)
                wanted = {"strategy": rng.choice(["majority:n=4", "adaptive_consistency:cap=7"]), "seconds": seconds}
                began, lag[0] = time.monotonic(), 0.0
                status, _, _ = await there.post(equipoise=wanted, max_tokens=30000)
                beyond = time.monotonic() - began - seconds
                late.append((1000 * beyond, 1000 * (beyond - lag[0])))
                assert status == 200
                await until(lambda: server.open == 0)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        return late

    raw, own = np.array(run(go(), 300)).T
    figure("time limit: ms beyond it, median of 100 searches", round(float(np.median(raw)), 1))
    figure("time limit: ms beyond it, most of 100 searches", round(max(raw)))
    figure("time limit: the same, less what the event loop was late itself", round(max(own)), most=250)


CASES = [
    "before the first byte",
    "in the middle of a stream",
    "before a reply in one piece",
    "while it waits for tokens",
]


@pytest.mark.parametrize("case", CASES)
def test_two_hundred_clients_that_go(case, figure):
    """Each with sixteen completions under way, or one that waits for tokens which others have set aside."""

    async def behave(reply, asked):
        if case == "before the first byte":
            await reply.hang()
        await reply.head()
        await reply.forever(0.01)

    async def leave(there, server):
        waits = case == "while it waits for tokens"
        body = {"model": "tiny", "messages": CHAT, "stream": case != "before a reply in one piece", "max_tokens": 1000}
        body["equipoise"] = {"strategy": "single" if waits else "majority:n=16"}
        wide = 0 if waits else 16
        before = len(server.asked)
        asking = asyncio.ensure_future(there.session.post(f"{there.url}/v1/chat/completions", json=body))
        if waits:
            await until(lambda: len(there.gateway.entries) == 2)
        else:
            await until(lambda: server.open == wide)
        if case == "in the middle of a stream":
            reply = await asking
            await reply.content.readany()
            reply.close()
        else:
            await asyncio.sleep(0.01)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        began, others = time.monotonic(), 1 if waits else 0
        await until(lambda: server.open == others and len(there.gateway.entries) == others, 5.0)
        assert len(server.asked) == before + wide
        return time.monotonic() - began

    async def go():
        rule = {"keys": {"ann": {"env": "ANN", "tokens_per_day": 10**9}}}
        if case == "while it waits for tokens":
            rule["keys"]["ann"]["tokens_per_day"] = 1000
        async with UnrulyServer(behave) as server, world(server, environment={"ANN": KEY}, **rule) as there:
            there.session.headers["Authorization"] = f"Bearer {KEY}"
            if case == "while it waits for tokens":
                body = {"model": "tiny", "messages": CHAT, "stream": True, "max_tokens": 1000}
                holding = await there.session.post(f"{there.url}/v1/chat/completions", json=body)
            await leave(there, server)
            tasks = len(asyncio.all_tasks())
            took = [await leave(there, server) for _ in range(50)]
            await until(lambda: len(asyncio.all_tasks()) <= tasks)
            if case == "while it waits for tokens":
                holding.close()
                await until(lambda: server.open == 0)
            assert all(caller.ledger._reserved == 0 for caller in there.gateway.keys.callers)
            return took

    took = [each for _ in range(4) for each in run(go(), 300)]
    assert len(took) == 200
    figure(f"cancelled {case}: ms until every call upstream is closed, most of 200", round(1000 * max(took)), most=1000)


def test_ten_times_what_it_holds(figure):
    """Twenty searches under way and 180 requests more, ten at a time: refused at once, and the twenty are as fast as alone."""

    async def timed(session, url, strategy):
        began = time.monotonic()
        body = {"model": "tiny", "messages": CHAT, "equipoise": {"strategy": strategy}}
        async with session.post(f"{url}/chat/completions", json=body) as reply:
            await reply.read()
            return reply.status, time.monotonic() - began

    async def go(url):
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            await timed(session, url, "single")
            alone = await asyncio.gather(*(timed(session, url, "majority:n=4") for _ in range(20)))
            crowd = [asyncio.ensure_future(timed(session, url, "majority:n=4")) for _ in range(20)]
            await asyncio.sleep(0.5)
            refused = []
            for _ in range(18):
                refused += await asyncio.gather(*(timed(session, url, "single") for _ in range(10)))
            return alone, await asyncio.gather(*crowd), refused

    with upstream(thinking_for(1.5)) as server, served(server.url, "--set", "limits.at_once=20") as there:
        alone, crowd, refused = asyncio.run(go(there.url))
    assert {status for status, _ in [*alone, *crowd]} == {200}
    assert [status for status, _ in refused] == [429] * 180
    took = 1000 * np.array([seconds for _, seconds in refused])
    figure(
        "overload: ms until a 429, 99th of 180 at ten times the limit",
        round(float(np.percentile(took, 99)), 1),
        most=50,
    )
    slower = max(s for _, s in crowd) / max(s for _, s in alone)
    figure("overload: the slowest accepted request against the slowest without overload", round(slower, 2), most=1.25)


def test_a_signal_truncates_no_stream(figure):
    """Forty streams and searches under way when the signal comes."""

    async def one(session, url, strategy):
        body = {"model": "tiny", "messages": CHAT, "stream": True, "equipoise": {"strategy": strategy}}
        async with session.post(f"{url}/chat/completions", json=body) as reply:
            return read_events(await reply.read())[-1] == "[DONE]"

    async def go(there):
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            asking = [one(session, there.url, each) for each in ("single", "majority:n=3") * 20]
            running = asyncio.gather(*asking)
            await asyncio.sleep(1.0)
            there.tell()
            return await running

    with upstream(thinking_for(2)) as server:
        there = Served(server.url)
        whole = asyncio.run(go(there))
        code, err = there.end()
    assert (code, "Traceback" in err) == (0, False)
    figure("drain: streams truncated by SIGTERM, of 40 under way", len(whole) - sum(whole), most=0)


# --- keys


def wrong_keys(rng, n):
    """Pairs of wrong keys of one length: one that has all but the last letter of the right one, one that has none of it."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    return [(KEY[:-1] + rng.choice(letters), "".join(rng.choice(letters) for _ in KEY)) for _ in range(n)]


def compare(near, far):
    """By how much the median of the first is above the second's, 95 % interval; and p of both being of one distribution."""
    rng = np.random.default_rng(0)
    near, far = np.array(near), np.array(far)
    draws = [np.median(rng.choice(near, near.size)) - np.median(rng.choice(far, far.size)) for _ in range(1000)]
    low, high = np.percentile(draws, [2.5, 97.5])
    return float(low), float(high), float(stats.mannwhitneyu(near, far).pvalue)


def time_both(find, tries, rng):
    near, far = [], []
    for pair in wrong_keys(rng, tries):
        order = [(pair[0], near), (pair[1], far)]
        rng.shuffle(order)
        for key, times in order:
            header = f"Bearer {key}"
            began = time.perf_counter_ns()
            found = find(header)
            times.append(time.perf_counter_ns() - began)
            assert not found
    return near[tries // 10 :], far[tries // 10 :]


def letter_by_letter(header):
    """What must not be: it stops at the first letter that differs."""
    return all(a == b for a, b in zip(header[7:], KEY, strict=True))


def test_the_time_of_a_comparison_tells_nothing_of_a_key(figure):
    ring = read_keys(
        Settings(upstreams=[{"url": "http://127.0.0.1:9/v1"}]), {VARIABLE: f"{KEY} another-key-0123456789"}
    )
    low, high, p = compare(*time_both(ring.find, 20_000, random.Random(3)))
    figure("keys: ns by which a wrong key with the right beginning takes longer, 95 % from, 18,000 tries each", low)
    figure("keys: the same, to", high)
    figure("keys: p that both kinds of wrong keys take the same time", round(p, 4), least=0.001)
    *_, seen = compare(*time_both(letter_by_letter, 2_000, random.Random(3)))
    figure("keys: the same p for a comparison letter by letter, which the test would see", seen, most=1e-6)


def test_the_time_of_a_refusal_tells_nothing_of_a_key(figure):
    rng = random.Random(4)
    near, far = [], []

    async def go(url):
        async with aiohttp.ClientSession() as session:
            for pair in wrong_keys(rng, 5_500):
                order = [(pair[0], near), (pair[1], far)]
                rng.shuffle(order)
                for key, times in order:
                    began = time.perf_counter_ns()
                    async with session.get(f"{url}/models", headers={"Authorization": f"Bearer {key}"}) as reply:
                        assert reply.status == 401
                        await reply.read()
                    times.append(time.perf_counter_ns() - began)

    with upstream(saying("4")) as server, served(server.url, EQUIPOISE_GATEWAY_KEYS=KEY) as there:
        asyncio.run(go(there.url))
    low, high, p = compare(near[500:], far[500:])
    figure("keys over HTTP: µs by which the right beginning takes longer, 95 % from, 5,000 tries each", low / 1000)
    figure("keys over HTTP: the same, to", high / 1000)
    figure("keys over HTTP: p that both kinds of wrong keys take the same time", round(p, 4), least=0.001)
