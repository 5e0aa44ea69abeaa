"""A gateway on a port of its own, in front of servers that misbehave as a test asks for."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import uvicorn
from unruly_server import Asked, Reply

from equipoise.gateway.app import Gateway, make_app
from equipoise.gateway.ops import make_ops
from equipoise.gateway.serving import Quiet, listen
from equipoise.gateway.settings import Settings

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
