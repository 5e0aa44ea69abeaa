"""Streams through a proxy that cuts what is silent: pings keep them, at their real times under the mark `soak`."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

pytest.importorskip("starlette", reason="needs starlette: pip install 'equipoise[serve]'")
pytest.importorskip("uvicorn", reason="needs uvicorn: pip install 'equipoise[serve]'")
pytest.importorskip("aiohttp", reason="needs aiohttp: pip install 'equipoise[serve]'")

from gateway_world import CHAT, read_events, run, world
from idle_proxy import idle_proxy
from unruly_server import UnrulyServer


async def through_a_proxy(*, silent, idle, ping, strategy):
    """The events of a stream whose server is silent before the first token and in the middle; None: it was cut. And how many were."""

    async def behave(reply, asked):
        await asyncio.sleep(silent)
        await reply.head()
        await reply.say("The answer is ")
        await asyncio.sleep(silent)
        await reply.say("4")
        await reply.finish()

    body = {"model": "tiny", "messages": CHAT, "stream": True, "equipoise": {"strategy": strategy, "progress": False}}
    async with (
        UnrulyServer(behave) as server,
        world(server, ping=ping, stall=10 * silent) as there,
        idle_proxy(there.url, idle=idle) as proxy,
    ):
        try:
            async with there.session.post(f"{proxy.url}/v1/chat/completions", json=body, timeout=None) as reply:
                return read_events(await reply.read()), proxy.cut
        except aiohttp.ClientError:
            return None, proxy.cut


def test_a_stream_that_is_silent_for_long_gets_through_a_proxy_that_cuts_such():
    def ask(ping, strategy):
        return through_a_proxy(silent=1.6, idle=1.2, ping=ping, strategy=strategy)

    async def go():
        return await asyncio.gather(*(ask(ping, each) for ping in (0.1, 100) for each in ("single", "majority:n=2")))

    *pinged, silent, silent_too = run(go())
    for events, cut in pinged:
        check(events, cut)
        assert events.count(": ping") >= 8
    assert silent == silent_too == (None, 1)


@pytest.mark.soak
@pytest.mark.parametrize("strategy", ["single", "majority:n=2"])
def test_two_minutes_of_silence_through_a_proxy_of_thirty_seconds(strategy, figure):
    """With the pings of the default, every 15 seconds."""
    events, cut = run(through_a_proxy(silent=120, idle=30, ping=15, strategy=strategy), 300)
    check(events, cut)
    figure(f"keep-alive, {strategy}: streams cut by a 30 s idle proxy in twice 120 s of silence", cut, most=0)


def check(events, cut):
    assert cut == 0
    assert events[-1] == "[DONE]"
    said = "".join(c["delta"].get("content") or "" for e in events if isinstance(e, dict) for c in e["choices"])
    assert said == "The answer is 4"
