"""A gateway on a port of its own, in front of servers that misbehave as a test asks for."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import uvicorn
from unruly_server import Asked, Reply, UnrulyServer

from equipoise.gateway.answering import Gateway
from equipoise.gateway.app import make_app
from equipoise.gateway.ops import make_ops
from equipoise.gateway.serving import Quiet, listen
from equipoise.gateway.settings import Settings
from equipoise.wire import EventStream

CHAT = [{"role": "user", "content": "2+2?"}]


@dataclass
class World:
    gateway: Gateway
    url: str
    ops: str
    session: aiohttp.ClientSession

    async def post(self, path: str = "chat/completions", headers: dict[str, str] | None = None, **body: Any):
        """Status, headers and JSON of the reply."""
        body = {"model": "tiny", **({"messages": CHAT} if path.startswith("chat") else {}), **body}
        async with self.session.post(f"{self.url}/v1/{path}", json=body, headers=headers) as reply:
            return reply.status, reply.headers, json.loads(await reply.read())

    async def stream(self, path: str = "chat/completions", **body: Any) -> list[Any]:
        """The events of a stream: JSON, "[DONE]", and comments as ": …"."""
        body = {"model": "tiny", **({"messages": CHAT} if path.startswith("chat") else {}), "stream": True, **body}
        async with self.session.post(f"{self.url}/v1/{path}", json=body) as reply:
            assert reply.status == 200, await reply.text()
            assert reply.content_type == "text/event-stream"
            return read_events(await reply.read())

    async def get(self, path: str, headers: dict[str, str] | None = None):
        async with self.session.get(f"{self.url}{path}", headers=headers) as reply:
            return reply.status, await reply.text()


def read_events(data: bytes) -> list[Any]:
    """By the rules of server-sent events, on its own: every frame is one line and an empty one."""
    frames = data.decode().split("\n\n")
    assert frames.pop() == ""
    found: list[Any] = []
    for frame in frames:
        assert "\n" not in frame
        if frame.startswith(":"):
            found.append(frame)
        else:
            assert frame.startswith("data: ")
            found.append("[DONE]" if frame == "data: [DONE]" else json.loads(frame[6:]))
    return found


@contextlib.asynccontextmanager
async def world(*servers: Any, environment: dict[str, str] | None = None, **settings: Any) -> AsyncIterator[World]:
    upstreams = [server if isinstance(server, dict) else {"url": server.url, "dialect": "openai"} for server in servers]
    given = {"upstreams": upstreams, "retries": 1, "check": 0.05, **settings}
    gateway = Gateway(Settings.model_validate(given), environment or {})
    sockets = [listen("127.0.0.1", 0), listen("127.0.0.1", 0)]
    urls = [f"http://127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    apps = (make_app(gateway), make_ops(gateway))
    running = [
        Quiet(uvicorn.Config(app, log_level="warning", lifespan="auto", ws="none", timeout_graceful_shutdown=1))
        for app in apps
    ]
    tasks = [asyncio.ensure_future(s.serve(sockets=[at])) for s, at in zip(running, sockets, strict=True)]
    while not all(server.started for server in running):
        assert not any(task.done() for task in tasks)
        await asyncio.sleep(0.005)
    try:
        async with aiohttp.ClientSession() as session:
            yield World(gateway, *urls, session)
    finally:
        for server in running:
            server.should_exit = True
        await asyncio.gather(*tasks)


def run(coroutine: Any, seconds: float = 30) -> Any:
    """It leaves no task behind, and takes no longer than a test may."""

    async def whole() -> Any:
        result = await asyncio.wait_for(coroutine, seconds)
        for _ in range(100):
            if len(asyncio.all_tasks()) == 1:
                break
            await asyncio.sleep(0.01)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return result

    return asyncio.run(whole())


async def until(true: Any, seconds: float = 5.0) -> None:
    """Wait for it, and fail if it does not come."""
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(0.002)


def saying(*texts: str, **more: Any):
    """A server that says these, a completion each, in the order in which they are asked for; usage is the count of pieces."""

    async def behave(reply: Reply, asked: Asked) -> None:
        words = texts[asked.number % len(texts)].split("|")
        usage = {"prompt_tokens": 7, "completion_tokens": len(words)}
        if not asked.body.get("stream"):
            message = {"role": "assistant", "content": "".join(words)}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            await reply.error(200, {"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage})
            return
        await reply.head()
        await reply.say(*words, **more)
        await reply.finish(usage=usage)

    return behave


def thinking_for(seconds: float):
    """A server that is silent for so long in the middle of its answer."""

    async def behave(reply: Reply, asked: Asked) -> None:
        await reply.head()
        await reply.say("The answer is ")
        await asyncio.sleep(seconds)
        await reply.say("4")
        await reply.finish()

    return behave


@dataclass
class Spent:
    """One request under a budget: all in tokens, `chunk` being the most that one read of a socket brought."""

    budget: int
    booked: int  # in the ledger
    sent: int  # by the server's own count
    calls: int
    cut: int  # streams that were closed before their end
    chunk: int


async def spend_budgets(requests: int, *, seed: int, monkeypatch: Any) -> list[Spent]:
    """Random strategies and budgets against a server that keeps to no limit, and never ends one completion of seven."""
    rng = random.Random(seed)
    specs = ["single", "majority:n=5", "esc:cap=9", "adaptive_consistency:cap=7,at_once=3", "anytime:cap=8,at_once=4"]
    feed, chunks = EventStream.feed, [1]

    def noting(self: EventStream, received: bytes) -> list[bytes]:
        found = feed(self, received)
        chunks.append(len(found))
        return found

    monkeypatch.setattr(EventStream, "feed", noting)

    async def behave(reply: Reply, asked: Asked) -> None:
        await reply.head()
        for _ in range(3 + asked.body["seed"] % 40 if asked.body["seed"] % 7 else 10**6):
            await reply.say("x")
            await asyncio.sleep(0.0005)
        await reply.say(" The answer is ", str(asked.body["seed"] % 2))
        await reply.finish()

    found = []
    async with UnrulyServer(behave) as server, world(server) as there:
        ledger = there.gateway.keys.callers[0].ledger
        for _ in range(requests):
            before = (ledger.spent.generated, server.sent, len(server.asked), server.left)
            chunks[:] = [1]
            budget, limit = rng.randint(5, 200), rng.choice([8, 30, 200])
            wanted = {"strategy": rng.choice(specs), "budget": budget}
            status, _, told = await there.post(seed=rng.randrange(10**6), max_tokens=limit, equipoise=wanted)
            await until(lambda: server.open == 0)
            assert status == 200, told
            after = (ledger.spent.generated, server.sent, len(server.asked), server.left)
            found.append(Spent(budget, *(now - was for now, was in zip(after, before, strict=True)), max(chunks)))
            assert told["usage"]["completion_tokens"] == found[-1].booked
            assert ledger._reserved == 0
    return found
